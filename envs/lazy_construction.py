"""Schedule of lazy construction: vector envs with slow rows start before all rows exist."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .base import VectorEnv

AT_ONCE_SECONDS = 8.0
"""Phase 1: seconds after an actor's start in which rows are made without a pause. If the learner still loads torch
after this time, the phase lasts until the learner's first answer.
"""
STEPS_AT_FIRST_SECONDS = 2.5
"""Phase 2: seconds of stepping without construction, enough for the first batch of a small population."""
STEPS_OF_A_PART, STEPS_OF_A_WHOLE = 0.25, 1.0
"""Phase 3: seconds of stepping per second of construction. PART: while the first vector env is incomplete. WHOLE: while
further vector envs are constructed.

PART is smaller, because steps with missing rows are less efficient: for these steps, the learner needs as much time as
for complete steps.
"""


@runtime_checkable
class LazilyConstructed(Protocol):
    """Protocol of vector envs with lazy construction, which start with some rows and add the missing rows later.

    A missing row sets `first` (see `StepArrays`) in every step, so the learner masks the steps of this row.
    """

    @property
    def incomplete(self) -> bool:
        """True if rows are missing."""

    def construct_more(self) -> None:
        """Make some of the missing rows. Called between two steps."""


class LazyConstruction:
    """Schedule of an actor's lazy construction. First it makes rows without pauses, later between two steps."""

    def __init__(self, vector_envs: Sequence[VectorEnv]) -> None:
        self._vector_envs: list[object] = list(vector_envs)
        self._from = time.monotonic()
        """Time at which the next missing rows are due."""
        self._at_once_until = self._from + AT_ONCE_SECONDS
        self._answered = False

    @property
    def waits_seconds(self) -> float | None:
        """Seconds that the actor may wait for actions before it makes the next rows. None: all rows exist."""
        if self._next_one() is None:
            return None
        return max(0.0, self._from - time.monotonic())

    def steps(self, number: int) -> bool:
        """Check whether vector env `number` may step. Vector env 0 may be incomplete; all others must be complete."""
        vector_env = self._vector_envs[number]
        return number == 0 or not (isinstance(vector_env, LazilyConstructed) and vector_env.incomplete)

    def note_answer(self) -> None:
        """Record that the learner has answered for the first time."""
        self._answered = True
        if not self._at_once(now := time.monotonic()):
            self._from = now + STEPS_AT_FIRST_SECONDS

    def iterate(self) -> bool:
        """Make some missing rows of a vector env if they are due. Return True if rows were made."""
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
