"""Options of a run: frozen dataclasses. Building a `Config` checks its values.

`pbt-rl train --help` prints the docstrings of groups and fields.

*Frames* are emulator frames (an Atari step is 4 frames); *steps* are decisions. Budgets and periods in frames are
**per member**. Therefore, their meaning does not depend on the population size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pbt_rl.algos import lookup as algorithms
from pbt_rl.algos.hypers import LearnerHypers
from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.controllers.hypers import shaping_given
from pbt_rl.controllers.lookup import controller_entry, texts
from pbt_rl.controllers.options import PbtConfig, ScheduleConfig, SearchConfig
from pbt_rl.envs import lookup as environments
from pbt_rl.envs.lookup import EnvOptions, FamilyOptions, keywords
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
"""Value of --track -> module:Class of the tracker."""


def names_run(name: str) -> bool:
    """True if a text is a valid name of a run."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class LearnerConfig:
    """Settings of rollouts, batches and optimisation. PBT never tunes these options. PBT may tune --hypers options."""

    rollout: int = option(32, at_least=1, common=True)
    """Steps per rollout (T). Gradients may flow through fewer steps (--hypers.unroll)."""
    batch: int = option(1024, at_least=1, common=True)
    """Batch size in steps per policy (appo), rounded to whole vector envs. a3c, fun and unreal usually take one
    optimiser step per rollout of a vector env instead."""
    minibatches: int = option(1, at_least=1, common=True)
    """Minibatches per batch, with one optimiser step each (appo). Minibatches contain shuffled single steps if
    advantages use GAE and the network has no recurrent core. Otherwise, minibatches contain complete rollouts."""
    epochs: int = option(1, at_least=1, common=True)
    """Passes over a batch in one update (appo)."""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """Advantage estimator (appo). auto: V-trace for --mode async with --learner.no-proximal, otherwise GAE. a3c, fun
    and unreal use n-step returns."""
    proximal: bool = True
    """Clip around the policy before the update instead of the behaviour policy (appo, --mode async). Advantages then
    use the value estimates before the update, too. Learning tolerates older rollouts with this option."""
    normalize_advantage: bool = True
    """Normalise advantages, per policy and minibatch (appo)."""
    normalize_returns: bool = True
    """Divide returns by their running root mean square before the value loss, per policy."""
    normalize_observations: bool = False
    """Normalise float observations (except the last action and reward) by running statistics, per policy. Grids are
    normalised, too, with --model.encoder mlp, but not with unreal."""
    normalize_images: bool = False
    """Normalise each pixel of an image by running statistics, per policy. Only images that a built-in CNN encodes are
    normalised, and only if the algorithm has no pixel losses."""
    lr_schedule: Literal["constant", "linear", "kl-adaptive"] = "constant"
    """Schedule of a factor that multiplies the learning rate. PBT mutates the learning rate without this factor.
    linear: decay to 0 at --train-for-frames or --train-for-seconds. kl-adaptive: keep the KL divergence near
    --learner.lr-schedule-kl; PBT then does not tune the learning rate."""
    lr_schedule_kl: float = option(0.01, above=0)
    """Target KL divergence (--learner.lr-schedule kl-adaptive). The factor is divided by 1.5 if the KL divergence is
    above twice the target, and multiplied by 1.5 if the divergence is below half the target."""
    target_kl: float = option(0.0, at_least=0, zero="off")
    """Stop an update when the mean KL divergence of a minibatch to the policy before the update exceeds 1.5 times this
    value (appo; rule of Stable-Baselines3). This limit protects members with a too high learning rate."""
    max_policy_lag: int = option(1000, at_least=1)
    """Discard and count rollouts that began more than this many optimiser steps ago. A batch takes --learner.epochs x
    --learner.minibatches optimiser steps. Number and size of vector envs are planned for rollouts of at most half this
    age."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Precision of encoder and core. Master weights are float32. auto: bf16 for image observations if the device is
    faster with bf16; otherwise float32."""
    packing: Literal["auto", "loop", "vmap", "bmm", "streams"] = option("auto", may_change=True)
    """Computation of the policies of a device. loop: one policy after another. vmap: all policies in one call. bmm: one
    call, with convolutions as matrix products. streams: all policies at the same time, each on a separate CUDA stream
    (mode async). auto with custom network modules: loop. auto on a GPU: the fastest packing in a short trial (--mode
    serial: no trial). auto on a CPU: vmap for at least three policies without image observations and with fewer than
    4,096 steps per optimiser step; otherwise loop."""
    threads: int = option(0, at_least=0, zero="planned", may_change=True)
    """CPU threads per learner."""


Scheme = Literal["self", "round-robin", "random", "prioritised"]


@dataclass(frozen=True)
class MatchupConfig:
    """Matchups in multi-agent environments, and the objective computed from them."""

    scheme: Scheme = "round-robin"
    """Choice of opponents. `self`: one member controls all agents of an environment. `round-robin`: all members play
    each other about equally often. `random`: opponents are drawn uniformly. `prioritised`: a member plays more often
    against opponents against which it has a low win rate (Vinyals et al. 2019). All opponents are on the same device.
    Matchups change after each comparison, except with `self`."""
    objective: Literal["return", "win-rate", "elo"] = "return"
    """Objective that ranks members. `return`: mean episode objective (by default the return) of a member's agents.
    `win-rate`: share of opponents with a lower score (equal scores count half), mean over games. `elo`: Elo rating from
    games between members."""
    power: float = option(2.0, at_least=0)
    """Exponent p of an opponent's weight, max(1 - win rate, 0.05)^p (--matchup.scheme prioritised). 0: equal
    weights."""
    elo_k: float = option(8.0, above=0)
    """K-factor: maximum change of a rating per game and agent (--matchup.objective elo)."""

    def __post_init__(self) -> None:
        why = "with --matchup.scheme self, members never play each other: use another scheme, or the objective return"
        require(self.scheme != "self" or self.objective == "return", "matchup.objective", self.objective, why)


@dataclass(frozen=True)
@with_fields(*(entry.hypers for entry in algorithms.ALGORITHMS.values() if entry.hypers is not None))
class Hypers(LearnerHypers):
    """Hyperparameters that PBT may tune. An option sets the start value of member 0.

    If a hyper is not tuned, its option sets the value of all members. Each option lists its legal range and the default
    bounds of mutations. Change the bounds with --pbt.tune, and the start values with --pbt.prior.
    """

    OWN: ClassVar[type | None] = None
    """Dataclass of a custom algorithm's hypers, if any. The fields of this dataclass follow the built-in fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the custom dataclass and the values, because a class with custom fields cannot be imported."""
        return _joined, (self.OWN, {f.name: getattr(self, f.name) for f in fields(self)})


@cache
def hypers_of(algo: str) -> type[Hypers]:
    """Return the dataclass with all built-in hypers, and with the hypers of `algo` if it is a custom algorithm.

    A custom algorithm is imported. Raises ConfigError if the import fails, or if the algorithm declares a hyper with
    the name of a built-in hyper.
    """
    return _more_hypers(load_algorithm(algo).hypers) if ":" in algo else Hypers


def _joined(own: type | None, values: Mapping[str, Any]) -> Hypers:
    """Unpickle hypers; see `Hypers.__reduce__`."""
    return _more_hypers(own)(**values)


@cache
def _more_hypers(own: type | None) -> type[Hypers]:
    if own is None:
        return Hypers
    both = {f.name for f in fields(own)} & {f.name for f in fields(Hypers)}
    if both:
        raise ConfigError(
            f"{own.__qualname__} declares built-in hypers ({', '.join(sorted(both))}): use other names"
        )
    body: type[Hypers] = with_fields(own)(
        type(Hypers.__name__, (Hypers,), {"__doc__": Hypers.__doc__, "OWN": own})
    )
    return dataclass(frozen=True)(body)


@cache
def undeclared_hypers(more: tuple[tuple[str, type], ...]) -> type[Hypers]:
    """Return a hypers class with additional fields, for an algorithm that is not imported.

    more: pairs (name, type of the values). The type is int or float.
    """
    return make_dataclass(Hypers.__name__, more, bases=(Hypers,), frozen=True, kw_only=True)


def number_of_controls(control: float, population: int) -> int:
    """Return the size of the control group.

    control: number of members. A number below 1 is a share of the population, rounded up to whole members.
    """
    # Rounded first, because 0.07 * 100 is above 7.
    return math.ceil(round(control * population, 9)) if control < 1 else int(control)


def _groups() -> dict[str, type]:
    """Return the option groups of environment families and algorithms, by name."""
    owned = [family.options for family in environments.FAMILIES.values()]
    owned += [entry.options for entry in algorithms.ALGORITHMS.values()]
    groups: dict[str, type] = {}
    for name, kind in (item for options in owned for item in options.items()):
        assert groups.setdefault(name, kind) is kind, f"two owners declare the group {name}"
    return groups


def _names_cluster(nodes: str) -> bool:
    """True if --nodes contains the address of a cluster, other than `ray:auto`.

    The user must trust the cluster, because pbt_rl unpickles the cluster's replies.
    """
    return ":" in nodes and nodes != "ray:auto"


def _names_module_or_path(env: str) -> bool:
    """True if an id contains a module (`module:factory`, `gym/module:Id`), an absolute path or a path with `..`."""
    return ":" in env or ".." in env or "//" in env or env.startswith("/")


@dataclass(frozen=True)
@with_groups(_groups())
class Config:
    """Options of a run. Raises ConfigError for values that are not allowed or conflict with each other."""

    env: str = option(common=True, is_external=_names_module_or_path)
    """Environment as family/name (atari/pong, gym/CartPole-v1, toy/memory), or a custom environment as module:factory.
    `pbt-rl envs` lists the environments."""
    env_option: tuple[str, ...] = option((), pairs=True, common=True)
    """KEY=VALUE: keyword argument of the environment's factory (custom environments, and families such as gym/). A
    VALUE is JSON, a Python literal, a number such as 5M, a word such as yes or none, or a string."""
    shaping: tuple[str, ...] = option((), pairs=True, by_name=True, common=True, may_change=True)
    """NAME=VALUE, or --shaping.NAME VALUE: initial value of a reward shaping weight of the environment. The weight
    stays constant unless PBT tunes it (--pbt.tune). A new value for a resumed run applies to all members."""
    num_policies: int = option(4, at_least=1, at_most=100_000, common=True)
    """Members of the population."""
    control: float = option(0.0, at_least=0, at_most=100_000, zero="none", common=True)
    """Size of a control group, whose members PBT never compares, changes or copies. From 1: number of additional
    members. Below 1: share of --num-policies (rounded up). The i-th member of the control group starts with the values
    of member i and has the budget of member i. If the group is larger than the population, values of the others are
    sampled. In the final evaluation, all members play. `report` compares the control group with the population."""
    algo: str = option(
        "appo", choices=algorithms.names, texts=algorithms.texts, custom="module:OBJECT", common=True
    )
    """{each} `module:OBJECT`: a custom Algorithm."""
    mode: Literal["async", "sync", "serial"] = option("async", common=True)
    """async: sampling and learning run in parallel. sync: sampling and learning alternate. serial: as sync, in one
    process, and bit-reproducible for a given --seed if the environment is reproducible."""
    devices: str = option("auto", common=True, may_change=True)
    """Devices, with one learner process each: auto, or a comma-separated list such as `cpu,cpu` or `cuda:0,cuda:1`."""
    seed: int = option(0, at_least=0, common=True)
    """Seed of weights, actions, environments and controller."""
    name: str | None = option(
        None,
        test=names_run,
        remedy=OF_NAMES,
        common=True,
        may_change=True,
    )
    """Name of the run and of its folder. By default, the name contains the environment and the time."""
    out: Path = option(Path("runs"), common=True, may_change=True)
    """Parent folder of the runs."""
    overwrite: bool = option(False, common=True, may_change=True)
    """Replace an existing run with this name. The old run is deleted when the new run has its first results."""
    resume: bool = option(True, common=True, may_change=True)
    """Continue an existing run with this name. With --no-resume, an existing run is an error (unless --overwrite)."""
    figures: bool = option(True, may_change=True)
    """Draw figures of the population for TensorBoard, at most once per minute, in a process of the lowest priority."""
    train_for_frames: int = option(100_000_000, at_least=1, common=True, may_change=True)
    """Stop when each member has trained on this many emulator frames. A search may stop members earlier.
    With --search.phase-frames, the phases of a search set the length instead."""
    train_for_seconds: float = option(0.0, at_least=0, zero="no limit", common=True, may_change=True)
    """Stop after this many seconds of training."""
    hours: float | None = option(None, above=0, at_most=10_000, common=True, may_change=True)
    """Train for this many hours (such as 0.5), with 30 comparisons of members (--pbt.ready timed). Options that you
    set explicitly take precedence."""
    stop_at_objective: float | None = option(None, may_change=True, common=True)
    """Stop when a member's objective over a full window (--pbt.objective-episodes) reaches this value."""
    actors: int = option(0, at_least=0, zero="planned", may_change=True)
    """Number of actor processes. The plan chooses the default from the machine's cores."""
    vector_envs_per_actor: int = option(2, at_least=1, may_change=True)
    """Vector envs per actor. An actor steps one vector env while its other vector envs wait for actions."""
    envs_per_vector_env: int = option(0, at_least=0, zero="planned", may_change=True, common=True)
    """Environments of each policy in one vector env. With several agents per environment: agents of each policy."""
    random_phases: bool = True
    """Truncate the first episode of each environment at a random step. Otherwise, the episodes of all environments
    would end at the same time. Truncated first episodes do not count for the objective. The option applies to
    Gymnasium environments with a `TimeLimit` and to simulators with an episode length counter."""
    actor_timeout_seconds: float = option(60.0, above=0, may_change=True)
    """Restart an actor that has work but has not made, reset or stepped an environment for this time. A native vector
    env steps all its environments in one call. The timeout must exceed the duration of this call."""
    learner_timeout_seconds: float = option(60.0, above=0, may_change=True)
    """Replace a learner that makes no progress for this time. The timeout must exceed the duration of one optimiser
    step. During the start of a learner, the timeout is five times as long. If the learner has not trained yet, the run
    ends with an error."""
    max_actor_restarts: int = option(20, at_least=0, may_change=True)
    """End the run with an error after more actor restarts than this within ten minutes (all actors together). The same
    limit applies to successive restarts of one actor with fewer than 100 steps before each."""
    save_every_seconds: float = option(
        120.0, at_least=0, zero="only at the end", common=True, may_change=True
    )
    """Seconds between checkpoints of the whole run. `pbt-rl resume RUN` continues from the last checkpoint. Each run
    also saves a checkpoint at its end."""
    save_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Save a permanent checkpoint whenever each member has trained on this many more frames. Permanent checkpoints are
    never deleted. Their folders are checkpoints/at_FRAMES (`pbt-rl eval RUN --at FRAMES`)."""
    keep_checkpoints: int = option(2, at_least=1, may_change=True)
    """Number of newest checkpoints to keep, in addition to the permanent checkpoints of --save-every-frames."""
    final_episodes: int | None = option(None, at_least=0, zero="none", may_change=True, common=True)
    """Evaluation episodes per member at the end of training, as in `pbt-rl eval`. The best four members play, and the
    result names the best member. Default: 20 episodes. Time limit: a tenth of the training time, between 30 and 60 s.
    By default, serial runs and runs under a minute have no such episodes. If you set a number, the time limit is ten
    minutes, and up to four members without an objective since their last change play, too. With
    --pbt.evaluate-episodes or --control, all members play for at most ten minutes, even in serial or short runs.
    Environments with several agents or tasks have no final evaluation."""
    evaluate_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Save the run and evaluate the best member whenever each member has trained on this many more frames. Training
    continues during the evaluation. Number of episodes: --final-episodes if above 0; otherwise 20, or one per task.
    TensorBoard, `report` and `watch` show the mean of these episodes as a separate curve."""
    evaluate_video: bool = option(False, may_change=True)
    """Film the first episode of each evaluation (--evaluate-every-frames) for TensorBoard: a small video of at most 30
    seconds. Requires pip install 'pbt-rl[video]'."""
    init_from: tuple[str, ...] = option((), repeated=True)
    """Start from the weights of another run: RUN[@FRAMES][:MEMBER] (default: the best member of the newest checkpoint),
    or a member's .safetensors file. If you give one source, all members start from it. If you give --num-policies
    sources, member i starts from the i-th source."""
    init_parts: Literal["all", "weights", "weights+normalisers"] = "all"
    """Parts of --init-from to load. all: weights, normalisers and optimiser state. Hypers are never loaded."""
    init_strict: bool = True
    """Raise an error if an array of --init-from does not fit this network. With --no-init-strict, load only the arrays
    that fit. For example, a policy head for another action space is then not loaded."""
    track: tuple[str, ...] = option(
        (),
        repeated=True,
        test=lambda names: (
            all(name in TRACKERS or names_object(name) for name in names) and len(set(names)) == len(names)
        ),
        remedy=f"{', '.join(TRACKERS)} or module:Class, each once",
        common=True,
        may_change=True,
        is_external=names_module,
    )
    """Additional output of the curves: csv (tables in the run's folder), wandb, or a custom module:Class. TensorBoard
    files are written in any case."""
    slots: int = option(0, at_least=0, zero="all", common=True, may_change=True)
    """Maximum number of policies on all devices. If there are more members than slots, members train in time slices.
    The least trained waiting member gets the next free slot. Members without a slot wait in host memory."""
    slot_frames: int = option(1_000_000, at_least=1, may_change=True)
    """Emulator frames per member in one time slice (--slots)."""
    rows: int = option(
        0, at_least=0, zero="--learner.batch / --learner.rollout", may_change=True, common=True
    )
    """Environments of each policy in a device simulator. A batch is one rollout of all these environments
    (docs/reference/simulators.md)."""
    nodes: str = option(
        "",
        test=lambda text: re.fullmatch(r"(ray(:\S+)?)?", text) is not None,
        remedy="`ray` for a cluster of only this machine, or `ray:ADDRESS`",
        may_change=True,
        is_external=_names_cluster,
    )
    """Train on the nodes of a Ray cluster (docs/reference/nodes.md): `ray:auto`, `ray:HOST:PORT`, or `ray`, which
    starts a cluster of only this machine. Each GPU trains one part of the population. In a cluster without GPUs,
    each node trains one part. With --mode serial, each part is one process. Requires pip install 'pbt-rl[ray]'."""
    controller: str = option(
        "pbt", choices=lambda: tuple(CONTROLLERS), texts=texts, custom="module:Class", common=True
    )
    """{each} `module:Class`: a custom controller (docs/reference/rules.md)."""
    controller_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE: setting of a custom controller."""
    pbt: PbtConfig = field(default_factory=PbtConfig, metadata={"may_change": True})
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    hypers: Hypers = field(default_factory=Hypers)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    matchup: MatchupConfig = field(default_factory=MatchupConfig)

    def groups(self) -> Iterator[Any]:
        """Yield all option groups."""
        return filter(is_dataclass, (getattr(self, f.name) for f in fields(self)))

    def group(self, kind: type[T]) -> T:
        """Return the option group whose class is `kind` or a subclass of `kind`."""
        return next(group for group in self.groups() if isinstance(group, kind))

    def with_declared_hypers(self) -> Config:
        """Import a custom algorithm, and return the config with the hypers class that the algorithm declares.

        Raises ConfigError if the import fails, or if a hyper is unknown or invalid.
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
        """Number of members of the control group. Their ids follow the ids of the population."""
        return number_of_controls(self.control, self.num_policies)

    @property
    def members(self) -> int:
        """Number of all members, including the control group."""
        return self.num_policies + self.controls

    @property
    def searches(self) -> bool:
        """True if the controller is a search: it samples configurations and decides how long each member trains."""
        return controller_entry(self.controller).searches

    @property
    def full_frames(self) -> int:
        """Maximum training length of a member in frames: `train_for_frames`, or the length that a search sets."""
        return controller_entry(self.controller).full_frames(self, self.train_for_frames)

    @property
    def schedule_frames(self) -> int:
        """Frames over which a learning rate falls (`ControllerEntry.schedule_frames`)."""
        return controller_entry(self.controller).schedule_frames(self, self.train_for_frames)

    @property
    def algorithm(self) -> Algorithm:
        """Learning algorithm. The first access imports torch. Raises ConfigError if the algorithm cannot be loaded."""
        return load_algorithm(self.algo)

    def __post_init__(self) -> None:
        validate(self)
        keywords(self.env_option)
        shaping_given(self.shaping)
        self._check_together()
        if ":" not in self.algo:  # an untrusted config must not import modules
            check_divergence(self)

    def _check_together(self) -> None:
        """Raise ConfigError if values of several options conflict."""
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
            "videos show the evaluations of --evaluate-every-frames: give --evaluate-every-frames, too",
        )
        require(
            len(self.init_from) in (0, 1, self.num_policies),
            "init-from",
            " ".join(self.init_from),
            f"give one source for all members, or {self.num_policies} sources (one for each member)",
        )
        require(
            not self.pbt.evaluate_episodes or (not self.nodes and self.matchup.objective == "return"),
            "pbt.evaluate-episodes",
            self.pbt.evaluate_episodes,
            "evaluations run on one machine and rank by return: leave out --nodes and --matchup.objective",
        )

    @property
    def uses_vtrace(self) -> bool:
        """True if advantages use V-trace, False if they use GAE (appo)."""
        uncorrected = self.mode == "async" and not self.clips_around_batch
        return self.learner.returns == "vtrace" or (self.learner.returns == "auto" and uncorrected)

    def start_of(self, member: int) -> int:
        """Return the number that determines the initial weights and the initial action std of a member.

        This number is the member's id. For the i-th member of the control group (i from 0), the number is i, because
        the control group starts like the population.
        """
        return member - self.num_policies if member >= self.num_policies else member

    def initial_std(self, member: int) -> float:
        """Return the initial action std of a member, in the unit of --model.initial-std."""
        stds = self.model.initial_std
        return stds[self.start_of(member) % len(stds)]

    @property
    def clips_around_batch(self) -> bool:
        """True if the loss clips the ratio to the policy before the update. False if it clips no ratio, or the ratio
        to the behaviour policy.
        """
        return self.learner.proximal and self.mode == "async" and self.algorithm.proximal

    @property
    def optimizer_steps_of_batch(self) -> int:
        """Number of optimiser steps per batch, unless --learner.target-kl stops the update early."""
        return 1 if self.algorithm.learns_per_vector_env else self.learner.epochs * self.learner.minibatches

    @property
    def learns_single_steps(self) -> bool:
        """True if a batch with several minibatches is split by shuffled single steps. False: by complete rollouts."""
        return (
            self.algorithm.fixed_advantage is not None and self.model.core == "none" and not self.uses_vtrace
        )

    @property
    def env_options(self) -> EnvOptions:
        """Options for the factories of environments."""
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
    """Import an algorithm and torch. Raises ConfigError if the algorithm cannot be loaded."""
    try:
        return algorithms.load(name)
    except ValueError as error:
        raise ConfigError(f"--algo {name} cannot be used: {error}") from error


def check_divergence(config: Config) -> None:
    """Raise ConfigError if an option needs a KL divergence that is not measured, or that mostly measures rollout age.

    The options are --learner.lr-schedule kl-adaptive and --learner.target-kl. The algorithm is loaded only if one of
    them is set.
    """
    learner = config.learner
    adapts, stops = learner.lr_schedule == "kl-adaptive", learner.target_kl > 0
    for used, name, value, instead in (
        (adapts, "learner.lr-schedule", learner.lr_schedule, "use constant or linear"),
        (stops, "learner.target-kl", learner.target_kl, "leave it out"),
    ):
        if used:
            remedy = f"{config.algo} does not measure a KL divergence: {instead}, or --algo appo"
            require(config.algorithm.measures_kl, name, value, remedy)
            remedy = (
                f"the KL divergence to the behaviour policy mostly measures rollout age: {instead} or "
                "--learner.proximal"
            )
            require(config.mode != "async" or config.clips_around_batch, name, value, remedy)
