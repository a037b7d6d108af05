"""Objectives of one member over several tasks. Pure bookkeeping.

A *round* is one episode of every task. Without tasks, a round is one episode. Members are compared by rounds, because a
task with shorter episodes must not have a larger weight.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from statistics import pstdev

from pbt_rl.controllers.records import finite

Judged = tuple[int, float, float]
"""(index of the task, objective, return) of an episode. Without tasks, the index is 0."""


def by_score(objectives: Mapping[int, float | None], final_scores: Mapping[int, float | None]) -> list[int]:
    """Return the members with a finite score, best first. Ties go to the lower id.

    objectives: member -> last objective in training. final_scores: member -> mean of the final evaluation.
    Members with a final evaluation rank first, because the highest of many training means is partly luck. The best
    member of a run is the first listed member outside the control group.
    """
    order: dict[int, None] = {}
    for scores in (final_scores, objectives):
        known = {m: score for m, one in scores.items() if (score := finite(one)) is not None}
        order |= dict.fromkeys(sorted(known, key=lambda m: (-known[m], m)))
    return list(order)


@dataclass(eq=False)
class _Task:
    """Newest objectives and returns of one task, and number of its episodes."""

    window: int
    scores: deque[float] = field(init=False)
    returns: deque[float] = field(init=False)
    episodes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.scores, self.returns = deque(maxlen=self.window), deque(maxlen=self.window)

    def add(self, objective: float, raw_return: float) -> None:
        self.scores.append(objective)
        self.returns.append(raw_return)
        self.episodes += 1

    def empty(self) -> None:
        self.scores.clear()
        self.returns.clear()


@dataclass(eq=False)
class ObjectiveWindow:
    """Newest objectives of a member, per task.

    tasks: number of tasks. window: maximum number of episodes per task. cap: upper limit of each task's mean. None: no
    limit.
    """

    tasks: InitVar[int]
    window: InitVar[int]
    cap: float | None = None
    _tasks: tuple[_Task, ...] = field(init=False)

    def __post_init__(self, tasks: int, window: int) -> None:
        assert tasks > 0
        self._tasks = tuple(_Task(window) for _ in range(tasks))

    def add(self, task: int, objective: float, raw_return: float) -> None:
        """Add a finished episode.

        task: index of the task, 0 without tasks. raw_return: sum of the rewards before shaping.
        """
        self._tasks[task].add(objective, raw_return)

    def clear(self) -> None:
        """Remove all episodes, and set the numbers of episodes to 0."""
        for task in self._tasks:
            task.empty()
            task.episodes = 0

    def spoil(self) -> None:
        """Replace the window of each task with a single NaN. The NaN counts as an episode."""
        for task in self._tasks:
            task.empty()
            task.add(math.nan, math.nan)

    @property
    def rounds(self) -> int:
        """Number of finished rounds since the last `clear`, including rounds that have left the window."""
        return min(task.episodes for task in self._tasks)

    @property
    def full(self) -> bool:
        """True if the window is full."""
        return all(len(task.scores) == task.window for task in self._tasks)

    def objectives(self, rounds: int | None = None) -> tuple[float, ...]:
        """Return the mean objective over the tasks in each round, oldest round first.

        rounds: maximum number of newest rounds. None: the whole window.
        The mean of the returned numbers is the member's objective: the mean over tasks of the task means, each clipped
        to the cap. Clipping lowers all episodes of a task equally, because the variation between rounds must not
        change.
        """
        known = min(len(task.scores) for task in self._tasks)
        rounds = known if rounds is None else min(rounds, known)
        if not rounds:
            return ()
        newest = [self._capped(list(task.scores)[-rounds:]) for task in self._tasks]
        return tuple(newest[0]) if len(newest) == 1 else tuple(map(mean, zip(*newest, strict=True)))

    def of_task(self, task: int) -> tuple[float, float, int] | None:
        """Return (mean objective, mean return, number of episodes) of a task, or None without an episode.

        task: index of the task. The means are over the window, without the cap. The number includes episodes that have
        left the window.
        """
        known = self._tasks[task]
        return (mean(known.scores), mean(known.returns), known.episodes) if known.episodes else None

    def _capped(self, scores: list[float]) -> list[float]:
        if self.cap is None:
            return scores
        above = mean(scores) - self.cap
        return [score - above for score in scores] if 0 < above < math.inf else scores


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value. The result is NaN if infinities cancel or the sum overflows.

    The mean of a single value is exactly this value.
    """
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values)
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.nan


def spread(values: Sequence[float]) -> float:
    """Return the population standard deviation of at least one value. NaN if a value is not finite."""
    return pstdev(values) if all(map(math.isfinite, values)) else math.nan
