"""Statistics of running episodes (returns, lengths, shaping versions), and the heartbeat of a vector env.

The heartbeat is two int64 cells of shared memory. The supervisor reads the cells to distinguish slow environments from
hanging environments. In an actor, the two cells are `heartbeat` of the shaping source, the object that provides the
reward weights.

A vector env that steps its rows one by one writes `heartbeat[ROW]` after each row. A single call for all rows cannot
write a heartbeat before it returns. If a single call makes or seeds rows, `all_at_once` extends the timeout of the
heartbeat.

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
from .user_values import briefly, number_of

ROW, AT_ONCE = range(2)
"""Indices of the cells. ROW: number that is written after every row, usually the row's index. Only a change of this
number is a heartbeat, so a vector env of one row has no heartbeat within a step. AT_ONCE: number of rows of the current
call that makes or seeds rows, else 0.
"""
SECONDS_PER_ROW = 1.0
"""Extension of the timeout per row that a call makes or seeds. Making or seeding an Atari emulator takes 0.1 s on an
idle core, and 0.5 s on a core shared by six processes.
"""

T = TypeVar("T")


def heartbeat_of(source: ShapingSource) -> memoryview:
    """Return the heartbeat cells of a shaping source. If the source has no heartbeat, return unused cells."""
    watched: memoryview | None = getattr(source, "heartbeat", None)
    return memoryview(bytearray(16)).cast("q") if watched is None else watched


def with_heartbeat(heartbeat: memoryview, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and write the heartbeat after each item."""
    for row, item in enumerate(items):
        yield item
        heartbeat[ROW] = row


@contextmanager
def all_at_once(heartbeat: memoryview, rows: int) -> Iterator[None]:
    """Extend the heartbeat's timeout within the context, for a call that makes or seeds this number of rows."""
    heartbeat[AT_ONCE] = rows
    try:
        yield
    finally:
        heartbeat[ROW] += 1  # before the extension is removed, because the supervisor reads AT_ONCE first
        heartbeat[AT_ONCE] = 0


ROUNDING = 1e-3
_ACCOUNTS = ("raw_R", "shaped_R", "length_R", "shaping_version_R")


class EpisodeBook:
    """Statistics of the current episode of each row: raw and shaped return, length, shaping version.

    The shaping version counts the changes of a member's reward weights.

    A vector env calls `open_episode` at the start of an episode and `add` in every step. The vector env calls `write`
    at least in each step that ends an episode.
    """

    def __init__(self, rows: int, shaping: ShapingSource) -> None:
        self.raw_R = np.zeros(rows)
        self.shaped_R = np.zeros(rows)
        self.length_R = np.zeros(rows, np.int64)
        self.shaping_version_R = np.zeros(rows, np.int64)
        self._shaping = shaping

    def open_episode(self, row: int) -> Mapping[str, float]:
        """Start an episode in a row. Return the shaping values of the episode."""
        self.shaping_version_R[row], values = self._shaping(row)
        self.raw_R[row] = self.shaped_R[row] = self.length_R[row] = 0
        return values

    def save_state(self) -> dict[str, Any]:
        """Return the statistics as JSON types."""
        return {name: getattr(self, name).tolist() for name in _ACCOUNTS}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `save_state` returned."""
        for name in _ACCOUNTS:
            getattr(self, name)[:] = state[name]

    def add(
        self,
        raw: NDArray[np.float64],
        shaped: NDArray[np.floating[Any]],
        played: NDArray[np.bool_] | bool,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a step to the statistics.

        raw, shaped: rewards for the raw and the shaped return.
        played: True if the step counts for the episode's length.
        rows: indices of the rows, one for each entry of the other arguments. None: all rows.
        """
        if rows is None:  # a separate branch, because indexing takes as long as a step of a small environment
            self.raw_R += raw
            self.shaped_R += shaped
            self.length_R += played
        else:
            self.raw_R[rows] += raw
            self.shaped_R[rows] += shaped
            self.length_R[rows] += played

    def write(self, out: StepArrays, objective_R: NDArray[np.float64] | None = None) -> None:
        """Write the statistics of all rows to `out`. objective_R: objectives. None: the raw returns."""
        out.objective[:] = self.raw_R if objective_R is None else objective_R
        out.raw_return[:] = self.raw_R
        out.shaped_return[:] = self.shaped_R
        out.length[:] = self.length_R
        out.shaping_version[:] = self.shaping_version_R


def write_reset(out: StepArrays) -> None:
    """Mark the step as a reset of all rows: set `first`; set reward and all flags of ends to 0."""
    out.first[:] = True
    for array_R in (out.reward, out.terminated, out.truncated, out.episode_done):
        array_R[:] = 0


def true_objective(env_id: str, value: Any) -> float:
    """Return `info["true_objective"]` as a float. Raises EnvSetupError if the value is not a finite number.

    Members cannot be ranked with infinite objectives, because one infinite episode makes the mean infinite.
    """
    try:
        objective = number_of(value)
    except (TypeError, ValueError):
        objective = math.nan
    if not abs(objective) < LARGEST_REWARD:
        raise EnvSetupError(
            f'{env_id} breaks its contract: info["true_objective"] must be a finite number, got '
            f"{briefly(value)}. Use the worst possible number for a failed episode"
        )
    return objective


def objective_of(env_id: str, info: Mapping[str, Any], summed: float) -> float | None:
    """Return an episode's objective from its last info dict. None: use the sum of the rewards.

    `info["true_objective"]` takes precedence over `info["episode"]["r"]`, the return that Gymnasium's
    RecordEpisodeStatistics and similar wrappers record. The recorded return is used only if it differs from the sum,
    because a difference means that an outer wrapper changes the rewards.

    summed: sum of the rewards of the episode. Raises EnvSetupError, see `true_objective`.
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
