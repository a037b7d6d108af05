"""Rules of readiness in which each member has its own clock: each by itself, and as soon as enough have arrived."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import MemberReport, PopulationReport
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.ready import PERIOD_OPTIONS, ReadyRule, Round, comparable, grown, periods


@dataclass
class Clocks:
    """When each member is due, in its own frames: first at `start_frames`, but not before one whole period."""

    period_frames: int
    start_frames: int
    growth: float
    held: int = field(default=0, init=False)
    """Comparisons."""
    _due: dict[int, int] = field(default_factory=dict, init=False)
    _rounds: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        assert self.period_frames > 0
        assert self.growth >= 1

    def arrived(self, member: MemberReport) -> bool:
        """Return whether the member is due."""
        return self.frames_left(member) == 0

    def frames_left(self, member: MemberReport) -> int:
        """Return the frames until the member is due."""
        due = self._due.get(member.member, max(self.start_frames, self.period_frames))
        return max(0, due - member.frames)

    def restart(self, members: Iterable[MemberReport]) -> None:
        """Count a comparison of these members."""
        self.held += 1
        for m in members:
            rounds = self._rounds[m.member] = self._rounds.get(m.member, 0) + 1
            self._due[m.member] = m.frames + grown(self.period_frames, self.growth, rounds)


@dataclass
class Asynchronous:
    """Each member on its own clock, compared with the others as they are (Jaderberg et al. 2017, algorithm 1).

    A member decides once it has trained `period_frames` since it last did (the first time: `start_frames`, but not
    less than a period) and has `min_episodes` episodes since its last change; until then its comparison stays due.
    The others are those that have enough episodes, whatever their clocks show; without any it waits, too.
    growth: a member's next period is its last one times this.
    """

    period_frames: int
    start_frames: int
    min_episodes: int
    growth: float = 1.0
    _clocks: Clocks = field(init=False)

    def __post_init__(self) -> None:
        self._clocks = Clocks(self.period_frames, self.start_frames, self.growth)

    def frames_left(self, report: PopulationReport) -> int:
        """Return those of the member that is due first."""
        return min((self._clocks.frames_left(m) for m in report.members), default=0)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Let the members that have arrived decide, among all that can be compared."""
        judged = tuple(m for m in report.members if comparable(m, self.min_episodes))
        arrived = [m for m in judged if self._clocks.arrived(m)]
        if len(judged) < 2 or not arrived:
            return None
        self._clocks.restart(arrived)
        return Round(self._clocks.held, judged, "", frozenset(m.member for m in arrived))


@dataclass
class PartiallySynchronous:
    """Those that have arrived, as soon as they are this fraction of the members (Jaderberg et al. 2017, A.1).

    A member arrives when it has trained `period_frames` since its last comparison (the first time: `start_frames`,
    but not less than a period) and has `min_episodes` episodes since its last change. Members that come too late
    have arrived for the next comparison. At least two must have arrived. growth: a member's next period is its last
    one times this.
    """

    period_frames: int
    start_frames: int
    min_episodes: int
    growth: float = 1.0
    fraction: float = field(default=0.8, kw_only=True)
    _clocks: Clocks = field(init=False)

    def __post_init__(self) -> None:
        assert 0 < self.fraction <= 1
        self._clocks = Clocks(self.period_frames, self.start_frames, self.growth)

    def frames_left(self, report: PopulationReport) -> int:
        """Return those of the member that makes them enough."""
        left = sorted(self._clocks.frames_left(m) for m in report.members)
        needed = self._needed(report)
        return left[needed - 1] if len(left) >= needed else 0

    def _needed(self, report: PopulationReport) -> int:
        return max(2, math.ceil(self.fraction * len(report.members) - 1e-9))

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that have arrived, if they are enough."""
        arrived = [m for m in report.members if comparable(m, self.min_episodes) and self._clocks.arrived(m)]
        if len(arrived) < self._needed(report):
            return None
        self._clocks.restart(arrived)
        there = {m.member for m in arrived}
        missing = [str(m.member) for m in report.members if m.member not in there]
        note = f"without {', '.join(missing)}: on their way" if missing else ""
        return Round(self._clocks.held, tuple(arrived), note)


def _partially(pbt: PbtConfig) -> PartiallySynchronous:
    return PartiallySynchronous(*periods(pbt), fraction=pbt.ready_fraction)


ASYNCHRONOUS = ReadyRule(
    lambda pbt: Asynchronous(*periods(pbt)),
    help="each member at its own times, with the others as they are then (Jaderberg et al. 2017).",
)
PARTIALLY_SYNCHRONOUS = ReadyRule(
    _partially,
    (*PERIOD_OPTIONS, "pbt.ready_fraction"),
    help="the members that have arrived, once they are enough (Jaderberg et al.).",
)
