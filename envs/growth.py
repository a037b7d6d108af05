"""When an actor makes the rows that its units lack: units whose rows take long to make begin without some of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .base import Unit

AT_ONCE_SECONDS = 8.0
"""From an actor's start: missing rows are made without a pause, and as long as the learner has not answered, which
loads torch. Steps of a unit that lacks rows cost the learner as much as those of a whole one."""
STEPS_AT_FIRST_SECONDS = 2.5
"""Time for steps after that: enough for the first batch of a small population."""
STEPS_OF_A_PART, STEPS_OF_A_WHOLE = 0.25, 1.0
"""Time for steps as a share of that for making missing rows: of a unit that lacks rows itself, most of whose steps
count for nothing but cost the learner as much; of a whole one, while rows of the next are made."""


@runtime_checkable
class Grows(Protocol):
    """A unit whose rows take long to make: it begins with some and gets the others while it runs.

    A row that is not there delivers `first` in every step, so nothing of it counts.
    """

    @property
    def grows(self) -> bool:
        """Whether rows are missing."""

    def grow(self) -> None:
        """Between two steps: make some of them."""


class Growth:
    """When an actor makes the missing rows of its units: at first one after the other, later between their steps."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units: list[object] = list(units)
        self._from = time.monotonic()
        """The next missing rows are made then."""
        self._at_once_until = self._from + AT_ONCE_SECONDS
        self._answered = False

    @property
    def waits_seconds(self) -> float | None:
        """How long the actor can wait for actions; None for ever, if no rows are missing."""
        if self._next_one() is None:
            return None
        return max(0.0, self._from - time.monotonic())

    def steps(self, number: int) -> bool:
        """Whether a unit is to be stepped now: the first one begins with some of its rows, others when whole."""
        unit = self._units[number]
        return number == 0 or not (isinstance(unit, Grows) and unit.grows)

    def note_answer(self) -> None:
        """Note that the learner has answered for the first time."""
        self._answered = True
        if not self._at_once(now := time.monotonic()):
            self._from = now + STEPS_AT_FIRST_SECONDS

    def turn(self) -> bool:
        """Make some missing rows of a unit, if they are due."""
        began = time.monotonic()
        unit = self._next_one() if began >= self._from else None
        if unit is None:
            return False
        share = STEPS_OF_A_PART if unit is self._units[0] else STEPS_OF_A_WHOLE
        unit.grow()
        now = time.monotonic()
        if not self._at_once(now):
            self._from = now + (STEPS_AT_FIRST_SECONDS if self._at_once(began) else share * (now - began))
        return True

    def _at_once(self, now: float) -> bool:
        return not self._answered or now < self._at_once_until

    def _next_one(self) -> Grows | None:
        return next((unit for unit in self._units if isinstance(unit, Grows) and unit.grows), None)
