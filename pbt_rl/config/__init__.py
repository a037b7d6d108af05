"""Every option of a run: frozen, typed, validated when built. `pbt-rl train --help` is drawn from here.

*Frames* are emulator frames (a step of Atari is 4 frames); *steps* are decisions. Budgets and periods are
counted in frames **of each member**, so they mean the same for one policy and for twenty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pbt_rl.algos import registry as algorithms
from pbt_rl.algos.hypers import LearnerHypers
from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.controllers.hypers import shaping_given
from pbt_rl.controllers.options import PbtConfig, ScheduleConfig, SearchConfig
from pbt_rl.controllers.registry import controller_entry, texts
from pbt_rl.envs import registry as environments
from pbt_rl.envs.registry import EnvOptions, FamilyOptions, keywords
from pbt_rl.envs.shaping import names_of
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.declare import names_module, names_object, option, with_fields, with_groups
from pbt_rl.options.values import validate
from pbt_rl.registry import CONTROLLERS

if TYPE_CHECKING:
    from pbt_rl.algos.algorithm import Algorithm

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
OF_NAMES = "letters, digits, '.', '_' and '-', at most 200"
TRACKERS = {
    "csv": "pbt_rl.display.trackers.to_csv:CsvTracker",
    "wandb": "pbt_rl.display.trackers.to_wandb:WandbTracker",
}
"""Name -> module:Class."""


def names_run(name: str) -> bool:
    """Return whether a run may have this name."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class LearnerConfig:
    """Sampling and learning of a pack. PBT changes nothing of this; it changes hypers."""

    rollout: int = option(32, at_least=1, common=True)
    """Steps of a rollout (T); --hypers.unroll may be shorter."""
    batch: int = option(1024, at_least=1, common=True)
    """Steps of each policy in a batch (appo), rounded to whole units; a3c and what is built on it learn from as few
    units as lag allows."""
    minibatches: int = option(1, at_least=1, common=True)
    """Parts of a batch, with one optimiser update each: single steps with GAE and no memory, else whole rollouts."""
    epochs: int = option(1, at_least=1, common=True)
    """Passes over a batch (appo)."""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """Advantage estimate (appo). auto: GAE; V-trace where old rollouts have no other correction (async with
    --learner.no-proximal). No effect with a3c and what is built on it, which take n-step returns."""
    proximal: bool = True
    """Clip around the policy at the begin of a batch, whose values advantages then follow, and not around the one that
    acted (appo, async). Old rollouts cost less so."""
    normalize_advantage: bool = True
    """Normalise advantages, per policy and minibatch (appo)."""
    normalize_returns: bool = True
    """Divide returns by their running root mean square before values are learned, per policy."""
    normalize_observations: bool = False
    """Normalise numbers by running statistics, per policy: float observations, and grids that an MLP reads."""
    normalize_images: bool = False
    """Normalise images pixel by pixel, likewise: those that an encoder of ours convolves, unless the algorithm has
    losses of pixels."""
    lr_schedule: Literal["constant", "linear", "kl-adaptive"] = "constant"
    """Factor on the learning rate. linear: falls to 0 at --train-for-frames; PBT mutates the rate without it.
    kl-adaptive: follows --learner.lr-schedule-kl, and the learning rate is then not tuned."""
    lr_schedule_kl: float = option(0.01, above=0)
    """kl-adaptive: the factor is divided by 1.5 above twice this divergence and multiplied by 1.5 below half of it."""
    target_kl: float = option(0.0, at_least=0, zero="off")
    """A member learns no more from a batch once its divergence from the old policy, the mean of a minibatch, is above
    1.5 times this (appo; Stable-Baselines3's rule). It saves members whose rate is too high."""
    max_policy_lag: int = option(1000, at_least=1)
    """Discard (and count) rollouts that began more than this many optimiser steps ago, of --learner.epochs x
    --learner.minibatches in a batch. The plan keeps rollouts younger than half of it, and than what harms."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Arithmetic of encoder and core; master weights are float32. auto: bf16 if the device is faster at it."""
    packing: Literal["auto", "loop", "vmap", "bmm"] = option("auto", may_change=True)
    """How the policies of a device are computed: one after another (loop), all in one call (vmap), or that with images
    as matrix products (bmm). auto: on a CPU vmap for four or more policies that see no images through a
    built-in encoder and learn from fewer than 4,096 steps at once, else loop; on a GPU the fastest in a short trial.
    With a part of the network of your own: loop."""
    threads: int = option(0, at_least=0, zero="planned", may_change=True)
    """CPU threads of one learner's arithmetic."""


Scheme = Literal["self", "round-robin", "random", "prioritised"]


@dataclass(frozen=True)
class MatchupConfig:
    """Matchups in environments of several agents, and how their outcome ranks members."""

    scheme: Scheme = "round-robin"
    """`self`: one member plays all seats of an environment. `round-robin`: all members play each other equally often.
    `random`: opponents are drawn uniformly. `prioritised`: opponents that a member beats least are drawn most (Vinyals
    et al. 2019). Opponents are members of the same device; matchups change with every comparison."""
    objective: Literal["return", "win-rate", "elo"] = "return"
    """Objective that ranks members. `return`: the returns of their seats. `win-rate`: share of opponents beaten (a draw
    counts half). `elo`: a rating from all games between members."""
    power: float = option(2.0, at_least=0)
    """prioritised: exponent p of the weight (1 - win rate)^p; 0 weighs all alike."""
    elo_k: float = option(8.0, above=0)
    """elo: the most points by which one game moves a rating."""

    def __post_init__(self) -> None:
        why = "with --matchup.scheme self members never play each other: use another scheme, or the objective return"
        require(self.scheme != "self" or self.objective == "return", "matchup.objective", self.objective, why)


@dataclass(frozen=True)
@with_fields(*(entry.hypers for entry in algorithms.ALGORITHMS.values() if entry.hypers is not None))
class Hypers(LearnerHypers):
    """Hyperparameters that PBT may change: the initial values of member 0.

    Each shows what is legal, and the bounds that PBT keeps to if it tunes the value; --pbt.tune and --pbt.prior give
    others.
    """

    OWN: ClassVar[type | None] = None
    """Dataclass of the hypers of the user's own algorithm that stand behind them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes, which import the user's own dataclass and join it to this one again."""
        return _joined, (self.OWN, {f.name: getattr(self, f.name) for f in fields(self)})


@cache
def hypers_of(algo: str) -> type[Hypers]:
    """Return the hypers of a run with this algorithm: those of all registered ones, and those of one of the user's own.

    One of the user's own is imported for that. Raises ConfigError if it cannot be loaded.
    """
    if ":" not in algo:
        return Hypers
    own = load_algorithm(algo).hypers
    return Hypers if own is None else _more_hypers(own)


def _joined(own: type | None, values: Mapping[str, Any]) -> Hypers:
    """Unpickle hypers."""
    return (Hypers if own is None else _more_hypers(own))(**values)


@cache
def _more_hypers(own: type) -> type[Hypers]:
    both = {f.name for f in fields(own)} & {f.name for f in fields(Hypers)}
    if both:
        raise ConfigError(
            f"{own.__qualname__} declares {', '.join(sorted(both))}, which other algorithms have"
        )
    body: type[Hypers] = with_fields(own)(
        type(Hypers.__name__, (Hypers,), {"__doc__": Hypers.__doc__, "OWN": own})
    )
    return dataclass(frozen=True)(body)


@cache
def undeclared_hypers(more: tuple[tuple[str, type], ...]) -> type[Hypers]:
    """Return hypers with more values, of which nothing is known: those of an algorithm that is not imported.

    more: (name, int or float) each.
    """
    return make_dataclass(Hypers.__name__, more, bases=(Hypers,), frozen=True, kw_only=True)


def number_of_controls(control: float, population: int) -> int:
    """Return the members of the control group. control: their number, or below 1 a share of the population."""
    return math.ceil(control * population) if control < 1 else int(control)


def _groups() -> dict[str, type]:
    """Return the groups of options that families and algorithms own, by name."""
    owned = [family.options for family in environments.FAMILIES.values()]
    owned += [entry.options for entry in algorithms.ALGORITHMS.values()]
    groups: dict[str, type] = {}
    for name, kind in (item for options in owned for item in options.items()):
        assert groups.setdefault(name, kind) is kind, f"two owners declare the group {name}"
    return groups


def _names_cluster(nodes: str) -> bool:
    """Whether --nodes names a cluster by its address: what its processes answer is unpickled."""
    return ":" in nodes and nodes != "ray:auto"


def _names_module_or_path(env: str) -> bool:
    """Whether an environment's id names a module, also of Gymnasium's `gym/module:Id`, or a file outside its engine."""
    return ":" in env or ".." in env or "//" in env or env.startswith("/")


@dataclass(frozen=True)
@with_groups(_groups())
class Config:
    """Train a population of policies."""

    env: str = option(common=True, leads_out=_names_module_or_path)
    """Environment as family/name, such as atari/pong, gym/CartPole-v1 or toy/memory, or your own as module:factory.
    `pbt-rl envs` lists them."""
    env_option: tuple[str, ...] = option((), pairs=True, common=True)
    """key=value for the maker of your own environment or of one of a family, such as gym/. May be
    repeated. A value that is not JSON is a string."""
    shaping: tuple[str, ...] = option((), pairs=True, by_name=True, common=True, may_change=True)
    """NAME=VALUE, or as --shaping.NAME VALUE: another default of a value of the environment's reward shaping. Members
    begin there; it stays so where PBT does not tune it (--pbt.tune). If it is changed when a run is resumed, every
    member has it from there on. May be repeated."""
    num_policies: int = option(4, at_least=1, at_most=100_000, common=True)
    """Members of the population."""
    control: float = option(0.0, at_least=0, at_most=100_000, zero="none", common=True)
    """A control group, to see whether the population does better than its draws left alone: so many more members, or
    below 1 that share of --num-policies (rounded up). Control i begins as member i does and trains on as many frames;
    it is never compared, changed or copied. All members play the final games, and `report` compares both groups."""
    algo: str = option(
        "appo", choices=algorithms.names, texts=algorithms.texts, custom="module:OBJECT", common=True
    )
    """{each} Or your own `module:OBJECT`, an Algorithm."""
    mode: Literal["async", "sync", "serial"] = option("async", common=True)
    """async: acting never waits for learning. sync: sample, then learn. serial: sync in one process, bit-reproducible
    under --seed."""
    devices: str = option("auto", common=True, may_change=True)
    """Devices, one learner process each: auto, or a comma-separated list such as `cpu,cpu` or `cuda:0,cuda:1`."""
    seed: int = option(0, at_least=0, common=True)
    """Seed of weights, actions, environments and controller."""
    name: str | None = option(
        None,
        test=names_run,
        remedy=OF_NAMES,
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
    train_for_frames: int = option(100_000_000, at_least=1, common=True, may_change=True)
    """Stop when every member has trained on this many emulator frames."""
    train_for_seconds: float = option(0.0, at_least=0, zero="no limit", common=True, may_change=True)
    """Stop after this many seconds."""
    hours: float | None = option(None, above=0, at_most=10_000, common=True)
    """Train for so many hours (0.5 is allowed), and compare members thirty times in them (--pbt.ready timed). What you
    give yourself stays as you give it."""
    stop_at_objective: float | None = option(None, may_change=True, common=True)
    """Stop when a member's objective, over a full window of --pbt.objective-episodes, is this or more. None: never."""
    actors: int = option(0, at_least=0, zero="planned", may_change=True)
    """Actor processes, planned from the machine's cores."""
    units_per_actor: int = option(2, at_least=1, may_change=True)
    """Vector environments per actor, which steps one while the others wait for actions."""
    envs_per_unit: int = option(0, at_least=0, zero="planned", may_change=True, common=True)
    """Environments of each policy in one unit (b)."""
    random_phases: bool = True
    """Cut the first episode of each environment short, at a step drawn up to its time limit, so that environments do
    not run in phase. It counts for no objective. For environments of Gymnasium with a `TimeLimit` and for simulators
    that count the steps of their episodes; others begin together."""
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
    final_episodes: int | None = option(None, at_least=0, zero="none", may_change=True, common=True)
    """Fresh episodes that the first four members play at the end, as `pbt-rl eval` plays them; the best one of these
    is named the best. If the number is given, up to four members without an objective since their last change play
    too. None: 20, as far as they end within a tenth of the time trained and a minute; one of each is waited for, a
    minute at most. None in a run of less than a minute, and in serial mode. With --pbt.evaluate-episodes or --control
    all members play, for at most ten minutes, whatever the mode and the time trained; so long may games of a given
    number take, too."""
    evaluate_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Whenever every member has trained on this many more frames, save the run, and let the best member play fresh
    games beside training, as `pbt-rl eval` plays them: --final-episodes, or 20 (with tasks one of each). Their mean is
    a curve of its own in TensorBoard, `report` and `watch`."""
    evaluate_video: bool = option(False, may_change=True)
    """Film the first game of each of these evaluations for TensorBoard: half a minute, small. Needs pip install
    'pbt-rl[video]'."""
    init_from: tuple[str, ...] = option((), repeated=True)
    """Begin from what another run has learned: RUN[@FRAMES][:MEMBER] (default: the best member of its newest
    checkpoint) or a member's .safetensors file. Once: all members begin there. Given --num-policies times: member i
    begins at the i-th."""
    init_parts: Literal["all", "weights", "weights+normalisers"] = "all"
    """What of it. all: the optimiser's state too. Hypers are this run's own."""
    init_strict: bool = True
    """Refuse what does not fit this network. no: load what fits, such as all but the head for other actions."""
    track: tuple[str, ...] = option(
        (),
        repeated=True,
        test=lambda names: (
            all(name in TRACKERS or names_object(name) for name in names) and len(set(names)) == len(names)
        ),
        remedy=f"{', '.join(TRACKERS)} or module:Class, each once",
        common=True,
        may_change=True,
        leads_out=names_module,
    )
    """Write the curves elsewhere too: csv (tables in the run's folder), wandb, or your own module:Class. May be
    repeated. TensorBoard files are always written."""
    slots: int = option(0, at_least=0, zero="all", common=True, may_change=True)
    """Policies on the devices at the same time. More members than this take turns, the least trained first; the
    others wait in host memory."""
    slot_frames: int = option(1_000_000, at_least=1, may_change=True)
    """Emulator frames of one turn, if members take turns and nothing else ends a turn."""
    rows: int = option(
        0, at_least=0, zero="--learner.batch / --learner.rollout", may_change=True, common=True
    )
    """Rows of each policy in a simulator on the device (see docs/reference/simulators.md); a batch is their rollout."""
    nodes: str = option(
        "",
        test=lambda text: re.fullmatch(r"(ray(:\S+)?)?", text) is not None,
        remedy="`ray` for a cluster of this machine alone, or `ray:ADDRESS`",
        may_change=True,
        leads_out=_names_cluster,
    )
    """Train over the nodes of a Ray cluster, one pack per GPU or per node without one: `ray:auto`, `ray:HOST:PORT`, or
    `ray`, which starts a cluster of this machine alone. With --mode serial there is one process per pack. Needs pip
    install 'pbt-rl[ray]'. docs/reference/nodes.md."""
    copy_seconds: float = option(30.0, above=0, may_change=True)
    """With --nodes: this process has copies of all members that are at most this old; if a node is lost, its members go
    on from there."""
    controller: str = option(
        "pbt", choices=lambda: tuple(CONTROLLERS), texts=texts, custom="module:Class", common=True
    )
    """{each} Or your own `module:Class` (docs/reference/rules.md)."""
    controller_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE for a setting of a controller of your own. May be repeated."""
    pbt: PbtConfig = field(default_factory=PbtConfig, metadata={"may_change": True})
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    hypers: Hypers = field(default_factory=Hypers)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    matchup: MatchupConfig = field(default_factory=MatchupConfig)

    def groups(self) -> Iterator[Any]:
        """Yield all groups of options."""
        return filter(is_dataclass, (getattr(self, f.name) for f in fields(self)))

    def group(self, kind: type[T]) -> T:
        """Return the group of options of this class."""
        return next(group for group in self.groups() if isinstance(group, kind))

    def with_declared_hypers(self) -> Config:
        """Return the config with all that is known of the hypers of its algorithm, which is imported.

        Raises ConfigError if it cannot be, and for values that it does not have or cannot bear.
        """
        kind = hypers_of(self.algo)
        if type(self.hypers) is kind:
            return self
        values = {f.name: getattr(self.hypers, f.name) for f in fields(self.hypers)}
        unknown = values.keys() - {f.name for f in fields(kind)}
        if unknown:
            raise ConfigError(f"--algo {self.algo} has no hyper {', '.join(sorted(unknown))}")
        return replace(self, hypers=kind(**values))

    @property
    def controls(self) -> int:
        """Members of the control group; their ids follow those of the population."""
        return number_of_controls(self.control, self.num_policies)

    @property
    def members(self) -> int:
        """All that train."""
        return self.num_policies + self.controls

    @property
    def searches(self) -> bool:
        """Whether the controller draws configurations and decides how far each one trains."""
        return controller_entry(self.controller).searches

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that learns; torch is imported with it. Raises ConfigError if it cannot be loaded."""
        return load_algorithm(self.algo)

    def __post_init__(self) -> None:
        validate(self)
        keywords(self.env_option)
        shaping_given(self.shaping)
        self._check_together()
        if ":" not in self.algo:  # a config may come from anybody: making it imports nothing that it names
            check_divergence(self)

    def _check_together(self) -> None:
        """Raise ConfigError for options that do not fit each other."""
        require(
            self.control < 1 or self.control == int(self.control),
            "control",
            self.control,
            "give a number of members, or a share of --num-policies below 1",
        )
        require(
            bool(self.evaluate_every_frames) or not self.evaluate_video,
            "evaluate-video",
            "true",
            "it films the games of --evaluate-every-frames: give that too",
        )
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

    @property
    def uses_vtrace(self) -> bool:
        """Whether advantages follow the present policy (appo)."""
        uncorrected = self.mode == "async" and not self.clips_around_batch
        return self.learner.returns == "vtrace" or (self.learner.returns == "auto" and uncorrected)

    def start_of(self, member: int) -> int:
        """Return the member that this one begins as: control i as member i, any other as itself."""
        return member - self.num_policies if member >= self.num_policies else member

    def initial_deviation(self, member: int) -> float:
        """Return the action standard deviation that a member begins with, in the unit of the option."""
        stds = self.model.initial_deviation
        return stds[self.start_of(member) % len(stds)]

    @property
    def clips_around_batch(self) -> bool:
        """Whether what a loss calls old is of the begin of a batch, since acting was earlier."""
        return self.learner.proximal and self.mode == "async" and self.algorithm.proximal

    @property
    def optimizer_steps_of_batch(self) -> int:
        """Optimiser steps that a policy takes on each batch."""
        return 1 if self.algorithm.learns_per_unit else self.learner.epochs * self.learner.minibatches

    @property
    def learns_single_steps(self) -> bool:
        """Whether minibatches are of single steps, and not of whole rollouts, which stay together otherwise."""
        return self.algorithm.learns_single_steps and self.model.core == "none" and not self.uses_vtrace

    @property
    def env_options(self) -> EnvOptions:
        """Options that the makers of environments receive."""
        families = tuple(group for group in self.groups() if isinstance(group, FamilyOptions))
        if self.mode == "serial":
            families = tuple(group.reproducible() for group in families)
        return EnvOptions(
            families,
            keywords=keywords(self.env_option),
            last_action_reward=self.model.last_action_reward,
            critic_only=names_of(self.model.critic_only or ""),
        )


def load_algorithm(name: str) -> Algorithm:
    """Import an algorithm; torch is imported with it. Raises ConfigError if it cannot be loaded."""
    try:
        return algorithms.load(name)
    except ValueError as error:
        raise ConfigError(f"--algo {name} cannot be used: {error}") from error


def check_divergence(config: Config) -> None:
    """Check that what follows a divergence can be measured; the algorithm is loaded for that. Raises ConfigError."""
    learner = config.learner
    adapts, stops = learner.lr_schedule == "kl-adaptive", learner.target_kl > 0
    for used, name, value, instead in (
        (adapts, "learner.lr-schedule", learner.lr_schedule, "use constant or linear"),
        (stops, "learner.target-kl", learner.target_kl, "leave it out"),
    ):
        if used:
            remedy = f"{config.algo} measures no divergence: {instead}, or --algo appo"
            require(config.algorithm.measures_kl, name, value, remedy)
            remedy = f"around the policy that acted a divergence is mostly of age: {instead}, or --learner.proximal"
            require(config.mode != "async" or config.clips_around_batch, name, value, remedy)
