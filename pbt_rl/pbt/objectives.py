"""Objectives of one member over several tasks. Pure bookkeeping.

A *round* is one episode of every task. Members are compared by rounds, so that a task does not weigh more because
its episodes are shorter. An environment without tasks counts as one task, and a round is one episode.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


class ObjectiveWindow:
    """The newest objectives of a member, per task.

    tasks: their number. window: at most this many rounds count. cap: the mean of a task counts at most this much.
    """

    def __init__(self, tasks: int, window: int, cap: float | None = None) -> None:
        assert tasks > 0
        self._cap = cap
        self._scores: list[deque[float]] = [deque(maxlen=window) for _ in range(tasks)]
        self._returns: list[deque[float]] = [deque(maxlen=window) for _ in range(tasks)]
        self._counts = [0] * tasks

    def add(self, task: int, objective: float, raw_return: float) -> None:
        """Count a finished episode."""
        self._scores[task].append(objective)
        self._returns[task].append(raw_return)
        self._counts[task] += 1

    def clear(self) -> None:
        """Forget everything."""
        self._empty()
        self._counts = [0] * len(self._counts)

    def spoil(self) -> None:
        """Let one NaN stand for everything in the window, and count it; the counts of episodes go on."""
        self._empty()
        for task in range(len(self._counts)):
            self.add(task, math.nan, math.nan)

    def _empty(self) -> None:
        for window in (*self._scores, *self._returns):
            window.clear()

    @property
    def rounds(self) -> int:
        """Number of finished rounds; may exceed the window."""
        return min(self._counts)

    def objectives(self, rounds: int | None = None) -> tuple[float, ...]:
        """Return one number per round, oldest first, for the newest `rounds` (None: all in the window).

        Their mean is the objective: the mean over tasks of the mean of each task, cut off at the cap. The cut lowers
        all episodes of a task by the same amount, so that rounds keep their spread.
        """
        known = min(len(scores) for scores in self._scores)
        rounds = known if rounds is None else min(rounds, known)
        if not rounds:
            return ()
        newest = [self._capped(list(scores)[-rounds:]) for scores in self._scores]
        return tuple(newest[0]) if len(newest) == 1 else tuple(map(mean, zip(*newest, strict=True)))

    def of_task(self, task: int) -> tuple[float, float, int] | None:
        """Return a task's mean objective and mean return in the window, uncapped, and its number of episodes.

        None without any episode.
        """
        if not self._counts[task]:
            return None
        return mean(self._scores[task]), mean(self._returns[task]), self._counts[task]

    def _capped(self, scores: list[float]) -> list[float]:
        if self._cap is None:
            return scores
        above = mean(scores) - self._cap
        return [score - above for score in scores] if 0 < above < math.inf else scores


def mean(values: Sequence[float]) -> float:
    """Return the mean; of a single value exactly that value. NaN if infinities cancel."""
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values)
    return math.fsum(values) / len(values)
