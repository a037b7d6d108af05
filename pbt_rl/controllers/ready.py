"""Ready rules: times and participants of comparisons.

Contains the protocol of ready rules, the registry entry, and the rules. A rule compares all members together (by frames
or by training time), or compares members on their own clocks. The training time is in the report, which the journal
records. Pure: seeded Python without processes, files or torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pbt_rl.controllers.decisions import MemberReport, PopulationReport
from pbt_rl.controllers.options import PbtConfig

FOREVER = 10**18
"""More frames than any run can reach."""


@dataclass(frozen=True)
class DueComparison:
    """Comparison that is due.

    number: number of the comparison, from 1. members: participants. note: unusual circumstance for the journal, or "".
    deciding: ids of the members that may change. None: all participants. The other participants are only ranked, and
    may be donors.
    """

    number: int
    members: tuple[MemberReport, ...]
    note: str
    deciding: frozenset[int] | None = None


class Ready(Protocol):
    """Ready rule: decides when members are compared.

    Implement the rule as a dataclass. Fields with `init=False` are the rule's state.
    """

    def next_comparison(self, report: PopulationReport) -> DueComparison | None:
        """Return the comparison that is due and possible. None: no comparison, and the rule's state must not change."""

    def frames_left(self, report: PopulationReport) -> int:
        """Return the number of frames per member until the next comparison. 0: the comparison is due."""


PERIOD_OPTIONS = ("pbt.period_frames", "pbt.start_frames", "pbt.min_episodes", "pbt.period_growth")


@dataclass(frozen=True)
class ReadyRule:
    """Registry entry of a ready rule."""

    build: Callable[[PbtConfig], Ready]
    """Function (options) -> rule."""
    options: tuple[str, ...] = PERIOD_OPTIONS
    """Names of the options that `build` reads."""
    by_time: bool = False
    """True if the rule reads `PopulationReport.seconds`."""
    help: str = ""
    """Help text. "" if the docstring of --pbt.ready describes the rule."""


def periods(pbt: PbtConfig) -> tuple[int, int, int, float]:
    """Return the options in `PERIOD_OPTIONS`: (period in frames, start in frames, minimum episodes, growth factor)."""
    return pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth


def comparable(member: MemberReport, min_episodes: int) -> bool:
    """Check whether a member has enough episodes for a comparison. A broken member needs no episodes."""
    return member.broken or member.episodes >= min_episodes


COMPARE_NEWEST = frozenset({"synchronous", "timed"})
"""Names of the rules that compare only the episodes since the last comparison."""


def since_comparison(member: MemberReport) -> MemberReport:
    """Return the member's report, limited to the episodes since the last decision about the member."""
    if member.broken or member.recent is None or member.recent >= member.episodes:
        return member
    newest = member.objectives[-member.recent :] if member.recent else ()
    return replace(member, objectives=newest, episodes=member.recent)


def grown(period_frames: int, growth: float, comparisons: int) -> int:
    """Return the length in frames of the period after a number of comparisons, at most `FOREVER`."""
    if comparisons * math.log(growth) > math.log(FOREVER / period_frames):
        return FOREVER
    return round(period_frames * growth**comparisons)


LATE_SHARE = 0.1
"""A comparison has a note in the journal if its delay is larger than this fraction of a period."""


def _ready(report: PopulationReport, min_episodes: int, *, late: bool) -> tuple[MemberReport, ...]:
    """Return the members to compare together, or () if fewer than two members are ready.

    late: True if the comparison has been due for at least one period. If False, also return () if less than half of the
    members are ready.
    Episodes before the last comparison are ignored. While scores rise, older episodes in the windows of unchanged
    members would put these members at a disadvantage.
    """
    ready = tuple(m for m in map(since_comparison, report.members) if comparable(m, min_episodes))
    return ready if len(ready) >= 2 and (late or 2 * len(ready) >= len(report.members)) else ()


def _note(report: PopulationReport, min_episodes: int, late: str) -> str:
    """Return a note about a late comparison and about absent members, or "". late: text about the delay, or "".

    Nothing is remembered between reports, because a report that postpones a comparison must not change the rule's
    state.
    """
    members = map(since_comparison, report.members)
    waiting = ", ".join(str(m.member) for m in members if not comparable(m, min_episodes))
    without = f"absent members: {waiting} (fewer than {min_episodes} counted episodes)" if waiting else ""
    return "; ".join(filter(None, (late, without)))


@dataclass
class Synchronous:
    """Comparison of all members together, every `period_frames`, after a burn-in.

    Rule of Sample Factory, of Ray's `synch=True`, and of Jaderberg et al. (2017), appendix A.1. The rule's clock is
    `PopulationReport.frames`. The first comparison is due at `start_frames`, but after at least one period. Each later
    comparison is due one period after the previous comparison was *held*, because comparisons must not pile up after a
    pause.
    growth: each period is longer than the previous period by this factor.

    A member with fewer than `min_episodes` episodes since the last decision about the member is not ranked, not
    changed, and not a donor. A broken member needs no episodes to be ranked and changed. The comparison waits until at
    least half of the members are ready, because the first ready members are often bad members with short episodes. If
    it is late by at least one period, two members are enough.
    """

    period_frames: int
    start_frames: int
    min_episodes: int
    growth: float = 1.0
    _held: int = field(default=0, init=False)
    _due_frames: int = field(init=False)

    def __post_init__(self) -> None:
        self._due_frames = max(self.start_frames, self.period_frames)

    def restored(self) -> None:
        """Recompute the due time if no comparison was held yet, because the options may have changed."""
        if not self._held:
            self.__post_init__()

    def next_comparison(self, report: PopulationReport) -> DueComparison | None:
        """Return a comparison of the ready members if it is due and possible. Otherwise, return None."""
        late, period = report.frames - self._due_frames, self.period
        ready = _ready(report, self.min_episodes, late=late >= period)
        if late < 0 or not ready:
            return None
        said = f"held at {report.frames:,} frames, due at {self._due_frames:,}"
        note = _note(report, self.min_episodes, said if late > LATE_SHARE * period else "")
        self._held += 1
        self._due_frames = report.frames + self.period
        return DueComparison(self._held, ready, note)

    def frames_left(self, report: PopulationReport) -> int:
        """Return the number of frames until the next comparison, on the population clock."""
        return max(0, self._due_frames - report.frames)

    @property
    def period(self) -> int:
        """Length of the present period in frames."""
        return grown(self.period_frames, self.growth, self._held)


SYNCHRONOUS = ReadyRule(lambda pbt: Synchronous(*periods(pbt)))


# -- a clock for each member --------------------------------------------------------------------------------


@dataclass
class _Clocks:
    """Base of rules with a clock per member. A member is first due at `start_frames`, but after at least one period."""

    period_frames: int
    start_frames: int
    min_episodes: int
    growth: float = 1.0
    _held: int = field(default=0, init=False)
    _due: dict[int, int] = field(default_factory=dict, init=False)
    _rounds: dict[int, int] = field(default_factory=dict, init=False)

    def _left(self, member: MemberReport) -> int:
        """Return the number of frames until the member is due, at least 0."""
        due = self._due.get(member.member, max(self.start_frames, self.period_frames))
        return max(0, due - member.frames)

    def _arrived(self, report: PopulationReport) -> list[MemberReport]:
        return [m for m in report.members if comparable(m, self.min_episodes) and not self._left(m)]

    def _hold(self, members: Sequence[MemberReport]) -> int:
        """Start the next period of these members, and return the number of their comparison."""
        self._held += 1
        for m in members:
            rounds = self._rounds[m.member] = self._rounds.get(m.member, 0) + 1
            self._due[m.member] = m.frames + grown(self.period_frames, self.growth, rounds)
        return self._held


@dataclass
class Asynchronous(_Clocks):
    """Comparison of each member on its own clock (Jaderberg et al. 2017, algorithm 1).

    A member is first due at `start_frames`, but after at least one period. Later, a member is due `period_frames` after
    the last comparison in which it was due. A due member is compared with all other members that have at least
    `min_episodes` episodes since their last change or are broken. A due member without enough episodes, or without
    other participants, waits.
    growth: each period of a member is longer than the previous period by this factor.
    """

    def frames_left(self, report: PopulationReport) -> int:
        """Return the number of frames until the first member is due."""
        return min(map(self._left, report.members), default=0)

    def next_comparison(self, report: PopulationReport) -> DueComparison | None:
        """Return a comparison of the due members with all members that have `min_episodes` episodes or are broken.

        None: no member is due, or fewer than two members can be compared.
        """
        judged = tuple(m for m in report.members if comparable(m, self.min_episodes))
        arrived = self._arrived(report)
        if len(judged) < 2 or not arrived:
            return None
        return DueComparison(self._hold(arrived), judged, "", frozenset(m.member for m in arrived))


@dataclass
class PartiallySynchronous(_Clocks):
    """Comparison of the due members as soon as a given fraction of the members is due.

    Source: Jaderberg et al. (2017), appendix A.1.

    A member is first due at `start_frames`, but after at least one period. Later, a member is due `period_frames` after
    its last comparison. A due member that is not broken waits until it has `min_episodes` episodes since its last
    change. Members that are not due participate in a later comparison. At least two members must be due.
    growth: each period of a member is longer than the previous period by this factor.
    """

    fraction: float = field(default=0.8, kw_only=True)

    def frames_left(self, report: PopulationReport) -> int:
        """Return the number of frames until enough members are due."""
        left, needed = sorted(map(self._left, report.members)), self._needed(report)
        return left[needed - 1] if len(left) >= needed else 0

    def _needed(self, report: PopulationReport) -> int:
        return max(2, math.ceil(self.fraction * len(report.members) - 1e-9))

    def next_comparison(self, report: PopulationReport) -> DueComparison | None:
        """Return a comparison of the due members, or None if less than the required share of members is due."""
        arrived = self._arrived(report)
        if len(arrived) < self._needed(report):
            return None
        there = {m.member for m in arrived}
        missing = ", ".join(str(m.member) for m in report.members if m.member not in there)
        note = f"absent members: {missing} (not due yet)" if missing else ""
        return DueComparison(self._hold(arrived), tuple(arrived), note)


ASYNCHRONOUS = ReadyRule(
    lambda pbt: Asynchronous(*periods(pbt)),
    help="compare each member on its own clock with the other members (Jaderberg et al. 2017).",
)
PARTIALLY_SYNCHRONOUS = ReadyRule(
    lambda pbt: PartiallySynchronous(*periods(pbt), fraction=pbt.ready_fraction),
    (*PERIOD_OPTIONS, "pbt.ready_fraction"),
    help="compare the due members when the share --pbt.ready-fraction is due (Jaderberg et al. 2017).",
)


# -- by training time ---------------------------------------------------------------------------------------


@dataclass
class Timed:
    """Comparison of all members together, every `period_seconds` of training.

    The first comparison is due at `start_seconds`, but after at least one period. Each later comparison is due one
    period after the previous comparison was *due*, because the budget should determine the number of comparisons. If a
    comparison is late by at least half a period, the next comparison is due one period after the late comparison was
    *held*.
    min_episodes: minimum number of episodes of a participant since the last decision about the participant. The
    comparison waits until at least two members, and at least half of the members, can participate. If it is late by at
    least one period, two members are enough.
    """

    period_seconds: float
    start_seconds: float
    min_episodes: int
    _held: int = field(default=0, init=False)
    _due_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._due_seconds = max(self.start_seconds, self.period_seconds)

    def restored(self) -> None:
        """Recompute the due time if no comparison was held yet, because the options may have changed."""
        if not self._held:
            self.__post_init__()

    def next_comparison(self, report: PopulationReport) -> DueComparison | None:
        """Return a comparison of the ready members if it is due and possible. Otherwise, return None."""
        late, period = -self.seconds_left(report), self.period_seconds
        ready = _ready(report, self.min_episodes, late=late >= period)
        if late < 0 or not ready:
            return None
        said = f"held {late:.3g} s late" if late > LATE_SHARE * period else ""
        note = _note(report, self.min_episodes, said)
        self._held += 1
        self._due_seconds = (self._due_seconds if late < period / 2 else self._due_seconds + late) + period
        return DueComparison(self._held, ready, note)

    def seconds_left(self, report: PopulationReport) -> float:
        """Return the seconds until the next comparison is due. Negative: the comparison is overdue."""
        return self._due_seconds - (report.seconds or 0.0)

    def frames_left(self, report: PopulationReport) -> int:
        """Estimate the frames until the next comparison, on the population clock.

        The estimate is 1 if the population has no frames yet.
        """
        left = self.seconds_left(report)
        if left <= 0:
            return 0
        return math.ceil(report.frames / report.seconds * left) or 1 if report.seconds else 1


TIMED = ReadyRule(
    lambda pbt: Timed(pbt.period_seconds, pbt.start_seconds, pbt.min_episodes),
    ("pbt.period_seconds", "pbt.start_seconds", "pbt.min_episodes"),
    by_time=True,
    help="compare all members together, every --pbt.period-seconds of training.",
)
