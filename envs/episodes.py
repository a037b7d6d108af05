"""What every unit keeps alike: the accounts of running episodes (returns, lengths, shaping versions), and its pulse.

The pulse shows that the unit gets on: two cells of memory that the supervisor watches, so that slow environments are
not taken for hung ones. A unit finds it at its source of shaping (see `ShapingSource`), which in an actor has the
attribute `pulse`. One that loops over rows in Python writes `pulse[ROW]` after each: one store, without a clock. One
call for all rows gives no sign until it returns; making and seeding them is announced by `all_at_once`.

Axes: R rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .base import LARGEST_REWARD, ShapingSource, StepArrays
from .values import briefly, number_of

ROW, AT_ONCE = range(2)
"""Cells. ROW: any number that differs from that of the row before. AT_ONCE: rows that the present call handles."""
SECONDS_PER_ROW = 1.0
"""Patience for each row that is made or seeded in one call. An Atari game takes 0.1 s for either on an idle core, and
0.5 s where six processes share it."""

T = TypeVar("T")


def pulse_of(source: ShapingSource) -> memoryview:
    """Return the pulse of the unit that has this source; cells that nobody watches if it has none."""
    watched: memoryview | None = getattr(source, "pulse", None)
    return memoryview(bytearray(16)).cast("q") if watched is None else watched


def beating(pulse: memoryview, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and give a sign when the caller asks for the next one: the one before is done."""
    for row, item in enumerate(items):
        yield item
        pulse[ROW] = row


@contextmanager
def all_at_once(pulse: memoryview, rows: int) -> Iterator[None]:
    """Announce a call that makes or seeds this many rows before it returns."""
    pulse[AT_ONCE] = rows
    try:
        yield
    finally:
        pulse[ROW] += 1  # first, so that a watcher who sees the announcement gone sees the sign too
        pulse[AT_ONCE] = 0


ROUNDING = 1e-3
_ACCOUNTS = ("raw_R", "shaped_R", "length_R", "shaping_version_R")


class EpisodeBook:
    """Sums over the running episode of each row, and the version of the shaping that is in force in it.

    A unit calls `open_episode` when an episode starts on a row, `add` for every step of a row, and `write` before a
    step in which an episode ends is read.
    """

    def __init__(self, rows: int, shaping: ShapingSource) -> None:
        self.raw_R = np.zeros(rows)
        self.shaped_R = np.zeros(rows)
        self.length_R = np.zeros(rows, np.int64)
        self.shaping_version_R = np.zeros(rows, np.int64)
        self._shaping = shaping

    def open_episode(self, row: int) -> Mapping[str, float]:
        """Start an episode on a row; return the values of its shaping."""
        self.shaping_version_R[row], values = self._shaping(row)
        self.raw_R[row] = self.shaped_R[row] = self.length_R[row] = 0
        return values

    def save_state(self) -> dict[str, Any]:
        """Return the accounts as JSON types."""
        return {name: getattr(self, name).tolist() for name in _ACCOUNTS}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `save_state` returned."""
        for name in _ACCOUNTS:
            getattr(self, name)[:] = state[name]

    def add(
        self,
        raw: NDArray[np.float64],
        shaped: NDArray[np.floating[Any]],
        played: NDArray[np.bool_] | bool,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a step of these rows (default: all).

        raw, shaped: rewards for the two returns. played: whether a row took a step.
        """
        if rows is None:  # apart, because indexing costs as much as a small environment's step
            self.raw_R += raw
            self.shaped_R += shaped
            self.length_R += played
        else:
            self.raw_R[rows] += raw
            self.shaped_R[rows] += shaped
            self.length_R[rows] += played

    def write(self, out: StepArrays, objective_R: NDArray[np.float64] | None = None) -> None:
        """Write the accounts of all rows. objective_R: default is the raw return."""
        out.objective[:] = self.raw_R if objective_R is None else objective_R
        out.raw_return[:] = self.raw_R
        out.shaped_return[:] = self.shaped_R
        out.length[:] = self.length_R
        out.shaping_version[:] = self.shaping_version_R


def write_reset(out: StepArrays) -> None:
    """Mark the step of all rows as a reset: `first` is set, the reward is 0 and nothing has ended."""
    out.first[:] = True
    for array_R in (out.reward, out.terminated, out.truncated, out.episode_done):
        array_R[:] = 0


def true_objective(env_id: str, value: Any) -> float:
    """Return `info["true_objective"]`. Raises EnvSetupError for what is no finite number.

    One infinite episode would make every mean infinite, and so all members alike.
    """
    try:
        objective = number_of(value)
    except (TypeError, ValueError):
        objective = math.nan
    if not abs(objective) < LARGEST_REWARD:
        raise EnvSetupError(
            f'{env_id} breaks its contract: info["true_objective"] must be a finite number, got {briefly(value)}. '
            "Correct the environment: give a failed episode the worst number that there is"
        )
    return objective


def objective_of(env_id: str, info: Mapping[str, Any], summed: float) -> float | None:
    """Return the objective of an episode that its last info dict tells; None if it is the sum of its rewards.

    That is the true one, or `info["episode"]["r"]`, the return that Gymnasium's RecordEpisodeStatistics and its like
    report: another than the sum, and not only by what rounding does, if wrappers outside have changed the rewards.
    """
    if "true_objective" in info:
        return true_objective(env_id, info["true_objective"])
    episode = info.get("episode")
    if not isinstance(episode, Mapping):
        return None
    try:
        recorded = number_of(episode.get("r"))
    except (TypeError, ValueError):
        return None
    differs = abs(recorded - summed) > ROUNDING * max(1.0, abs(recorded), abs(summed))
    return recorded if math.isfinite(recorded) and differs else None
