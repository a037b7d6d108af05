"""Every option of a run: frozen, typed, validated when built. `pbt-rl train --help` is drawn from here.

*frames* are emulator frames (a step of Atari is 4 frames); *steps* are decisions. Budgets and periods are
counted in frames **of each member**, so they mean the same for one policy and for twenty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pbt_rl.envs.atari import AtariOptions
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Hypers


def _require(condition: bool, option: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"--{option} {value} cannot be used: {remedy}")


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: who is compared when, and how members change."""

    enabled: bool = True
    """Compare and change members. Off: independent members, all with the initial values of member 0."""
    rule: Literal["top-middle-bottom", "truncation"] = "top-middle-bottom"
    """`top-middle-bottom` (Sample Factory): the best stay, the worst copy one of the best and mutate, the others
    keep their weights and mutate. `truncation` (Jaderberg et al. 2017): only the worst change."""
    period_frames: int = 5_000_000
    """Emulator frames of each member between two comparisons (a meta-epoch)."""
    start_frames: int = 10_000_000
    """Burn-in: no comparison before every member has this many frames."""
    replace_fraction: float = 0.3
    """Share of the population that is best, and share that is worst (rounded up, at most half)."""
    mutation_rate: float = 0.15
    """Probability that one value changes when its member mutates."""
    perturb_min: float = 1.1
    """Least factor of a change (multiplied or divided)."""
    perturb_max: float = 1.5
    """Largest factor of a change."""
    replace_gap: float = 0.1
    """A member is replaced only if the donor is better by this share of the larger of the two magnitudes..."""
    replace_gap_absolute: float = 1e-6
    """...and by this much in the objective's own unit."""
    objective_episodes: int = 100
    """The objective is the mean over at most this many last episodes since the member changed."""
    min_episodes: int = 5
    """A member with fewer finished episodes since its last change waits for the next comparison."""
    tune: tuple[str, ...] = ()
    """Names of the values to tune (hypers by name, shaping as `shaping.NAME`); empty: the table's defaults
    and all shaping."""

    def __post_init__(self) -> None:
        _require(self.period_frames > 0, "pbt.period-frames", self.period_frames, "give a number above 0")
        _require(self.start_frames >= 0, "pbt.start-frames", self.start_frames, "give 0 or more")
        _require(
            0 <= self.replace_fraction <= 0.5, "pbt.replace-fraction", self.replace_fraction, "give 0 to 0.5"
        )
        _require(0 <= self.mutation_rate <= 1, "pbt.mutation-rate", self.mutation_rate, "give 0 to 1")
        _require(self.perturb_min >= 1, "pbt.perturb-min", self.perturb_min, "give a factor of at least 1")
        _require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            "give at least --pbt.perturb-min",
        )
        _require(self.replace_gap >= 0, "pbt.replace-gap", self.replace_gap, "give 0 or more")
        _require(
            self.replace_gap_absolute >= 0,
            "pbt.replace-gap-absolute",
            self.replace_gap_absolute,
            "give 0 or more",
        )
        _require(
            self.objective_episodes > 0, "pbt.objective-episodes", self.objective_episodes, "give 1 or more"
        )
        _require(self.min_episodes > 0, "pbt.min-episodes", self.min_episodes, "give 1 or more")


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
            _require(
                getattr(self, name) > 0,
                f"model.{name.replace('_', '-')}",
                getattr(self, name),
                "give 1 or more",
            )
        known = ("auto", "nature", "impala", "mlp")
        _require(
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
    """Learn values of returns divided by their running deviation, per policy."""
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
    """How several policies share a device. auto: loop on a CPU, vmap on a GPU."""
    threads: int = 0
    """CPU threads of one learner's arithmetic; 0: planned from the machine."""

    def __post_init__(self) -> None:
        for name in ("rollout", "batch", "minibatches", "epochs", "max_policy_lag"):
            _require(
                getattr(self, name) > 0,
                f"learner.{name.replace('_', '-')}",
                getattr(self, name),
                "give 1 or more",
            )
        _require(self.threads >= 0, "learner.threads", self.threads, "give 0 (automatic) or more")


@dataclass(frozen=True)
class Config:
    """Train a population of policies."""

    env: str
    """Environment as family/name, e.g. atari/pong, gym/CartPole-v1, toy/memory. See `pbt-rl envs`."""
    num_policies: int = 4
    """Members of the population."""
    algo: Literal["appo", "a3c"] = "appo"
    """appo: clipped PPO on asynchronous rollouts. a3c: n-step actor-critic with RMSProp, as in GA3C."""
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
    actor_timeout_seconds: float = 60.0
    """An actor silent for this long while it has work is taken as hung and restarted."""
    max_actor_restarts: int = 20
    """The run ends with an error after this many restarts of actors."""
    pbt: PbtConfig = field(default_factory=PbtConfig)
    hypers: Hypers = field(default_factory=Hypers)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    atari: AtariOptions = field(default_factory=AtariOptions)

    def __post_init__(self) -> None:
        _require(
            "/" in self.env, "env", repr(self.env), "write family/name, such as atari/pong; see `pbt-rl envs`"
        )
        _require(self.num_policies > 0, "num-policies", self.num_policies, "a population has 1 or more")
        _require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        _require(
            self.train_for_frames > 0, "train-for-frames", self.train_for_frames, "give a number above 0"
        )
        _require(
            self.train_for_seconds >= 0,
            "train-for-seconds",
            self.train_for_seconds,
            "give 0 (no limit) or more",
        )
        for name in ("actors", "envs_per_unit"):
            _require(
                getattr(self, name) >= 0,
                name.replace("_", "-"),
                getattr(self, name),
                "give 0 (planned) or more",
            )
        _require(
            self.units_per_actor > 0, "units-per-actor", self.units_per_actor, "give 1 or more; 2 overlap"
        )
        _require(
            self.actor_timeout_seconds > 0,
            "actor-timeout-seconds",
            self.actor_timeout_seconds,
            "give above 0",
        )
        _require(
            self.algo == "appo" or self.learner.lr_schedule != "kl-adaptive",
            "learner.lr-schedule",
            "kl-adaptive",
            "a3c measures no divergence: use constant or linear, or --algo appo",
        )
        if self.name is not None:
            _require(
                re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name) is not None,
                "name",
                repr(self.name),
                "use letters, digits, '.', '_' and '-'",
            )
