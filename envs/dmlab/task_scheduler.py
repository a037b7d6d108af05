"""Schedules tasks so that each gets an equal share of steps (or of episodes), however long its episodes are."""

from __future__ import annotations

from collections.abc import Sequence


class TaskScheduler:
    """Chooses the task that has cost least so far; among equals the first in `order`.

    So each task comes once at first, then short ones until they have caught up; no task is ever more than one
    episode ahead of another.
    """

    def __init__(self, order: Sequence[int]) -> None:
        assert len(set(order)) == len(order) > 0
        self._spent = dict.fromkeys(order, 0)

    def spend(self, task: int, cost: int) -> None:
        """Add the cost of an episode of a task."""
        self._spent[task] += cost

    def next(self) -> int:
        """Return the task of the next episode."""
        return min(self._spent, key=self._spent.__getitem__)
