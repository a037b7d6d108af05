"""How far a run of `tune.run` is: what its callback is told, and one line on the screen every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LINE_SECONDS = 5.0


@dataclass(frozen=True)
class MemberProgress:
    """One member. objective: None before its first evaluation; NaN if it is broken."""

    member: int
    generation: int
    steps: int
    objective: float | None
    hypers: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """All members after a round of evaluations. steps: of the least trained one that goes on; of: to be taken."""

    steps: int
    of: int
    changes: int
    """Decisions that changed a member, so far."""
    members: Sequence[MemberProgress]

    @property
    def best(self) -> MemberProgress | None:
        """The member with the highest finite objective."""
        known = [m for m in self.members if m.objective is not None and math.isfinite(m.objective)]
        return max(known, key=lambda m: (m.objective or 0.0, -m.member), default=None)

    def line(self, seconds_left: float | None = None) -> str:
        """Return one line for the screen."""
        parts = [f"step {self.steps:,} of {self.of:,}"]
        if self.best is not None and self.best.objective is not None:
            hypers = ", ".join(f"{name} {_short(value)}" for name, value in self.best.hypers.items())
            parts.append(f"best {self.best.objective:.4g} (member {self.best.member}: {hypers})")
        parts.append(f"changes {self.changes}")
        if seconds_left is not None:
            parts.append(f"{seconds_left:.0f} s left")
        return " | ".join(parts)


class Screen:
    """Prints a line to stderr every LINE_SECONDS; nothing for a run that is over before."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began + LINE_SECONDS
        self._first: tuple[float, int] | None = None

    def show(self, progress: Progress) -> None:
        """Print the line if it is time."""
        now = time.monotonic()
        self._first = self._first or (now, progress.steps)
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        taken = progress.steps - self._first[1]
        left = (now - self._first[0]) / taken * (progress.of - progress.steps) if taken > 0 else None
        print(progress.line(left), file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
