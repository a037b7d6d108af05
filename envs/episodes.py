"""The accounts of running episodes: returns, lengths and shaping versions, kept alike by every unit.

A unit calls `begin` when an episode starts on a row, `add` for every step of a row, and `write` before a step in which
an episode ends is read.

Axes: R rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import ShapingSource, StepArrays
from .values import number_of

ROUNDING = 1e-3
_ACCOUNTS = ("raw_R", "shaped_R", "length_R", "shaping_version_R")


class EpisodeBook:
    """Sums over the running episode of each row, and the version of the shaping that is in force in it."""

    def __init__(self, rows: int, shaping: ShapingSource) -> None:
        self.raw_R = np.zeros(rows)
        self.shaped_R = np.zeros(rows)
        self.length_R = np.zeros(rows, np.int64)
        self.shaping_version_R = np.zeros(rows, np.int64)
        self._shaping = shaping

    def begin(self, row: int) -> Mapping[str, float]:
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


def recorded_return(info: Any) -> float | None:
    """Return `info["episode"]["r"]`, the return that Gymnasium's RecordEpisodeStatistics and its like report."""
    episode = info.get("episode")
    if not isinstance(episode, Mapping) or "r" not in episode:
        return None
    try:
        recorded = number_of(episode["r"])
    except (TypeError, ValueError):
        return None
    return recorded if math.isfinite(recorded) else None


def differs(recorded: float, summed: float) -> bool:
    """Whether a recorded return is another than the sum of rewards, not only by what rounding does."""
    return abs(recorded - summed) > ROUNDING * max(1.0, abs(recorded), abs(summed))
