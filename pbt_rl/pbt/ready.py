"""When members are compared, and which of them take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pbt_rl.pbt.decisions import MemberReport, PopulationReport

LATE_SHARE = 0.1
"""A comparison later than this share of a period says so in its note."""


@dataclass(frozen=True)
class Round:
    """One comparison: its number (from 1), who takes part, and what is unusual about it (may be empty)."""

    number: int
    members: tuple[MemberReport, ...]
    note: str


class Ready(Protocol):
    """Says when it is time to compare. A report that it answers with None leaves its state unchanged."""

    def next_round(self, report: PopulationReport) -> Round | None:
        """Start a comparison if one is due and can be held; it then counts as held."""

    def state_dict(self) -> dict[str, Any]:
        """All state, as JSON types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""


class Synchronous:
    """All members together, every `period_frames` of each member's frames, after a burn-in.

    The clock is `PopulationReport.frames`. The first comparison is due at `start_frames`, but not before one
    whole period; each later one a period after the last was *held*, so that they do not pile up after a pause
    and every meta-epoch is a whole one.

    A member with fewer than `min_episodes` episodes since its last change waits: it is neither ranked nor
    changed nor a donor, and takes part in the next comparison. With fewer than two ready members nothing can
    be compared: the comparison stays due until there are two (a population of one is never compared).
    """

    def __init__(self, period_frames: int, start_frames: int, min_episodes: int) -> None:
        assert period_frames > 0
        assert min_episodes > 0
        self.period_frames = period_frames
        self.min_episodes = min_episodes
        self._held = 0
        self._due_frames = max(start_frames, period_frames)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Members that are ready, once a comparison is due and two of them are."""
        if report.frames < self._due_frames:
            return None
        ready = tuple(m for m in report.members if m.episodes >= self.min_episodes)
        if len(ready) < 2:
            return None
        note = self._note(report)
        self._held += 1
        self._due_frames = report.frames + self.period_frames
        return Round(self._held, ready, note)

    def _note(self, report: PopulationReport) -> str:
        # Told from the due time and this report alone: the reports that postponed a comparison must leave no
        # state, or decisions could not be replayed from the comparisons that were held.
        notes = []
        if report.frames - self._due_frames > LATE_SHARE * self.period_frames:
            notes.append(f"compared at {report.frames:,} frames, due at {self._due_frames:,}")
        waiting = [str(m.member) for m in report.members if m.episodes < self.min_episodes]
        if waiting:
            notes.append(f"without {', '.join(waiting)}: fewer than {self.min_episodes} episodes")
        return "; ".join(notes)

    def state_dict(self) -> dict[str, Any]:
        """Comparisons held, and when the next is due."""
        return {"held": self._held, "due_frames": self._due_frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._held = int(state["held"])
        self._due_frames = int(state["due_frames"])
