"""Objectives of one member over several tasks: pure bookkeeping.

A *round* is one episode of every task. Members are judged by rounds, so that no task weighs more than another
because its episodes are short. Without tasks there is one nameless task, and a round is an episode.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


class ObjectiveWindow:
    """The newest objectives of a member, task by task.

    tasks: how many there are. window: rounds that count at most. cap: no more than this counts of a task's mean.
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
        for window in (*self._scores, *self._returns):
            window.clear()
        self._counts = [0] * len(self._counts)

    @property
    def rounds(self) -> int:
        """How many episodes of every task have finished; may exceed the window."""
        return min(self._counts)

    def objectives(self, rounds: int | None = None) -> tuple[float, ...]:
        """One number a round, oldest first, of the newest `rounds` (None: as many as the window has).

        Their mean is the objective: the mean over tasks of each one's mean, where a mean above the cap counts as the
        cap. The episodes of such a task are lowered by the same amount, so that rounds keep their spread.
        """
        known = min(len(scores) for scores in self._scores)
        rounds = known if rounds is None else min(rounds, known)
        if not rounds:
            return ()
        newest = [self._capped(list(scores)[-rounds:]) for scores in self._scores]
        return tuple(newest[0]) if len(newest) == 1 else tuple(map(_mean, zip(*newest, strict=True)))

    def of_task(self, task: int) -> tuple[float, float, int] | None:
        """Mean objective and mean return of a task within the window, uncapped, and episodes; None without any."""
        if not self._counts[task]:
            return None
        return _mean(self._scores[task]), _mean(self._returns[task]), self._counts[task]

    def _capped(self, scores: list[float]) -> list[float]:
        mean = _mean(scores)
        if self._cap is None or not self._cap < mean < math.inf:
            return scores
        return [score - (mean - self._cap) for score in scores]


def _mean(values: Sequence[float]) -> float:
    """Mean; with one value the value itself, to the bit. NaN where infinities cancel."""
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values)
    return math.fsum(values) / len(values)
