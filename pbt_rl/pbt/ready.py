"""When members are compared, and which of them take part."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pbt_rl.pbt.decisions import MemberReport, PopulationReport

LATE_SHARE = 0.1
"""A comparison later than this share of a period says so in its note."""

FOREVER = 10**18
"""Frames that no run reaches."""


@dataclass(frozen=True)
class Round:
    """One comparison: its number (from 1), who takes part, and what is unusual about it (may be empty).

    deciding: members that may change; None for all. The others are there to be compared with.
    """

    number: int
    members: tuple[MemberReport, ...]
    note: str
    deciding: frozenset[int] | None = None


class Ready(Protocol):
    """Says when it is time to compare. A report that it answers with None leaves its state unchanged."""

    def next_round(self, report: PopulationReport) -> Round | None:
        """Start a comparison if one is due and can be held; it then counts as held."""

    def state_dict(self) -> dict[str, Any]:
        """All state, as JSON types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""


def comparable(member: MemberReport, min_episodes: int) -> bool:
    """Whether there is anything to judge a member by: enough episodes, or that it is broken."""
    return member.broken or member.episodes >= min_episodes


class Synchronous:
    """All members together, every `period_frames` of each member's frames, after a burn-in.

    Sample Factory's, Ray's `synch=True`, and appendix A.1 of Jaderberg et al. (2017). The clock is
    `PopulationReport.frames`. The first comparison is due at `start_frames`, but not before one whole period; each
    later one a period after the last was *held*, so that they do not pile up after a pause and every meta-epoch is
    a whole one. growth: each period is the last one times this.

    A member with fewer than `min_episodes` episodes since its last change waits: it is neither ranked nor
    changed nor a donor, and takes part in the next comparison. With fewer than two ready members nothing can
    be compared: the comparison stays due until there are two (a population of one is never compared).
    """

    def __init__(self, period_frames: int, start_frames: int, min_episodes: int, growth: float = 1.0) -> None:
        assert period_frames > 0
        assert min_episodes > 0
        assert growth >= 1
        self.period_frames = period_frames
        self.min_episodes = min_episodes
        self.growth = growth
        self._held = 0
        self._due_frames = max(start_frames, period_frames)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Members that are ready, once a comparison is due and two of them are."""
        if report.frames < self._due_frames:
            return None
        ready = tuple(m for m in report.members if comparable(m, self.min_episodes))
        if len(ready) < 2:
            return None
        note = self._note(report)
        self._held += 1
        self._due_frames = report.frames + self._period()
        return Round(self._held, ready, note)

    def _period(self) -> int:
        return grown(self.period_frames, self.growth, self._held)

    def _note(self, report: PopulationReport) -> str:
        # Told from the due time and this report alone: the reports that postponed a comparison must leave no
        # state, or decisions could not be replayed from the comparisons that were held.
        notes = []
        if report.frames - self._due_frames > LATE_SHARE * self._period():
            notes.append(f"compared at {report.frames:,} frames, due at {self._due_frames:,}")
        waiting = [str(m.member) for m in report.members if not comparable(m, self.min_episodes)]
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


class Asynchronous:
    """Each member on its own clock, compared with the others as they are (Jaderberg et al. 2017, algorithm 1).

    A member decides once it has trained `period_frames` since it last did (the first time: `start_frames`, but not
    less than a period) and has `min_episodes` episodes since its last change; until then its comparison stays due.
    The others are those that have enough episodes, wherever their clocks stand; without any it waits, too.
    growth: a member's next period is its last one times this.
    """

    def __init__(self, period_frames: int, start_frames: int, min_episodes: int, growth: float = 1.0) -> None:
        self.min_episodes = min_episodes
        self._clocks = _Clocks(period_frames, start_frames, growth)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Members that have arrived, among all that can be compared."""
        judged = tuple(m for m in report.members if comparable(m, self.min_episodes))
        arrived = [m for m in judged if self._clocks.arrived(m)]
        if len(judged) < 2 or not arrived:
            return None
        self._clocks.restart(arrived)
        return Round(self._clocks.held, judged, "", frozenset(m.member for m in arrived))

    def state_dict(self) -> dict[str, Any]:
        """The members' clocks."""
        return self._clocks.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._clocks.load_state_dict(state)


class PartiallySynchronous:
    """Those that have arrived, as soon as they are this fraction of the members (Jaderberg et al. 2017, A.1).

    A member arrives when it has trained `period_frames` since its last comparison (the first time: `start_frames`,
    but not less than a period) and has `min_episodes` episodes since its last change. Members that come too late
    have arrived for the next comparison. At least two must have arrived. growth: a member's next period is its last
    one times this.
    """

    def __init__(
        self,
        period_frames: int,
        start_frames: int,
        min_episodes: int,
        growth: float = 1.0,
        *,
        fraction: float = 0.8,
    ) -> None:
        assert 0 < fraction <= 1
        self.min_episodes = min_episodes
        self.fraction = fraction
        self._clocks = _Clocks(period_frames, start_frames, growth)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Members that have arrived, if they are enough."""
        arrived = [m for m in report.members if comparable(m, self.min_episodes) and self._clocks.arrived(m)]
        if len(arrived) < max(2, math.ceil(self.fraction * len(report.members) - 1e-9)):
            return None
        self._clocks.restart(arrived)
        there = {m.member for m in arrived}
        missing = [str(m.member) for m in report.members if m.member not in there]
        note = f"without {', '.join(missing)}: on their way" if missing else ""
        return Round(self._clocks.held, tuple(arrived), note)

    def state_dict(self) -> dict[str, Any]:
        """The members' clocks."""
        return self._clocks.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._clocks.load_state_dict(state)


class _Clocks:
    """When each member is due, in its own frames."""

    def __init__(self, period_frames: int, start_frames: int, growth: float) -> None:
        assert period_frames > 0
        assert growth >= 1
        self._period_frames = period_frames
        self._growth = growth
        self._first = max(start_frames, period_frames)
        self._due: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        self.held = 0

    def arrived(self, member: MemberReport) -> bool:
        return member.frames >= self._due.get(member.member, self._first)

    def restart(self, members: Iterable[MemberReport]) -> None:
        """Count a comparison of these members."""
        self.held += 1
        for m in members:
            rounds = self._rounds[m.member] = self._rounds.get(m.member, 0) + 1
            self._due[m.member] = m.frames + grown(self._period_frames, self._growth, rounds)

    def state_dict(self) -> dict[str, Any]:
        members = {str(m): [self._due[m], rounds] for m, rounds in self._rounds.items()}
        return {"held": self.held, "members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = int(state["held"])
        self._due = {int(m): int(due) for m, (due, _) in state["members"].items()}
        self._rounds = {int(m): int(rounds) for m, (_, rounds) in state["members"].items()}


def grown(period_frames: int, growth: float, rounds: int) -> int:
    """Period after so many comparisons, within what any clock can reach."""
    if rounds * math.log(growth) > math.log(FOREVER / period_frames):
        return FOREVER
    return round(period_frames * growth**rounds)
