"""Every option of a run: frozen, typed, validated when built. `pbt-rl train --help` is drawn from here.

*frames* are emulator frames (a step of Atari is 4 frames); *steps* are decisions. Budgets and periods are
counted in frames **of each member**, so they mean the same for one policy and for twenty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from pbt_rl.algos import registry as algorithms
from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.dmlab.options import DmlabOptions
from pbt_rl.envs.registry import EnvOptions, keywords
from pbt_rl.errors import ConfigError, require
from pbt_rl.pbt.hypers import Hypers
from pbt_rl.pbt.options import PbtConfig
from pbt_rl.pbt.search.options import ReplayConfig, SearchConfig
from pbt_rl.population.matchmaking import MatchupConfig

if TYPE_CHECKING:
    from pbt_rl.algos.algorithm import Algorithm


@dataclass(frozen=True)
class ModelConfig:
    """The network of every policy."""

    encoder: str = "auto"
    """`auto` (Nature CNN for images, MLP for vectors), `nature`, `impala`, `mlp`, or your own: `module:factory`,
    called with the observation's spec, returning an nn.Module."""
    hidden: int = 512
    """Width of the encoder's output."""
    layers: int = 2
    """Hidden layers of an MLP encoder."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core after the encoder."""
    core_size: int = 256
    """Width of the recurrent core."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "core_size"):
            require(
                getattr(self, name) > 0,
                f"model.{name.replace('_', '-')}",
                getattr(self, name),
                "give 1 or more",
            )
        known = ("auto", "nature", "impala", "mlp")
        require(
            self.encoder in known or ":" in self.encoder,
            "model.encoder",
            self.encoder,
            f"use one of {', '.join(known)}, or module:factory for your own",
        )


@dataclass(frozen=True)
class LearnerConfig:
    """How a pack samples and learns. What PBT may change is under --hypers."""

    rollout: int = 32
    """Steps of a rollout (T); --hypers.unroll may be shorter."""
    batch: int = 1024
    """Steps of each policy in a batch (appo); rounded to whole units of environments. a3c learns from every unit."""
    minibatches: int = 1
    """Parts of a batch, one optimiser update each; whole rollouts stay together."""
    epochs: int = 1
    """Passes over a batch (appo)."""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """Advantage estimate. auto: V-trace when async (it corrects the policy lag), else GAE."""
    normalize_advantage: bool = True
    """Normalise advantages per policy and minibatch (appo)."""
    normalize_returns: bool = True
    """Learn values of returns divided by their running root mean square, per policy."""
    normalize_observations: bool = False
    """Normalise float observations by running statistics, per policy."""
    lr_schedule: Literal["constant", "linear", "kl-adaptive"] = "constant"
    """Factor on the learning rate; the value that PBT mutates is the base. linear: to 0 at --train-for-frames."""
    kl_target: float = 0.01
    """kl-adaptive: factor is divided by 1.5 above twice this divergence, multiplied below half of it."""
    max_policy_lag: int = 16
    """Rollouts whose first step was acted more than this many updates ago are discarded and counted."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Arithmetic of encoder and core; master weights are float32. auto: bf16 where the device is fast at it."""
    packing: Literal["auto", "loop", "vmap"] = "auto"
    """How several policies share a device: one after the other, or all in one call. auto: vmap on a GPU, and on a CPU
    for four policies or more that see no images, by an encoder of ours; else loop."""
    threads: int = 0
    """CPU threads of one learner's arithmetic; 0: planned from the machine."""

    def __post_init__(self) -> None:
        for name in ("rollout", "batch", "minibatches", "epochs", "max_policy_lag"):
            require(
                getattr(self, name) > 0,
                f"learner.{name.replace('_', '-')}",
                getattr(self, name),
                "give 1 or more",
            )
        require(self.threads >= 0, "learner.threads", self.threads, "give 0 (automatic) or more")


@dataclass(frozen=True)
class Config:
    """Train a population of policies."""

    env: str
    """Environment as family/name, e.g. atari/pong, gym/CartPole-v1, toy/memory, or module:factory for your own.
    See `pbt-rl envs`."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """key=value for the maker of an environment of your own or of gym/, or a setting of a level of dmlab/; repeat it
    for more. Values are JSON where they can be, else strings."""
    num_policies: int = 4
    """Members of the population."""
    algo: str = "appo"
    """appo: clipped PPO on asynchronous rollouts. a3c: n-step actor-critic with RMSProp, as in GA3C. Or your own:
    `module:OBJECT`, an Algorithm."""
    mode: Literal["async", "sync", "serial"] = "async"
    """async: acting never waits for learning. sync: sample, then learn. serial: sync in one process,
    bit-reproducible under --seed."""
    devices: str = "auto"
    """auto, or a comma-separated list such as cpu, cpu,cpu, cuda:0,cuda:1. One learner process each."""
    seed: int = 0
    """Seed of weights, actions, environments and controller."""
    name: str | None = None
    """Name of the run and of its folder; default: made from the environment and the time."""
    out: Path = Path("runs")
    """Folder that holds the runs."""
    overwrite: bool = False
    """Delete an existing run of the same name first."""
    figures: bool = True
    """Draw figures of the population for TensorBoard, at most once a minute, by a process of the lowest priority."""
    train_for_frames: int = 100_000_000
    """Stop when every member has trained on this many emulator frames."""
    train_for_seconds: float = 0.0
    """Stop after this many seconds; 0: no limit."""
    actors: int = 0
    """Actor processes; 0: planned from the machine's cores."""
    units_per_actor: int = 2
    """Vector environments of an actor: it steps one while the others wait for actions."""
    envs_per_unit: int = 0
    """Environments of each policy in one unit (b); 0: planned."""
    decorrelate_steps: int = 0
    """Units start apart from each other: each plays random actions first, from none up to almost this many steps.
    Where all episodes last equally long, give that length; 0: all start together."""
    actor_timeout_seconds: float = 60.0
    """An actor silent for this long while it has work is taken as hung and restarted."""
    max_actor_restarts: int = 20
    """The run ends with an error after this many restarts of actors."""
    save_every_frames: int = 0
    """Save the weights of the best member each time that every member has trained on so many more frames, under
    checkpoints/at_FRAMES; 0: at the end only. `pbt-rl eval RUN --against RUN@FRAMES` plays against them."""
    resident: int = 0
    """Policies held on the devices at once; 0: all. Where there are more members than this, they take turns,
    the least trained first; a member that waits is kept in host memory."""
    turn_frames: int = 1_000_000
    """Emulator frames of one turn of a member, where members take turns and nothing else ends it."""
    controller: Literal[
        "pbt", "mf-pbt", "hypertrick", "successive-halving", "hyperband", "random", "replay"
    ] = "pbt"
    """Who decides: population-based training (--pbt), its multi-frequency form (--pbt), a search over
    configurations that gives up the bad ones (--search), or the schedule of a recorded run (--replay)."""
    pbt: PbtConfig = field(default_factory=PbtConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    matchup: MatchupConfig = field(default_factory=MatchupConfig)
    hypers: Hypers = field(default_factory=Hypers)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    atari: AtariOptions = field(default_factory=AtariOptions)
    dmlab: DmlabOptions = field(default_factory=DmlabOptions)

    @property
    def searches(self) -> bool:
        """The controller draws configurations and gives them up; it says how far each may train."""
        return self.controller in ("hypertrick", "successive-halving", "hyperband", "random")

    def __post_init__(self) -> None:
        keywords(self.env_option)
        require(self.num_policies > 0, "num-policies", self.num_policies, "a population has 1 or more")
        require(self.resident >= 0, "resident", self.resident, "give 0 (all) or more")
        require(self.turn_frames > 0, "turn-frames", self.turn_frames, "give a number above 0")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(self.train_for_frames > 0, "train-for-frames", self.train_for_frames, "give a number above 0")
        require(
            self.train_for_seconds >= 0,
            "train-for-seconds",
            self.train_for_seconds,
            "give 0 (no limit) or more",
        )
        require(
            self.decorrelate_steps >= 0, "decorrelate-steps", self.decorrelate_steps, "give 0 (off) or more"
        )
        require(
            self.save_every_frames >= 0, "save-every-frames", self.save_every_frames, "give 0 (never) or more"
        )
        for name in ("actors", "envs_per_unit"):
            require(
                getattr(self, name) >= 0,
                name.replace("_", "-"),
                getattr(self, name),
                "give 0 (planned) or more",
            )
        require(
            self.units_per_actor > 0, "units-per-actor", self.units_per_actor, "give 1 or more; 2 overlap"
        )
        require(
            self.actor_timeout_seconds > 0,
            "actor-timeout-seconds",
            self.actor_timeout_seconds,
            "give above 0",
        )
        require(
            algorithms.is_known(self.algo),
            "algo",
            self.algo,
            f"use one of {', '.join(algorithms.names())}, or module:OBJECT for your own",
        )
        if self.learner.lr_schedule == "kl-adaptive":
            require(
                self.algorithm.measures_kl,
                "learner.lr-schedule",
                "kl-adaptive",
                f"{self.algo} measures no divergence: use constant or linear, or --algo appo",
            )
        if self.name is not None:
            require(
                re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name) is not None,
                "name",
                repr(self.name),
                "use letters, digits, '.', '_' and '-'",
            )

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, imported with torch when it is first used. Raises ConfigError if it cannot be loaded."""
        try:
            return algorithms.load(self.algo)
        except ValueError as error:
            raise ConfigError(f"--algo: {error}") from error

    @property
    def env_options(self) -> EnvOptions:
        """What the makers of environments are told."""
        dmlab = replace(self.dmlab, background_resets=False) if self.mode == "serial" else self.dmlab
        return EnvOptions(atari=self.atari, dmlab=dmlab, keywords=keywords(self.env_option))
