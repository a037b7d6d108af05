"""Every option of a run: frozen, typed, validated when built. `pbt-rl train --help` is drawn from here.

*Frames* are emulator frames (a step of Atari is 4 frames); *steps* are decisions. Budgets and periods are
counted in frames **of each member**, so they mean the same for one policy and for twenty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from pbt_rl.algos import registry as algorithms
from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.dmlab.options import DmlabOptions
from pbt_rl.envs.registry import EnvOptions, keywords
from pbt_rl.errors import ConfigError, require
from pbt_rl.options import names_object, option, validate
from pbt_rl.pbt.exploit.registry import EXPLOIT_RULES
from pbt_rl.pbt.explore.registry import EXPLORE_RULES
from pbt_rl.pbt.hypers import Hypers
from pbt_rl.pbt.options import PbtConfig
from pbt_rl.pbt.ready.registry import READY_RULES
from pbt_rl.pbt.registry import CONTROLLERS, controller_entry
from pbt_rl.pbt.search.options import ScheduleConfig, SearchConfig
from pbt_rl.population.options import MatchupConfig

if TYPE_CHECKING:
    from pbt_rl.algos.algorithm import Algorithm

ENCODERS = ("auto", "nature", "impala", "a3c", "mlp")
CORES = ("none", "gru", "lstm")
HEADS = ("linear",)
TRACKERS = ("csv", "wandb", "mlflow")


RULES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "ready": lambda: tuple(READY_RULES),
    "exploit": lambda: tuple(EXPLOIT_RULES),
    "explore": lambda: tuple(EXPLORE_RULES),
}
"""Option of PbtConfig -> the rules that it may name."""


@dataclass(frozen=True)
class ModelConfig:
    """The network of every policy."""

    encoder: str = option("auto", choices=lambda: ENCODERS, custom="module:factory", common=True)
    """`auto` (Nature CNN for images, MLP for vectors), `nature`, `impala`, `a3c` (a small CNN), `mlp`, or your own
    `module:factory`, which is called with the observation's spec and returns an nn.Module (docs/own-network.md)."""
    hidden: int = option(512, at_least=1, common=True)
    """Width of the encoder's output."""
    layers: int = option(2, at_least=1)
    """Hidden layers of an MLP encoder."""
    core: str = option("none", choices=lambda: CORES, custom="module:factory", common=True)
    """Recurrent core after the encoder, or your own `module:factory` (docs/own-network.md)."""
    core_size: int = option(256, at_least=1)
    """Width of the recurrent core."""
    last_action_reward: bool = False
    """Show the network its last action and reward, behind the encoder. DMLab's environments always do."""
    core_layers: int = option(1, at_least=1)
    """gru, lstm: so many, one above another."""
    critic: Literal["shared", "separate"] = "shared"
    """shared: policy and value read the same features. separate: the value has an encoder and a core of its own."""
    deviation: Literal["free", "state"] = "free"
    """Deviations of continuous actions. free: parameters, the same in every state. state: an output of the network."""
    action_bounds: Literal["clip", "tanh"] = "clip"
    """How continuous actions keep to their bounds. clip: -1..1 of the policy is scaled to them (if they are finite),
    and draws beyond are cut off. tanh: draws are bent into them, and learned from with the density of the bent ones."""
    policy_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """What turns features into the parameters of the actions: `linear`, or your own."""
    value_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """What turns features into the value: `linear`, or your own network."""

    def __post_init__(self) -> None:
        layered = self.core in ("gru", "lstm")
        require(
            self.core_layers == 1 or layered,
            "model.core-layers",
            self.core_layers,
            "give --model.core gru or lstm",
        )

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Parts of the user's own, as module:factory."""
        parts = (self.encoder, self.core, self.policy_head, self.value_head)
        return tuple(part for part in parts if ":" in part)


@dataclass(frozen=True)
class LearnerConfig:
    """Sampling and learning of a pack. PBT changes nothing of this; it changes hypers."""

    rollout: int = option(32, at_least=1, common=True)
    """Steps of a rollout (T); --hypers.unroll may be shorter."""
    batch: int = option(1024, at_least=1, common=True)
    """Steps of each policy in a batch (appo), rounded to whole units; a3c, unreal and fun learn from as few units as
    lag allows."""
    minibatches: int = option(1, at_least=1, common=True)
    """Parts of a batch, with one optimiser update each: single steps with GAE and no memory, else whole rollouts."""
    epochs: int = option(1, at_least=1, common=True)
    """Passes over a batch (appo)."""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """Advantage estimate (appo). auto: V-trace if async (it corrects policy lag), else GAE. No effect with a3c, unreal
    and fun, which take n-step returns."""
    normalize_advantage: bool = True
    """Normalise advantages, per policy and minibatch (appo)."""
    normalize_returns: bool = True
    """Divide returns by their running root mean square before values are learned, per policy."""
    normalize_observations: bool = False
    """Normalise numbers by running statistics, per policy: float observations, and grids that an MLP reads."""
    normalize_images: bool = False
    """Normalise images pixel by pixel, likewise: those that an encoder of ours convolves, and not with unreal."""
    lr_schedule: Literal["constant", "linear", "kl-adaptive"] = "constant"
    """Factor on the learning rate. linear: falls to 0 at --train-for-frames; PBT mutates the rate without it.
    kl-adaptive: follows --learner.kl-target; the learning rate is then not tuned."""
    kl_target: float = option(0.01, above=0)
    """kl-adaptive: the factor is divided by 1.5 above twice this divergence and multiplied by 1.5 below half of it."""
    max_policy_lag: int = option(16, at_least=1)
    """Discard (and count) rollouts that began more than this many updates ago."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Arithmetic of encoder and core; master weights are float32. auto: bf16 if the device is faster at it."""
    packing: Literal["auto", "loop", "vmap", "bmm"] = option("auto", may_change=True)
    """How the policies of a device are computed: one after another (loop), all in one call (vmap), or that with images
    as matrix products (bmm). auto: on a CPU vmap for four or more policies that see no images through a built-in
    encoder, else loop; on a GPU the fastest in a short trial. With a part of the network of your own: loop."""
    threads: int = option(0, at_least=0, zero="planned", may_change=True)
    """CPU threads of one learner's arithmetic."""


@dataclass(frozen=True)
class Config:
    """Train a population of policies."""

    env: str = option(common=True)
    """Environment as family/name, such as atari/pong, gym/CartPole-v1 or toy/memory, or your own as module:factory.
    `pbt-rl envs` lists them."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = option((), common=True)
    """key=value for the maker of your own environment or of one of gym/, or a setting of a level of dmlab/. May be
    repeated. A value that is not JSON is a string."""
    num_policies: int = option(4, at_least=1, at_most=100_000, common=True)
    """Members of the population."""
    algo: str = option("appo", choices=algorithms.names, custom="module:OBJECT", common=True)
    """appo: clipped PPO on asynchronous rollouts. a3c: n-step actor-critic with RMSProp, as in GA3C. unreal: a3c with
    auxiliary tasks from a replay, for images. fun: a manager sets goals for an a3c worker. Or your own `module:OBJECT`,
    an Algorithm."""
    mode: Literal["async", "sync", "serial"] = option("async", common=True)
    """async: acting never waits for learning. sync: sample, then learn. serial: sync in one process (with --nodes one
    per pack), bit-reproducible under --seed."""
    devices: str = option("auto", common=True, may_change=True)
    """Devices, one learner process each: auto, or a comma-separated list such as `cpu,cpu` or `cuda:0,cuda:1`."""
    nodes: str = option(
        "",
        test=lambda text: re.fullmatch(r"(ray(:\S+)?)?", text) is not None,
        remedy="`ray` for a cluster of this machine alone, or `ray:ADDRESS`",
        may_change=True,
    )
    """Train over the nodes of a Ray cluster, one pack per GPU or per node without one: `ray:auto`, `ray:HOST:PORT`, or
    `ray`, which starts a cluster of this machine alone. Needs pip install 'pbt-rl[ray]'. docs/nodes.md."""
    copy_seconds: float = option(30.0, above=0, may_change=True)
    """With --nodes: this process has copies of all members that are at most this old; if a node is lost, its members go
    on from there."""
    seed: int = option(0, at_least=0, common=True)
    """Seed of weights, actions, environments and controller."""
    name: str | None = option(
        None,
        test=lambda name: re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None,
        remedy="letters, digits, '.', '_' and '-'",
        common=True,
        may_change=True,
    )
    """Name of the run and of its folder. None: made from the environment and the time."""
    out: Path = option(Path("runs"), common=True, may_change=True)
    """Folder that holds the runs."""
    overwrite: bool = option(False, common=True, may_change=True)
    """Replace a run of the same name; it is deleted at the first report of the new one."""
    resume: bool = option(True, common=True, may_change=True)
    """Continue a run of the same name; with --resume no that is an error."""
    figures: bool = option(True, may_change=True)
    """Draw figures of the population for TensorBoard, at most once per minute, in a process of the lowest priority."""
    track: tyro.conf.UseAppendAction[tuple[str, ...]] = option(
        (),
        test=lambda names: (
            all(name in TRACKERS or names_object(name) for name in names) and len(set(names)) == len(names)
        ),
        remedy=f"{', '.join(TRACKERS)} or module:Class, each once",
        may_change=True,
    )
    """Write the curves elsewhere too: csv (tables in the run's folder), wandb, mlflow, or your own module:Class. May be
    repeated. TensorBoard files are always written."""
    train_for_frames: int = option(100_000_000, at_least=1, common=True, may_change=True)
    """Stop when every member has trained on this many emulator frames."""
    train_for_seconds: float = option(0.0, at_least=0, zero="no limit", common=True, may_change=True)
    """Stop after this many seconds."""
    stop_at_objective: float | None = option(None, may_change=True)
    """Stop when a member's objective, over a full window of --pbt.objective-episodes, is this or more. None: never."""
    final_episodes: int | None = option(None, at_least=0, zero="none", may_change=True)
    """Fresh episodes that the first four members play at the end, as `pbt-rl eval` plays them; the best one of these
    is named the best. If the number is given, up to four members without an objective since their last change play
    too. None: 20, within a tenth of the time trained and a minute, so none in a short run; none
    in serial mode. With --pbt.evaluate-episodes all members play, whatever the mode and the time trained."""
    evaluate_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Whenever every member has trained on this many more frames, save the run, and let the best member play fresh
    games beside training, as `pbt-rl eval` plays them: --final-episodes, or 20 (with tasks one of each). Their mean is
    a curve of its own in TensorBoard, `report` and `watch`."""
    evaluate_video: bool = option(False, may_change=True)
    """Film the first game of each of these evaluations for TensorBoard: half a minute, small. Needs pip install
    'pbt-rl[video]'."""
    actors: int = option(0, at_least=0, zero="planned", common=True, may_change=True)
    """Actor processes, planned from the machine's cores."""
    units_per_actor: int = option(2, at_least=1, may_change=True)
    """Vector environments per actor, which steps one while the others wait for actions."""
    envs_per_unit: int = option(0, at_least=0, zero="planned", may_change=True)
    """Environments of each policy in one unit (b)."""
    decorrelate_steps: int = option(0, at_least=0, zero="off")
    """Let each unit play random actions first, each for another number of steps below this, so that units do not run in
    phase. If all episodes have the same length, give that length."""
    actor_timeout_seconds: float = option(60.0, above=0, may_change=True)
    """Restart an actor that has work and gets nowhere for this long: no environment made, reset or stepped. (A native
    vector steps all of its environments in one call.)"""
    learner_timeout_seconds: float = option(60.0, above=0, may_change=True)
    """Replace a learner that makes no progress for this long, or for five times as long while it starts. No optimiser
    step may take longer."""
    max_actor_restarts: int = option(20, at_least=0, may_change=True)
    """End the run with an error after more restarts of actors than this within ten minutes, or of one actor in a row
    before it got anywhere."""
    save_every_seconds: float = option(
        120.0, at_least=0, zero="only at the end", common=True, may_change=True
    )
    """Save the whole run this often, under checkpoints/. `pbt-rl resume RUN` continues from the last checkpoint. A run
    is saved at its end in any case."""
    save_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Save the run, too, whenever every member has trained on this many more frames, and keep those checkpoints for
    ever, as checkpoints/at_FRAMES: `pbt-rl eval RUN --at FRAMES`."""
    keep_checkpoints: int = option(2, at_least=1, may_change=True)
    """Other checkpoints to keep: the newest ones."""
    init_from: tyro.conf.UseAppendAction[tuple[str, ...]] = option(())
    """Begin from what another run has learned: RUN[@FRAMES][:MEMBER] (default: the best member of its newest
    checkpoint) or a member's .safetensors file. Once: all members begin there. Given --num-policies times: member i
    begins at the i-th."""
    init_parts: Literal["all", "weights", "weights+normalisers"] = "all"
    """What of it. all: the optimiser's state too. Hypers are this run's own."""
    init_strict: bool = True
    """Refuse what does not fit this network. no: load what fits, such as all but the head for other actions."""
    slots: int = option(0, at_least=0, zero="all", common=True, may_change=True)
    """Policies on the devices at the same time. More members than this take turns, the least trained first; the
    others wait in host memory."""
    slot_frames: int = option(1_000_000, at_least=1, may_change=True)
    """Emulator frames of one turn, if members take turns and nothing else ends a turn."""
    controller: str = option("pbt", choices=lambda: tuple(CONTROLLERS), custom="module:Class", common=True)
    """`pbt`: population-based training. `mf-pbt`: its multi-frequency form. `ipbt`: pbt that begins again with shrunk
    weights and periods twice as long when it stagnates (needs the extra `search`). `hypertrick`, `successive-halving`,
    `hyperband`, `asha`, `random`: searches over configurations that stop the bad ones (--search). `schedule`: follow
    the schedule of a recorded run (--schedule). Or your own `module:Class` (docs/own-rules.md)."""
    controller_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for a setting of a controller of your own. May be repeated."""
    pbt: PbtConfig = field(default_factory=PbtConfig, metadata={"choices_within": RULES, "may_change": True})
    search: SearchConfig = field(default_factory=SearchConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    matchup: MatchupConfig = field(default_factory=MatchupConfig)
    hypers: Hypers = field(default_factory=Hypers)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    atari: AtariOptions = field(default_factory=AtariOptions)
    dmlab: DmlabOptions = field(default_factory=DmlabOptions)

    @property
    def searches(self) -> bool:
        """Whether the controller draws configurations and decides how far each one trains."""
        return controller_entry(self.controller).searches

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that learns; torch is imported with it. Raises ConfigError if it cannot be loaded."""
        try:
            return algorithms.load(self.algo)
        except ValueError as error:
            raise ConfigError(f"--algo {self.algo} cannot be used: {error}") from error

    def __post_init__(self) -> None:
        validate(self)
        keywords(self.env_option)
        require(
            len(self.init_from) in (0, 1, self.num_policies),
            "init-from",
            " ".join(self.init_from),
            f"give one source for all, or one for each of the {self.num_policies} members",
        )
        require(
            not self.pbt.evaluate_episodes or (not self.nodes and self.matchup.objective == "return"),
            "pbt.evaluate-episodes",
            self.pbt.evaluate_episodes,
            "members are evaluated on one machine, by their return: leave out --nodes and --matchup.objective",
        )
        require(
            bool(self.evaluate_every_frames) or not self.evaluate_video,
            "evaluate-video",
            "true",
            "it films the games of --evaluate-every-frames: give that too",
        )
        if ":" not in self.algo:  # a config may come from anybody: making it imports nothing that it names
            check_schedule_of_learning_rate(self)

    @property
    def uses_vtrace(self) -> bool:
        """Whether advantages follow the present policy (appo)."""
        return self.learner.returns == "vtrace" or (self.learner.returns == "auto" and self.mode == "async")

    @property
    def learns_single_steps(self) -> bool:
        """Whether minibatches are of single steps, and not of whole rollouts, which stay together otherwise."""
        return self.algo == "appo" and self.model.core == "none" and not self.uses_vtrace

    @property
    def env_options(self) -> EnvOptions:
        """Options that the makers of environments receive."""
        dmlab = replace(self.dmlab, background_resets=False) if self.mode == "serial" else self.dmlab
        return EnvOptions(
            atari=self.atari,
            dmlab=dmlab,
            keywords=keywords(self.env_option),
            last_action_reward=self.model.last_action_reward,
        )


def check_schedule_of_learning_rate(config: Config) -> None:
    """Check that the algorithm measures what the schedule follows; it is loaded. Raises ConfigError."""
    if config.learner.lr_schedule == "kl-adaptive":
        require(
            config.algorithm.measures_kl,
            "learner.lr-schedule",
            "kl-adaptive",
            f"{config.algo} measures no divergence: use constant or linear, or --algo appo",
        )
