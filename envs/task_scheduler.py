"""Who is next: tasks in turn, so that each gets its share of steps (or of episodes) whatever an episode costs."""

from __future__ import annotations

from collections.abc import Sequence


class TaskScheduler:
    """Deals the task that has cost least so far; of several the first in `order`.

    So first each task comes once, then short ones until they have caught up; no task is ever more than one
    episode ahead of another.
    """

    def __init__(self, order: Sequence[int]) -> None:
        assert len(set(order)) == len(order) > 0
        self._spent = dict.fromkeys(order, 0)

    def spend(self, task: int, cost: int) -> None:
        """Note what an episode of a task has cost."""
        self._spent[task] += cost

    def next(self) -> int:
        """Task of the next episode."""
        return min(self._spent, key=self._spent.__getitem__)
