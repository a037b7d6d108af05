"""The interface between environments and the trainer: a spec, a unit that steps rows, the arrays of a step.

Axes: R rows of a unit (R = P * b, row r belongs to slot r // b of its pack), A action components.
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
    """Options of a family of environments: a frozen dataclass derives from this."""

    def reproducible(self) -> Self:
        """Return the options under which equal seeds give equal steps."""
        return self


LARGEST_REWARD = 3.4e38
"""A larger number is infinite in float32, as which rewards are learned from."""

ACTION_MASK = "action_mask"
"""Reserved name of an observation: the discrete actions that are allowed, uint8 [sum(nvec)], 1 = allowed.

The components lie one after the other. A component without any 1 does not act in this step (an agent that is
inactive, another player's turn): its action is ignored and nothing is learned from it.
"""


LAST = "last_action_reward"
"""Reserved name of an observation: the last action and reward, float32 [sum(nvec) + 1].

One-hot last choice of each component, then the reward clipped to -1..1; zeros with the first observation of an
episode. The network's encoder passes it on as it is, to the recurrent core if there is one.
"""


MOST_STATS = 16
"""Most extra statistics that an episode may have."""
STAT_NAME_BYTES = 32
"""Longest name of an extra statistic, in UTF-8."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape (of one row, without leading axes) and numpy dtype name of one array of an observation.

    given: what the environment gives instead, in words; empty: the same. boolean: it gives nothing but 0 and 1.
    unscaled: its numbers have no bounds, or others than within -1 to 1.
    """

    shape: tuple[int, ...]
    dtype: str
    given: str = field(default="", compare=False)
    boolean: bool = field(default=False, compare=False)
    unscaled: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ActionSpec:
    """Discrete components (`nvec`: a size each), then continuous ones (`low`, `high`: a bound each), or one of both.

    A bound may be infinite: there is none on that side.
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
        """Centre and half width of each continuous component: what -1..1 of a policy is scaled to.

        Without a bound on both sides the half width is 1, the environment's own unit, and the centre what is
        nearest to 0 within the other bound.
        """
        ends = tuple(zip(self.low, self.high, self.unbounded, strict=True))
        centres = tuple(
            min(max(0.0, low), high) if unbounded else (low + high) / 2 for low, high, unbounded in ends
        )
        return centres, tuple(1.0 if unbounded else (high - low) / 2 for low, high, unbounded in ends)

    @property
    def unbounded(self) -> tuple[bool, ...]:
        """Whether each continuous component lacks a bound, on one side or both."""
        return tuple(math.isinf(high - low) for low, high in zip(self.low, self.high, strict=True))

    @property
    def dtype(self) -> str:
        """int32 for discrete actions; float32 if any component is continuous (already inside low..high)."""
        return "float32" if self.low else "int32"


@dataclass(frozen=True)
class EnvSpec:
    """The description of an environment, known before one is made in an actor.

    obs: name -> array of one row; only the newest frame if frames are stacked. The network does not see an array
    named ACTION_MASK: it masks actions.
    frame_skip: emulator frames per step (1 if an environment has no such notion).
    frame_stack: how many past frames the device stacks for the 2-D uint8 array named "obs"; 1 = none.
    shaping: the environment's default reward shaping, name -> value; PBT may tune it as `shaping.NAME`.
    seats: agents that play in one environment (S), each of them a row; 1 without opponents.
    tasks: names of the kinds of episodes (levels), if there are several. A member's objective is then the mean over
    all tasks of the task's mean objective, capped at `task_cap`. In evaluations row r of R begins with the one at
    r * tasks // R of an order, and plays them in turn.
    critic: names of the observations that only the critic sees, which then is a network of its own; acting, exports
    and evaluations do without them.
    notes: what its user may not have meant, a sentence each: the checker and every start of a run show them.
    time_limit: steps after which an episode is cut; 0 if that is not known.
    mistakes: what is wrong though nothing breaks, likewise: a run and an evaluation warn of them.
    resident: its rows are tensors on the learner's device, which steps them itself (envs/resident/).

    An observation is an image (uint8, 3-D), a text (int32, 1-D: hashed words at the end, 0 before them), or numbers.
    """

    env_id: str
    obs: Mapping[str, ArraySpec]
    action: ActionSpec
    frame_skip: int = 1
    frame_stack: int = 1
    shaping: Mapping[str, float] = field(default_factory=dict)
    seats: int = 1
    tasks: tuple[str, ...] = ()
    task_cap: float | None = None
    critic: tuple[str, ...] = field(default=(), compare=False)
    """Not compared: a unit does not know what the user adds. Nor are notes and mistakes, which are words."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    mistakes: tuple[str, ...] = field(default=(), compare=False)
    resident: bool = False
    time_limit: int = field(default=0, compare=False)


@dataclass(frozen=True)
class StepArrays:
    """The arrays into which a unit writes a step of its rows: views on its mailbox, all with leading axis R.

    The protocol of an episode's end is *next-step reset*: the step that ends an episode delivers the final
    observation with `terminated` or `truncated` set; the following step ignores its action, resets the
    environment and delivers the new episode's first observation with `first` set, reward 0 and nothing
    else. So the final observation needs no array of its own. The transition of a reset is not a real one:
    learners mask it.

    `terminated` may also be set without an episode's end (a lost life while training): no reset follows,
    `first` stays False and no episode is reported.
    """

    obs: Mapping[str, NDArray[Any]]
    """name -> [R, *shape]"""
    reward: NDArray[np.float32]
    """[R] for learning: shaped, and clipped as the environment wants."""
    terminated: NDArray[np.bool_]
    """[R] the transition ended in a terminal state: do not bootstrap."""
    truncated: NDArray[np.bool_]
    """[R] the transition hit a limit: bootstrap from the observation delivered with it."""
    first: NDArray[np.bool_]
    """[R] `obs` is the first of an episode, and the transition that led here was a reset."""

    episode_done: NDArray[np.bool_]
    """[R] a whole episode (a game, not a life) ended with this step; the fields below are valid for these rows."""
    objective: NDArray[np.float64]
    """[R] `info["true_objective"]`, or the episode's raw return if the environment gives none."""
    raw_return: NDArray[np.float64]
    """[R] sum of the environment's own rewards, unshaped and unclipped."""
    shaped_return: NDArray[np.float64]
    """[R] sum of what was written to `reward`."""
    length: NDArray[np.int64]
    """[R] steps (decisions) of the episode."""
    shaping_version: NDArray[np.int64]
    """[R] version of the shaping in force during the episode (read when it began)."""
    stat_names: NDArray[np.bytes_]
    """[R, MOST_STATS] see `Remarks.of_stats`."""
    stat_values: NDArray[np.float64]
    """[R, MOST_STATS] NaN for none. A unit without extra statistics need not write either array."""
    seat: NDArray[np.int64] | None = None
    """[R] seat of the row: environment * S + seat. Only if `spec.seats` is above 1; all rows of an environment then
    have `episode_done` set in the same step, that of the game's end."""
    task: NDArray[np.int64] | None = None
    """[R] task of the episode, an index in `EnvSpec.tasks`; None without tasks."""


def read_stats(step: StepArrays, row: int) -> dict[str, float]:
    """Return the extra statistics of the episode that ended on a row: name -> number."""
    known = np.flatnonzero(~np.isnan(step.stat_values[row])).tolist()
    names = step.stat_names[row]
    return {names[i].decode(): float(step.stat_values[row, i]) for i in known if names[i]}


ShapingSource = Callable[[int], tuple[int, Mapping[str, float]]]
"""row -> (shaping version, values): called whenever an episode begins on a row."""


def seeds_of(seed: int, environments: int) -> list[int]:
    """Return a seed for each environment of a unit, below 2^31: many simulators take no other."""
    return [int(one) % 2**31 for one in np.random.SeedSequence(seed).generate_state(environments)]


def default_shaping_source(spec: EnvSpec) -> ShapingSource:
    """Return a source that always gives version 0 and the environment's defaults (evaluation, tests)."""
    return lambda _row: (0, spec.shaping)


MatchupSource = Callable[[], tuple[int, NDArray[np.int64]]]
"""() -> (matchup version, row_ES): row of each seat, [E, S], each row 0..R-1 once. Called before every step."""


@runtime_checkable
class Seated(Protocol):
    """A unit of environments with several seats, which follows matchups."""

    def follow(self, matchups: MatchupSource) -> None:
        """Seat the rows by this source, from the next reset on, and again whenever its version changes."""


class Unit(Protocol):
    """One vector environment inside an actor."""

    spec: EnvSpec
    rows: int

    def reset(self, out: StepArrays) -> None:
        """Start every row; write observations with `first` set everywhere, all else zero or False."""

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance every row by one step. action: [R, A] of `spec.action.dtype`. Writes every field of `out`."""

    def close(self) -> None:
        """Release the environment. Safe to call twice."""


@runtime_checkable
class SavesState(Protocol):
    """Optional, for environments and units: the whole state as JSON types, from which another object continues.

    A serial run of such environments is resumed as if it had not been interrupted; others begin new episodes.
    """

    def save_state(self) -> dict[str, Any] | None:
        """Return the state between two steps, random generators included; None if it cannot be saved."""

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `save_state` returned."""


@runtime_checkable
class SpreadsPhases(Protocol):
    """Optional, for units whose rows can begin in different phases of their episodes.

    Else rows whose episodes all have one length stay in phase for ever, and every batch is of one phase.
    """

    def spread_phases(self, rng: np.random.Generator) -> bool:
        """Let the first episode of each row end by truncation at a drawn step; once, before `reset`.

        Return whether: a unit that does not know how long its episodes may be leaves them whole.
        """


def cpu_clock(unit: Unit) -> Callable[[], int]:
    """Clock of the CPU-nanoseconds that a unit's steps take: this process's, or the unit's own `cpu_ns()`.

    A unit whose environments compute in other processes has its own clock, which includes this process.
    """
    own: Callable[[], int] = getattr(unit, "cpu_ns", time.process_time_ns)
    return own


def cpu_ns_of(processes: Sequence[int]) -> int:
    """Return the CPU-nanoseconds of processes so far. Dead ones count nothing."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):  # Linux's clock of another process (see clock_getcpuclockid(3))
            total += time.clock_gettime_ns((~pid << 3) | 2)
    return total


@runtime_checkable
class TrainingInfoInterface(Protocol):
    """Implemented by an environment that adapts to the progress of its member's training (a curriculum).

    It is called before each episode in training, but not by `pbt-rl eval` or the checker: an environment is made in
    the form in which it is evaluated.
    """

    def set_training_info(self, info: dict[str, Any]) -> None:
        """Take `{"frames": int, "budget_frames": int}`.

        frames: sampled so far for the member that plays here. budget_frames: expected at the end of the run
        (--train-for-frames, or fewer with --train-for-seconds), which may change. A native vector environment is
        called for each row, with the row in `info["row"]`.
        """


def training_info(source: ShapingSource, row: int) -> dict[str, Any] | None:
    """Return the progress of the member on a row, if the source of shaping has a method of this name; else None."""
    progress = getattr(source, "training_info", None)
    return None if progress is None else progress(row)


@runtime_checkable
class RewardShapingInterface(Protocol):
    """Implemented by an environment whose reward shaping (or any other parameter) is tuned.

    A change takes effect when an episode begins. Values are numbers; a nested dict of numbers is allowed
    and is flattened with dots (`shaping.weapon.shotgun`).
    """

    def get_default_reward_shaping(self) -> dict[str, Any]:
        """Return the default values."""

    def set_reward_shaping(self, reward_shaping: dict[str, Any], agent_idx: int | slice) -> None:
        """Use these values from now on, for one agent or a slice of them (single-agent: 0)."""


def random_within(action: ActionSpec, rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw the continuous components of actions, uniform within their bounds: [R, len(low)].

    Without any bound: standard normal. With one: that and an exponential number of mean 1, as Gymnasium's `Box.sample`.
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
    """Draw them as a policy does that has learned nothing: normal, and cut off at bounds."""
    centre, half = (np.array(part) for part in action.units)
    drawn = centre + half * rng.standard_normal((rows, len(centre)))
    return np.clip(drawn, action.low, action.high).astype(np.float32)


def random_actions(
    spec: EnvSpec,
    out: StepArrays,
    rng: np.random.Generator,
    numbers: Callable[[ActionSpec, int, np.random.Generator], NDArray[np.float32]] = random_within,
) -> NDArray[Any]:
    """Draw random actions [R, A] for a step: uniform among those that the action mask (if any) allows.

    numbers: draws the continuous components.
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
    """Draw actions [R, A] from those that the mask (D = sum(nvec)) allows; 0 if it allows none."""
    draws_RD = rng.random(mask_RD.shape) * mask_RD
    parts = np.split(draws_RD, np.cumsum(nvec)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], 1).astype(np.int32)


def step_array_specs(spec: EnvSpec) -> dict[str, ArraySpec]:
    """Return the table of fields from which mailboxes and private buffers are laid out.

    Field of StepArrays -> array of one row, in layout order (observations as `obs.NAME`).
    """
    table = {f"obs.{name}": array for name, array in spec.obs.items()}
    table["reward"] = ArraySpec((), "float32")
    for name in ("terminated", "truncated", "first", "episode_done"):
        table[name] = ArraySpec((), "bool")
    for name in ("objective", "raw_return", "shaped_return"):
        table[name] = ArraySpec((), "float64")
    for name in ("length", "shaping_version", *(("seat",) if spec.seats > 1 else ())):
        table[name] = ArraySpec((), "int64")
    table["stat_names"] = ArraySpec((MOST_STATS,), f"S{STAT_NAME_BYTES}")
    table["stat_values"] = ArraySpec((MOST_STATS,), "float64")
    if spec.tasks:
        table["task"] = ArraySpec((), "int64")
    return table


def step_arrays(spec: EnvSpec, arrays: Mapping[str, NDArray[Any]]) -> StepArrays:
    """Gather the arrays of `step_array_specs` in a StepArrays."""
    obs = {name: arrays[f"obs.{name}"] for name in spec.obs}
    return StepArrays(obs=obs, **{k: v for k, v in arrays.items() if not k.startswith("obs.")})


def private_step_arrays(spec: EnvSpec, rows: int) -> StepArrays:
    """Make StepArrays in ordinary memory, for evaluation and tests."""
    specs = step_array_specs(spec)
    return step_arrays(spec, {k: np.zeros((rows, *a.shape), a.dtype) for k, a in specs.items()})
