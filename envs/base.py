"""Interface between environments and the trainer: specs, vector envs, step arrays.

Axes: R rows of a vector env, A action components. With P slots and b rows per slot, R = P * b, and row r belongs to
slot r // b of the pack.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class FamilyOptions:
    """Base class for the options of an environment family. A family with options derives a frozen dataclass."""

    def reproducible(self) -> Self:
        """Return the options under which equal seeds give equal steps. By default: the same options."""
        return self


LARGEST_REWARD = 3.4e38
"""Rewards must be between -LARGEST_REWARD and LARGEST_REWARD, because the learner stores rewards as float32."""

ACTION_MASK = "action_mask"
"""Reserved observation name: mask of the allowed discrete actions, uint8 [sum(nvec)], 1 = allowed.

nvec: numbers of choices (see `ActionSpec`). The masks of all components are concatenated. If the mask of a component is
all zeros, the policy takes action 0 of the component. The loss excludes this action, and the environment must ignore
it. For example, an agent that waits for another player's move has a mask of zeros.
"""


LAST = "last_action_reward"
"""Reserved observation name: last action and reward, float32 [sum(nvec) + len(low) + 1] (see `ActionSpec`).

Contents: the last choice of each discrete component as one-hot, the last continuous components, then the reward clipped
to -1..1. All numbers are 0 in the first observation of an episode. If there are other observations, the encoder appends
these numbers unchanged to its output.
"""


MOST_STATS = 16
"""Maximum number of extra statistics per episode."""
STAT_NAME_BYTES = 32
"""Maximum length of the name of an extra statistic, in UTF-8 bytes."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one observation array.

    shape: shape for one row, without leading axes.
    dtype: name of the numpy dtype.
    given: text about the environment's own format or the conversion. "" if nothing is scaled or reordered.
    boolean: True only for numbers of a MultiBinary space or of dtype bool.
    unscaled: True only for numbers whose Gymnasium space has no bounds, or bounds outside -1..1 after the conversion.
    """

    shape: tuple[int, ...]
    dtype: str
    given: str = field(default="", compare=False)
    boolean: bool = field(default=False, compare=False)
    unscaled: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ActionSpec:
    """Components of an action: discrete components first, then continuous components. Either kind can be absent.

    nvec: number of choices of each discrete component.
    low, high: bounds of each continuous component. An infinite bound means unbounded on that side.
    """

    nvec: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.nvec or self.low, "an action has at least one component"
        assert len(self.low) == len(self.high)

    @property
    def components(self) -> int:
        """Number of columns A of an action array."""
        return len(self.nvec) + len(self.low)

    @property
    def units(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(centres, half widths) of the continuous components.

        A policy's output x is scaled to centre + half width * x.

        If a bound is missing, the half width is 1, and the centre is the allowed value nearest to 0.
        """
        ends = tuple(zip(self.low, self.high, self.unbounded, strict=True))
        centres = tuple(
            min(max(0.0, low), high) if unbounded else (low + high) / 2 for low, high, unbounded in ends
        )
        return centres, tuple(1.0 if unbounded else (high - low) / 2 for low, high, unbounded in ends)

    @property
    def unbounded(self) -> tuple[bool, ...]:
        """True for each continuous component that has an infinite bound."""
        return tuple(math.isinf(high - low) for low, high in zip(self.low, self.high, strict=True))

    @property
    def dtype(self) -> str:
        """Name of an action array's dtype: float32 if any component is continuous, else int32."""
        return "float32" if self.low else "int32"


@dataclass(frozen=True)
class EnvSpec:
    """Specification of an environment, available before an actor makes the environment.

    obs: name -> array of one row. With frame stacking, the array "obs" has only the newest frame. The array named
    ACTION_MASK is the action mask and not a network input.
    frame_skip: frames per step. Mostly 1 in environments without an emulator or engine.
    frame_stack: number of frames (1 to 4) that the device stacks for the 2-D uint8 array named "obs"; 1: no stacking.
    shaping: default reward shaping, name -> value. PBT may tune each value as `shaping.NAME`.
    agents: number of agents in one environment (S). Each agent is a row. 1 for single-agent environments.
    tasks: names of the tasks (levels); empty if there is only one task. A member's objective is the mean over tasks of
    each task's mean objective. If `task_cap` is not None, it caps the mean objective of each task. In an evaluation,
    row r of R must start at position r * len(tasks) // R of a fixed order of tasks, and continue in that order.
    critic: names of the observations that only the critic receives. If there are any, the critic is a separate network.
    Acting, exports and evaluations do not use these observations.
    notes: warnings about possibly unintended settings, printed by `pbt-rl envs check` and at the start of a run.
    time_limit: steps after which an episode is truncated; 0 if unknown.
    mistakes: warnings about bugs that raise no error, printed by `pbt-rl envs check`, runs and evaluations.
    simulator: True for a device simulator, whose rows are tensors on the learner's device and are stepped by the
    learner.

    An observation array is an image (uint8: 3-D, or 2-D for a single grey frame), a text (int32, 1-D), or numbers
    (float32). The action mask is uint8, 1-D. A text array ends with the hashed words; all entries before the words are
    0.
    """

    env_id: str
    obs: Mapping[str, ArraySpec]
    action: ActionSpec
    frame_skip: int = 1
    frame_stack: int = 1
    shaping: Mapping[str, float] = field(default_factory=dict)
    agents: int = 1
    tasks: tuple[str, ...] = ()
    task_cap: float | None = None
    critic: tuple[str, ...] = field(default=(), compare=False)
    """Excluded from `==`, because the spec of a vector env lacks the names that the user adds by an option."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    mistakes: tuple[str, ...] = field(default=(), compare=False)
    simulator: bool = False
    time_limit: int = field(default=0, compare=False)


@dataclass(frozen=True)
class StepArrays:
    """Output arrays of a vector env's step, with leading axis R. In an actor, the arrays are views of a mailbox.

    Environments are reset in the next step, as with Gymnasium's autoreset mode NEXT_STEP. The step that ends an episode
    delivers the final observation with `terminated` or `truncated` set. The following step ignores its action, resets
    the environment, and delivers the first observation with `first` set and reward 0. Learners mask the transition of a
    reset. For environments that reset themselves earlier, vectors.py and simulators/rows.py describe the differences.

    A lost life may set `terminated` within an episode. Then no reset follows, and `episode_done` stays False. On Atari,
    the next step then sets `first` if the vector env replaces the row's action by FIRE.
    """

    obs: Mapping[str, NDArray[Any]]
    """name -> [R, *shape]"""
    reward: NDArray[np.float32]
    """[R] reward for learning: shaped, and clipped as configured for the environment."""
    terminated: NDArray[np.bool_]
    """[R] True: the transition ended in a terminal state. Do not bootstrap."""
    truncated: NDArray[np.bool_]
    """[R] True: the episode was cut off after the transition. Bootstrap from this step's observation."""
    first: NDArray[np.bool_]
    """[R] True: the step is not a transition of the policy, so learners mask it. Usually the step was a reset, and
    `obs` is the first observation of an episode. A row that waits for its next episode sets `first` in every step.
    """

    episode_done: NDArray[np.bool_]
    """[R] True: an episode (not only a life) ended with this step. Statistics below are valid in these rows only."""
    objective: NDArray[np.float64]
    """[R] objective of the episode. Gymnasium environments: `info["true_objective"]`; if this entry is missing, the
    return (see `objective_of`). Other families have their own scores, such as DMLab-30's normalised score.
    """
    raw_return: NDArray[np.float64]
    """[R] sum of the environment's rewards, before the vector env shapes or clips them. An environment may have shaped
    them itself. In device simulators: the objective.
    """
    shaped_return: NDArray[np.float64]
    """[R] sum of the shaped and clipped rewards. It includes rewards that learners mask (see vectors.py)."""
    length: NDArray[np.int64]
    """[R] steps (decisions) of the episode."""
    shaping_version: NDArray[np.int64]
    """[R] version number of the shaping values, read at the start of the episode."""
    stat_names: NDArray[np.bytes_]
    """[R, MOST_STATS] names of the episode's extra statistics (`info["episode_extra_stats"]`), in UTF-8."""
    stat_values: NDArray[np.float64]
    """[R, MOST_STATS] values of the episode's extra statistics, NaN in unused entries. A vector env without extra
    statistics need not write names and values.
    """
    agent: NDArray[np.int64] | None = None
    """[R] agent that the row plays, as environment index * S + agent index. None if `spec.agents` is 1. The last step
    of an episode sets `episode_done` in all rows of the environment whose agents have acted in the episode.
    """
    task: NDArray[np.int64] | None = None
    """[R] index of the episode's task in `EnvSpec.tasks`. None if the environment has only one task."""


def read_stats(step: StepArrays, row: int) -> dict[str, float]:
    """Return the extra statistics of the episode that ended in a row: name -> number."""
    known = np.flatnonzero(~np.isnan(step.stat_values[row])).tolist()
    names = step.stat_names[row]
    return {names[i].decode(): float(step.stat_values[row, i]) for i in known if names[i]}


ShapingSource = Callable[[int], tuple[int, Mapping[str, float]]]
"""row -> (shaping version, values). A vector env calls this function whenever an episode begins in a row.

In an actor, the function also has attributes for the vector env, such as `warn` and `heartbeat` (`EpisodeSource` in
pbt_rl/actors/actor.py). All of them are optional.
"""


def seeds_of(seed: int, environments: int) -> list[int]:
    """Return a seed for each environment, below 2^31 because many simulators reject larger seeds."""
    return [int(one) % 2**31 for one in np.random.SeedSequence(seed).generate_state(environments)]


def default_shaping_source(spec: EnvSpec) -> ShapingSource:
    """Return a shaping source for evaluations and tests: version 0 with the environment's default values."""
    return lambda _row: (0, spec.shaping)


MatchupSource = Callable[[], tuple[int, NDArray[np.int64]]]
"""() -> (matchup version, row_ES), called before every step. row_ES[e, s] is the row that plays agent s of environment
e. Each row 0..R-1 occurs once.
"""


@runtime_checkable
class FollowsMatchups(Protocol):
    """Protocol of multi-agent vector envs, in which matchups assign rows to agents."""

    def follow(self, matchups: MatchupSource) -> None:
        """Set the source of matchups. Call this before `reset`, which assigns rows to agents.

        When the version has changed, the vector env truncates all running episodes, and then assigns rows again.
        """


class VectorEnv(Protocol):
    """Protocol of a vector env inside an actor."""

    spec: EnvSpec
    rows: int

    def reset(self, out: StepArrays) -> None:
        """Reset every row. Write the observations, set `first`, and set reward and all other flags to 0 or False."""

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance every row by one step. action: [R, A] of `spec.action.dtype`.

        Rows whose episode has ended are reset and ignore their actions. Write the observations, rewards and flags of
        all rows. The statistics of an episode need to be written only in the step that ends the episode.
        """

    def close(self) -> None:
        """Release the environment. Safe to call twice."""


@runtime_checkable
class SavesState(Protocol):
    """Optional protocol of environments and vector envs that save their state as JSON types.

    A resumed serial run continues these environments within their episodes. All other environments begin new episodes
    when a run is resumed.
    """

    def save_state(self) -> dict[str, Any] | None:
        """Return the state between two steps, including random generators. None if the state cannot be saved."""

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `save_state` returned."""


@runtime_checkable
class SpreadsPhases(Protocol):
    """Optional protocol of vector envs that can truncate the first episode of each row at a random step.

    Without truncation, rows whose episodes have equal length always reset in the same step. A batch may then cover only
    one part of the episodes.
    """

    def spread_phases(self, rng: np.random.Generator) -> bool:
        """Truncate the first episode of each row at a random step. Called once, before `reset`.

        Returns False, and truncates nothing, if the maximum episode length is unknown.
        """


def cpu_clock(vector_env: VectorEnv) -> Callable[[], int]:
    """Return a function that reads the total CPU time of a vector env's processes in nanoseconds.

    A vector env with further processes defines `cpu_ns()`, which returns the total CPU time of this process and the
    further processes. Without `cpu_ns`, the returned function reads the CPU time of this process.
    """
    own: Callable[[], int] = getattr(vector_env, "cpu_ns", time.process_time_ns)
    return own


def cpu_ns_of(processes: Sequence[int]) -> int:
    """Return the total CPU time of processes in nanoseconds. processes: their ids. A dead process counts as 0."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):  # Linux's clock of another process (see clock_getcpuclockid(3))
            total += time.clock_gettime_ns((~pid << 3) | 2)
    return total


@runtime_checkable
class TrainingInfoInterface(Protocol):
    """Interface of environments with a curriculum, which depends on the training progress of the member.

    The method is called before each training episode, only in Gymnasium environments (single or vector). Evaluations
    and `pbt-rl envs check` never call the method, so they use the environment as its constructor makes it.
    """

    def set_training_info(self, info: dict[str, Any]) -> None:
        """Receive the progress `{"frames": int, "budget_frames": int}` of the row's member.

        frames: frames sampled so far.
        budget_frames: --train-for-frames. With --train-for-seconds, an estimate of the frames at the end of the run,
        which changes during the run and is at most --train-for-frames.
        row: index of the row. Only Gymnasium vector environments receive this key. The method of a vector environment
        is called separately for each row.
        """


def training_info(source: ShapingSource, row: int) -> dict[str, Any] | None:
    """Return the training progress of a row's member, as `set_training_info` receives it (without the key "row").

    None if the shaping source has no training progress, for example in an evaluation.
    """
    progress = getattr(source, "training_info", None)
    return None if progress is None else progress(row)


@runtime_checkable
class RewardShapingInterface(Protocol):
    """Interface of environments with tunable reward shaping, or with other tunable parameters.

    A change takes effect at the start of an episode. Values are numbers. A nested dict is flattened to names with
    dots, such as `shaping.weapon.shotgun`.
    """

    def get_default_reward_shaping(self) -> dict[str, Any]:
        """Return the default values."""

    def set_reward_shaping(self, reward_shaping: dict[str, Any], agent_idx: int | slice) -> None:
        """Set the values of one agent. Called before each episode.

        agent_idx: index of the agent, 0 in an environment with one agent. If a Gymnasium vector environment has this
        method: index of the row. pbt_rl passes no slices.
        """


def random_within(action: ActionSpec, rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw continuous action components [R, len(low)] from the distributions of Gymnasium's `Box.sample`.

    With two bounds: uniform. Without bounds: standard normal. With one bound: an exponential distribution of mean 1
    that starts at the bound.
    """
    free = np.array(action.unbounded)
    low, high = (np.where(free, 0, np.array(bound, np.float32)) for bound in (action.low, action.high))
    drawn = rng.uniform(low, high, (rows, len(low)))
    for column in np.flatnonzero(free):
        below, above = action.low[column], action.high[column]
        if math.isinf(below) and math.isinf(above):
            drawn[:, column] = rng.standard_normal(rows)
        else:
            beyond = rng.exponential(size=rows)
            drawn[:, column] = above - beyond if math.isinf(below) else below + beyond
    return drawn.astype(np.float32)


def untrained_within(action: ActionSpec, rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw continuous action components [R, len(low)] like an untrained policy: normal, clipped to the bounds.

    The mean is the centre and the std is the half width (see `ActionSpec.units`), as with --model.initial-std 1.
    """
    centre, half = (np.array(part) for part in action.units)
    drawn = centre + half * rng.standard_normal((rows, len(centre)))
    return np.clip(drawn, action.low, action.high).astype(np.float32)


def random_actions(
    spec: EnvSpec,
    out: StepArrays,
    rng: np.random.Generator,
    numbers: Callable[[ActionSpec, int, np.random.Generator], NDArray[np.float32]] = random_within,
) -> NDArray[Any]:
    """Draw random actions [R, A] for a step. Discrete choices are uniform among the choices that the mask allows.

    out: output of the last step, with the action mask if there is one.
    numbers: function that draws the continuous components.
    """
    action, rows = spec.action, len(out.reward)
    parts: list[NDArray[Any]] = []
    if action.nvec and ACTION_MASK in out.obs:
        parts.append(random_allowed(action.nvec, out.obs[ACTION_MASK], rng))
    elif action.nvec:
        parts.append(rng.integers(action.nvec, size=(rows, len(action.nvec))).astype(np.int32))
    if action.low:
        parts.append(numbers(action, rows, rng))
    return np.concatenate(parts, 1, dtype=action.dtype)


def random_allowed(
    nvec: tuple[int, ...], mask_RD: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.int32]:
    """Draw allowed actions [R, A]. A component without an allowed choice gets action 0.

    mask_RD: action mask of all components, D = sum(nvec), 1 = allowed.
    """
    draws_RD = rng.random(mask_RD.shape) * mask_RD
    parts = np.split(draws_RD, np.cumsum(nvec)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], 1).astype(np.int32)


def step_array_specs(spec: EnvSpec) -> dict[str, ArraySpec]:
    """Return the layout of mailboxes and private buffers: field of StepArrays -> array of one row, in memory order.

    The fields of observations have the names `obs.NAME`.
    """
    table = {f"obs.{name}": array for name, array in spec.obs.items()}
    table["reward"] = ArraySpec((), "float32")
    for name in ("terminated", "truncated", "first", "episode_done"):
        table[name] = ArraySpec((), "bool")
    for name in ("objective", "raw_return", "shaped_return"):
        table[name] = ArraySpec((), "float64")
    for name in ("length", "shaping_version", *(("agent",) if spec.agents > 1 else ())):
        table[name] = ArraySpec((), "int64")
    table["stat_names"] = ArraySpec((MOST_STATS,), f"S{STAT_NAME_BYTES}")
    table["stat_values"] = ArraySpec((MOST_STATS,), "float64")
    if spec.tasks:
        table["task"] = ArraySpec((), "int64")
    return table


def copied(obs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copy the arrays of an observation."""
    return {name: array.copy() for name, array in obs.items()}


def step_arrays(spec: EnvSpec, arrays: Mapping[str, NDArray[Any]]) -> StepArrays:
    """Build StepArrays from arrays with the names of `step_array_specs`."""
    obs = {name: arrays[f"obs.{name}"] for name in spec.obs}
    return StepArrays(obs=obs, **{k: v for k, v in arrays.items() if not k.startswith("obs.")})


def private_step_arrays(spec: EnvSpec, rows: int) -> StepArrays:
    """Allocate StepArrays in ordinary memory, for evaluations, checks and tests."""
    specs = step_array_specs(spec)
    return step_arrays(spec, {k: np.zeros((rows, *a.shape), a.dtype) for k, a in specs.items()})
