"""Statistics of running episodes (returns, lengths, shaping versions), and the heartbeat of a vector env.

The heartbeat shows progress: two cells of memory that the supervisor watches, so that slow environments are
not mistaken for hanging ones. It is the attribute `heartbeat` of a vector env's shaping source (see `ShapingSource`) in
an actor. A vector env that loops over rows in Python writes `heartbeat[ROW]` after each row: one store, without a
clock. A single call for all rows gives no heartbeat until it returns. `all_at_once` announces calls that make or seed
rows.

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
"""Cells. ROW: a number that changes with every row. AT_ONCE: number of rows in the current call."""
SECONDS_PER_ROW = 1.0
"""Timeout per row that is made or seeded in one call. An Atari game takes 0.1 s for either on an idle core, and 0.5
s on a core shared by six processes.
"""

T = TypeVar("T")


def heartbeat_of(source: ShapingSource) -> memoryview:
    """Return the heartbeat cells of a shaping source; unused cells if it has none."""
    watched: memoryview | None = getattr(source, "heartbeat", None)
    return memoryview(bytearray(16)).cast("q") if watched is None else watched


def with_heartbeat(heartbeat: memoryview, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and give a heartbeat when the caller requests the next one."""
    for row, item in enumerate(items):
        yield item
        heartbeat[ROW] = row


@contextmanager
def all_at_once(heartbeat: memoryview, rows: int) -> Iterator[None]:
    """Announce a call that makes or seeds this many rows before it returns."""
    heartbeat[AT_ONCE] = rows
    try:
        yield
    finally:
        heartbeat[ROW] += 1  # first, so that whoever sees the announcement removed also sees the heartbeat
        heartbeat[AT_ONCE] = 0


ROUNDING = 1e-3
_ACCOUNTS = ("raw_R", "shaped_R", "length_R", "shaping_version_R")


class EpisodeBook:
    """Sums over the current episode of each row, and the version of its shaping.

    A vector env calls `open_episode` when an episode starts on a row, `add` for every step of a row, and `write`
    before a step that ends an episode is read.
    """

    def __init__(self, rows: int, shaping: ShapingSource) -> None:
        self.raw_R = np.zeros(rows)
        self.shaped_R = np.zeros(rows)
        self.length_R = np.zeros(rows, np.int64)
        self.shaping_version_R = np.zeros(rows, np.int64)
        self._shaping = shaping

    def open_episode(self, row: int) -> Mapping[str, float]:
        """Start an episode on a row; return its shaping values."""
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
        """Add a step of these rows (default: all).

        raw, shaped: rewards for the two returns. played: whether a row took a step.
        """
        if rows is None:  # separate, because indexing costs as much as a step of a small environment
            self.raw_R += raw
            self.shaped_R += shaped
            self.length_R += played
        else:
            self.raw_R[rows] += raw
            self.shaped_R[rows] += shaped
            self.length_R[rows] += played

    def write(self, out: StepArrays, objective_R: NDArray[np.float64] | None = None) -> None:
        """Write the statistics of all rows. objective_R: default is the raw return."""
        out.objective[:] = self.raw_R if objective_R is None else objective_R
        out.raw_return[:] = self.raw_R
        out.shaped_return[:] = self.shaped_R
        out.length[:] = self.length_R
        out.shaping_version[:] = self.shaping_version_R


def write_reset(out: StepArrays) -> None:
    """Mark the step of all rows as a reset: `first` is set, the reward is 0 and no episode has ended."""
    out.first[:] = True
    for array_R in (out.reward, out.terminated, out.truncated, out.episode_done):
        array_R[:] = 0


def true_objective(env_id: str, value: Any) -> float:
    """Return `info["true_objective"]`. Raises EnvSetupError for a value that is not a finite number.

    One infinite episode would make every mean infinite, so that members could not be ranked.
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
    """Return an episode's objective from its last info dict; None if it is the sum of its rewards.

    That is the true objective, or `info["episode"]["r"]`, the return from Gymnasium's RecordEpisodeStatistics and
    similar wrappers. The latter counts if it differs from the sum by more than rounding, because outer wrappers
    changed the rewards.
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
