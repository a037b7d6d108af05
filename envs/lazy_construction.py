"""Schedule of lazy construction: vector envs with slow rows start before all rows exist."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .base import VectorEnv

AT_ONCE_SECONDS = 8.0
"""Seconds from an actor's start in which missing rows are made without a pause. It continues until the learner first
answers, which has to load torch. Steps of an incomplete vector env cost the learner as much as those of a complete
one.
"""
STEPS_AT_FIRST_SECONDS = 2.5
"""Seconds for steps after that: enough for the first batch of a small population."""
STEPS_OF_A_PART, STEPS_OF_A_WHOLE = 0.25, 1.0
"""Seconds for steps per second of construction: for an incomplete vector env, and for complete ones while others are
built.

Most steps of an incomplete vector env are discarded but cost the learner as much.
"""


@runtime_checkable
class LazilyConstructed(Protocol):
    """Vector env with lazy construction: it starts with some rows and adds the others while it runs.

    A missing row delivers `first` in every step, so its steps are ignored.
    """

    @property
    def incomplete(self) -> bool:
        """Check whether rows are missing."""

    def construct_more(self) -> None:
        """Make some of the missing rows, between two steps."""


class LazyConstruction:
    """Schedule by which an actor makes missing rows: first without pauses, later between steps."""

    def __init__(self, vector_envs: Sequence[VectorEnv]) -> None:
        self._vector_envs: list[object] = list(vector_envs)
        self._from = time.monotonic()
        """Time at which the next missing rows are due."""
        self._at_once_until = self._from + AT_ONCE_SECONDS
        self._answered = False

    @property
    def waits_seconds(self) -> float | None:
        """Return the seconds that the actor may wait for actions before it makes the next row. None: all rows exist."""
        if self._next_one() is None:
            return None
        return max(0.0, self._from - time.monotonic())

    def steps(self, number: int) -> bool:
        """Check whether to step a vector env now: the first starts incomplete, others when complete."""
        vector_env = self._vector_envs[number]
        return number == 0 or not (isinstance(vector_env, LazilyConstructed) and vector_env.incomplete)

    def note_answer(self) -> None:
        """Record the learner's first answer."""
        self._answered = True
        if not self._at_once(now := time.monotonic()):
            self._from = now + STEPS_AT_FIRST_SECONDS

    def iterate(self) -> bool:
        """Make some missing rows of a vector env, if they are due."""
        began = time.monotonic()
        vector_env = self._next_one() if began >= self._from else None
        if vector_env is None:
            return False
        share = STEPS_OF_A_PART if vector_env is self._vector_envs[0] else STEPS_OF_A_WHOLE
        vector_env.construct_more()
        now = time.monotonic()
        if not self._at_once(now):
            self._from = now + (STEPS_AT_FIRST_SECONDS if self._at_once(began) else share * (now - began))
        return True

    def _at_once(self, now: float) -> bool:
        return not self._answered or now < self._at_once_until

    def _next_one(self) -> LazilyConstructed | None:
        return next(
            (
                vector_env
                for vector_env in self._vector_envs
                if isinstance(vector_env, LazilyConstructed) and vector_env.incomplete
            ),
            None,
        )
