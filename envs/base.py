"""Interface between environments and the trainer: specs, vector envs, step arrays.

Axes: R rows of a vector env (R = P * b, row r belongs to slot r // b of its pack), A action components.
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
    """Base class for the options of an environment family: derive a frozen dataclass from it."""

    def reproducible(self) -> Self:
        """Return the options under which equal seeds give equal steps."""
        return self


LARGEST_REWARD = 3.4e38
"""A larger number is infinite in float32, the dtype of rewards in the learner."""

ACTION_MASK = "action_mask"
"""Reserved observation name: the mask of allowed discrete actions, uint8 [sum(nvec)], 1 = allowed.

The components are concatenated. A component without any 1 does not act in this step, for example an inactive agent or
another player's turn. Its action is ignored and excluded from the loss.
"""


LAST = "last_action_reward"
"""Reserved observation name: last action and reward, float32 [sum(nvec) + 1].

One-hot last choice of each component, then the reward clipped to -1..1. Zeros with the first observation of an
episode. The encoder passes it unchanged to the recurrent core, if there is one.
"""


MOST_STATS = 16
"""Maximum number of extra statistics per episode."""
STAT_NAME_BYTES = 32
"""Maximum length of the name of an extra statistic, in UTF-8 bytes."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape (of one row, without leading axes) and numpy dtype name of one observation array.

    given: description of the environment's own format if it differs, else empty. boolean: all values are 0 or 1.
    unscaled: the values have no bounds, or bounds outside -1..1.
    """

    shape: tuple[int, ...]
    dtype: str
    given: str = field(default="", compare=False)
    boolean: bool = field(default=False, compare=False)
    unscaled: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ActionSpec:
    """Discrete components (`nvec`: their sizes), then continuous ones (`low`, `high`: their bounds).

    Either kind may be absent. An infinite bound means that there is none on that side.
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
        """Centre and half width of each continuous component, to which -1..1 of a policy is scaled.

        Without a bound on both sides, the half width is 1, the environment's own unit. The centre is then the value
        nearest to 0 that the other bound allows.
        """
        ends = tuple(zip(self.low, self.high, self.unbounded, strict=True))
        centres = tuple(
            min(max(0.0, low), high) if unbounded else (low + high) / 2 for low, high, unbounded in ends
        )
        return centres, tuple(1.0 if unbounded else (high - low) / 2 for low, high, unbounded in ends)

    @property
    def unbounded(self) -> tuple[bool, ...]:
        """True for each continuous component that lacks a bound on one or both sides."""
        return tuple(math.isinf(high - low) for low, high in zip(self.low, self.high, strict=True))

    @property
    def dtype(self) -> str:
        """int32 for discrete actions; float32 if any component is continuous (already inside low..high)."""
        return "float32" if self.low else "int32"


@dataclass(frozen=True)
class EnvSpec:
    """Specification of an environment, available before an actor makes one.

    obs: name -> array of one row; only the newest frame if frames are stacked. The array named ACTION_MASK masks
    actions and is not a network input.
    frame_skip: emulator frames per step (1 if the environment has no emulator).
    frame_stack: number of past frames that the device stacks for the 2-D uint8 array named "obs"; 1 = none.
    shaping: the environment's default reward shaping, name -> value; PBT may tune it as `shaping.NAME`.
    agents: agents in one environment (S), each of them a row; 1 without opponents.
    tasks: names of the kinds of episodes (levels), if there are several. A member's objective is then the mean over
    all tasks of the task's mean objective, capped at `task_cap`. In evaluations row r of R starts with the task at r
    * tasks // R of an order, and continues in that order.
    critic: names of the observations that only the critic receives. The critic is then a separate network; acting,
    exports and evaluations do not use them.
    notes: sentences on settings that may be unintended; the checker and every start of a run print them.
    time_limit: steps after which an episode is truncated; 0 if unknown.
    mistakes: sentences on bugs that raise no error; a run and an evaluation warn of them.
    resident: True if the rows are tensors on the learner's device, which steps them itself (envs/resident/).

    An observation is an image (uint8, 3-D), a text (int32, 1-D: hashed words at the end, 0 before them), or numbers.
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
    """Not compared because a vector env lacks the user's additions. Notes and mistakes are text, so they are not
    compared either."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    mistakes: tuple[str, ...] = field(default=(), compare=False)
    resident: bool = False
    time_limit: int = field(default=0, compare=False)


@dataclass(frozen=True)
class StepArrays:
    """Arrays into which a vector env writes a step of its rows: views of its mailbox, with leading axis R.

    Episodes end by *next-step reset*. The step that ends an episode delivers the final observation with `terminated`
    or `truncated` set. The following step ignores its action and resets the environment. It delivers the new
    episode's first observation with `first` set and reward 0. So the final observation needs no separate array.
    Learners mask the transition of a reset because it is not a real one.

    `terminated` may also be set within an episode (a lost life while training). No reset follows, `first` stays False
    and no episode is reported.
    """

    obs: Mapping[str, NDArray[Any]]
    """name -> [R, *shape]"""
    reward: NDArray[np.float32]
    """[R] reward for learning: shaped, and clipped as configured for the environment."""
    terminated: NDArray[np.bool_]
    """[R] the transition ended in a terminal state: do not bootstrap."""
    truncated: NDArray[np.bool_]
    """[R] the transition hit a limit: bootstrap from the observation delivered with it."""
    first: NDArray[np.bool_]
    """[R] `obs` is the first of an episode, and the transition that led here was a reset."""

    episode_done: NDArray[np.bool_]
    """[R] a whole episode (not only a life) ended with this step; the fields below are valid for these rows."""
    objective: NDArray[np.float64]
    """[R] `info["true_objective"]`, or the episode's raw return if the environment gives none."""
    raw_return: NDArray[np.float64]
    """[R] sum of the environment's raw rewards, unshaped and unclipped."""
    shaped_return: NDArray[np.float64]
    """[R] sum of the values written to `reward`."""
    length: NDArray[np.int64]
    """[R] steps (decisions) of the episode."""
    shaping_version: NDArray[np.int64]
    """[R] version of the shaping during the episode (read at its start)."""
    stat_names: NDArray[np.bytes_]
    """[R, MOST_STATS] see `Remarks.of_stats`."""
    stat_values: NDArray[np.float64]
    """[R, MOST_STATS] NaN for none. A vector env without extra statistics may leave both arrays unwritten."""
    agent: NDArray[np.int64] | None = None
    """[R] agent of the row: environment * S + agent. Only if `spec.agents` is above 1. All rows of an environment
    then have `episode_done` set in the same step, the end of the shared episode.
    """
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
    """Return a seed below 2^31 for each environment of a vector env; many simulators accept no larger one."""
    return [int(one) % 2**31 for one in np.random.SeedSequence(seed).generate_state(environments)]


def default_shaping_source(spec: EnvSpec) -> ShapingSource:
    """Return a source of version 0 and the environment's default values (evaluation, tests)."""
    return lambda _row: (0, spec.shaping)


MatchupSource = Callable[[], tuple[int, NDArray[np.int64]]]
"""() -> (matchup version, row_ES): row of each agent, [E, S], each row 0..R-1 once. Called before every step."""


@runtime_checkable
class FollowsMatchups(Protocol):
    """Vector env of environments with several agents, which follows matchups."""

    def follow(self, matchups: MatchupSource) -> None:
        """Assign rows to agents by this source, from the next reset on and at each change of its version."""


class VectorEnv(Protocol):
    """Protocol of a vector env inside an actor."""

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
    """Optional protocol of environments and vector envs that save their state as JSON types.

    A serial run of such environments resumes as if it had not been interrupted. Other environments begin new
    episodes.
    """

    def save_state(self) -> dict[str, Any] | None:
        """Return the state between two steps, including random generators; None if it cannot be saved."""

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `save_state` returned."""


@runtime_checkable
class SpreadsPhases(Protocol):
    """Optional protocol of vector envs whose rows can start in different phases of their episodes.

    Otherwise rows with episodes of equal length stay in phase forever, and every batch covers one phase only.
    """

    def spread_phases(self, rng: np.random.Generator) -> bool:
        """Truncate the first episode of each row at a random step. Call once, before `reset`.

        Returns False if the maximum episode length is unknown; episodes are then left whole.
        """


def cpu_clock(vector_env: VectorEnv) -> Callable[[], int]:
    """Return the clock of the CPU-nanoseconds of a vector env's steps: this process's, or `cpu_ns()`.

    A vector env whose environments compute in other processes defines `cpu_ns()`, which includes this process.
    """
    own: Callable[[], int] = getattr(vector_env, "cpu_ns", time.process_time_ns)
    return own


def cpu_ns_of(processes: Sequence[int]) -> int:
    """Return the CPU-nanoseconds of processes so far. Dead processes count 0."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):  # Linux's clock of another process (see clock_getcpuclockid(3))
            total += time.clock_gettime_ns((~pid << 3) | 2)
    return total


@runtime_checkable
class TrainingInfoInterface(Protocol):
    """Interface of an environment that adapts to the training progress of its member (a curriculum).

    It is called before each training episode, but not by `pbt-rl eval` or the checker. So a newly made environment
    must have the form in which it is evaluated.
    """

    def set_training_info(self, info: dict[str, Any]) -> None:
        """Take `{"frames": int, "budget_frames": int}`.

        frames: frames sampled so far for this row's member. budget_frames: frames expected at the end of the run
        (--train-for-frames, or fewer with --train-for-seconds), which may change. A native vector environment is
        called for each row, with the row in `info["row"]`.
        """


def training_info(source: ShapingSource, row: int) -> dict[str, Any] | None:
    """Return the training progress of a row's member if the shaping source provides it, else None."""
    progress = getattr(source, "training_info", None)
    return None if progress is None else progress(row)


@runtime_checkable
class RewardShapingInterface(Protocol):
    """Interface of an environment whose reward shaping (or any other parameter) is tuned.

    A change takes effect at the start of an episode. Values are numbers. A nested dict of numbers is flattened with
    dots (`shaping.weapon.shotgun`).
    """

    def get_default_reward_shaping(self) -> dict[str, Any]:
        """Return the default values."""

    def set_reward_shaping(self, reward_shaping: dict[str, Any], agent_idx: int | slice) -> None:
        """Use these values from now on, for one agent or a slice of agents (single-agent: 0)."""


def random_within(action: ActionSpec, rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw the continuous components of actions, uniform within their bounds: [R, len(low)].

    Without bounds: standard normal. With one bound: the bound plus or minus an exponential number of mean 1, as in
    Gymnasium's `Box.sample`.
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
    """Draw continuous components as an untrained policy does: normal, clipped at the bounds."""
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
    """Draw actions [R, A] from those that the mask (D = sum(nvec)) allows; 0 if it allows none."""
    draws_RD = rng.random(mask_RD.shape) * mask_RD
    parts = np.split(draws_RD, np.cumsum(nvec)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], 1).astype(np.int32)


def step_array_specs(spec: EnvSpec) -> dict[str, ArraySpec]:
    """Return the fields from which mailboxes and private buffers are laid out.

    Field of StepArrays -> array of one row, in layout order (observations as `obs.NAME`).
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


def step_arrays(spec: EnvSpec, arrays: Mapping[str, NDArray[Any]]) -> StepArrays:
    """Build StepArrays from the arrays of `step_array_specs`."""
    obs = {name: arrays[f"obs.{name}"] for name in spec.obs}
    return StepArrays(obs=obs, **{k: v for k, v in arrays.items() if not k.startswith("obs.")})


def private_step_arrays(spec: EnvSpec, rows: int) -> StepArrays:
    """Make StepArrays in ordinary memory, for evaluation and tests."""
    specs = step_array_specs(spec)
    return step_arrays(spec, {k: np.zeros((rows, *a.shape), a.dtype) for k, a in specs.items()})
