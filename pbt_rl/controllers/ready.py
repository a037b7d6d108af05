"""Rules of readiness: when members are compared, and which of them take part.

The protocol, the comparison that it starts, how a rule is built, and the rules: all members together, each by its
own clock, by the time of training (a fact of the report, which the journal keeps). Pure: seeded
Python, no process, no file, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pbt_rl.controllers.decisions import MemberReport, PopulationReport
from pbt_rl.controllers.options import PbtConfig

FOREVER = 10**18
"""Frames that no run reaches."""


@dataclass(frozen=True)
class Round:
    """One comparison: its number (from 1), who takes part, and what is unusual about it (may be empty).

    deciding: members that may change; None for all. The others are only there to be compared with.
    """

    number: int
    members: tuple[MemberReport, ...]
    note: str
    deciding: frozenset[int] | None = None


class Ready(Protocol):
    """Decides when members are compared. A dataclass; fields with `init=False` are its state (`state.py`)."""

    def next_round(self, report: PopulationReport) -> Round | None:
        """Start a comparison if one is due and can be held; it then counts as held. Else nothing changes."""

    def frames_left(self, report: PopulationReport) -> int:
        """Return the frames of each member until the next comparison is due; 0 if it waits for episodes."""


PERIOD_OPTIONS = ("pbt.period_frames", "pbt.start_frames", "pbt.min_episodes", "pbt.period_growth")


@dataclass(frozen=True)
class ReadyRule:
    """How a rule of readiness is built from the options."""

    build: Callable[[PbtConfig], Ready]
    options: tuple[str, ...] = PERIOD_OPTIONS
    """Names of the options that `build` reads."""
    by_time: bool = False
    """It reads `PopulationReport.seconds`."""
    help: str = ""
    """What it does; "" if the option's own help says so."""


def periods(pbt: PbtConfig) -> tuple[int, int, int, float]:
    """Return the values of `PERIOD_OPTIONS`."""
    return pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth


def comparable(member: MemberReport, min_episodes: int) -> bool:
    """Return whether there is anything to judge a member by: enough episodes, or that it is broken."""
    return member.broken or member.episodes >= min_episodes


def since_comparison(member: MemberReport) -> MemberReport:
    """Return a report of the episodes since the member's last decision."""
    if member.broken or member.recent is None or member.recent >= member.episodes:
        return member
    newest = member.objectives[-member.recent :] if member.recent else ()
    return replace(member, objectives=newest, episodes=member.recent)


def grown(period_frames: int, growth: float, rounds: int) -> int:
    """Return the period after this many comparisons, within what any clock can reach."""
    if rounds * math.log(growth) > math.log(FOREVER / period_frames):
        return FOREVER
    return round(period_frames * growth**rounds)


LATE_SHARE = 0.1
"""A comparison that is later than this share of a period has a note."""


def _ready(report: PopulationReport, min_episodes: int, *, late: bool) -> tuple[MemberReport, ...]:
    """Return the members that are compared together; none as long as they are too few.

    late: the comparison has been due for a whole period. Only episodes since the last comparison count: otherwise the
    windows of members that changed in it would be newer than those of the others, which favours changes as long as
    scores rise.
    """
    ready = tuple(m for m in map(since_comparison, report.members) if comparable(m, min_episodes))
    return ready if len(ready) >= 2 and (late or 2 * len(ready) >= len(report.members)) else ()


def _note(report: PopulationReport, min_episodes: int, late: str) -> str:
    """Return what is unusual: that it is late, if it is, and who does not take part.

    Made from the due time and this report alone: the reports that postponed a comparison must leave no state, or
    decisions could not be repeated from the comparisons that were held.
    """
    members = map(since_comparison, report.members)
    waiting = ", ".join(str(m.member) for m in members if not comparable(m, min_episodes))
    without = f"without {waiting}: fewer than {min_episodes} episodes that count" if waiting else ""
    return "; ".join(filter(None, (late, without)))


@dataclass
class Synchronous:
    """All members together, every `period_frames` of each member's frames, after a burn-in.

    Sample Factory's, Ray's `synch=True`, and appendix A.1 of Jaderberg et al. (2017). The clock is
    `PopulationReport.frames`. The first comparison is due at `start_frames`, but not before one whole period; each
    later one a period after the last was *held*, so that they do not pile up after a pause and every meta-epoch is
    a whole one. growth: each period is the last one times this.

    A member with fewer than `min_episodes` episodes since its last change waits: it is neither ranked nor
    changed nor a donor, and takes part in the next comparison. One of less than half of the members stays due until
    half are ready, for one period at most: whoever is judged first, as bad ones are whose episodes are short, would
    replace each other. With fewer than two ready members nothing can be compared: the comparison stays due until there
    are two (a population of one is never compared).
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
        """Let another start or period hold for the first comparison at once."""
        if not self._held:
            self.__post_init__()

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that are ready, once a comparison is due and two of them are."""
        late, period = report.frames - self._due_frames, self.period
        ready = _ready(report, self.min_episodes, late=late >= period)
        if late < 0 or not ready:
            return None
        said = f"compared at {report.frames:,} frames, due at {self._due_frames:,}"
        note = _note(report, self.min_episodes, said if late > LATE_SHARE * period else "")
        self._held += 1
        self._due_frames = report.frames + self.period
        return Round(self._held, ready, note)

    def frames_left(self, report: PopulationReport) -> int:
        """Return the frames of the slowest member until then."""
        return max(0, self._due_frames - report.frames)

    @property
    def period(self) -> int:
        """Frames of the present period."""
        return grown(self.period_frames, self.growth, self._held)


SYNCHRONOUS = ReadyRule(lambda pbt: Synchronous(*periods(pbt)))


# -- a clock for each member --------------------------------------------------------------------------------


@dataclass
class _Clocks:
    """When each member is due, in its own frames: first at `start_frames`, but not before one whole period."""

    period_frames: int
    start_frames: int
    min_episodes: int
    growth: float = 1.0
    _held: int = field(default=0, init=False)
    _due: dict[int, int] = field(default_factory=dict, init=False)
    _rounds: dict[int, int] = field(default_factory=dict, init=False)

    def _left(self, member: MemberReport) -> int:
        """Return the frames until the member is due."""
        due = self._due.get(member.member, max(self.start_frames, self.period_frames))
        return max(0, due - member.frames)

    def _arrived(self, report: PopulationReport) -> list[MemberReport]:
        return [m for m in report.members if comparable(m, self.min_episodes) and not self._left(m)]

    def _hold(self, members: Sequence[MemberReport]) -> int:
        """Begin the next period of these members; return the number of their comparison."""
        self._held += 1
        for m in members:
            rounds = self._rounds[m.member] = self._rounds.get(m.member, 0) + 1
            self._due[m.member] = m.frames + grown(self.period_frames, self.growth, rounds)
        return self._held


@dataclass
class Asynchronous(_Clocks):
    """Each member on its own clock, compared with the others as they are (Jaderberg et al. 2017, algorithm 1).

    A member decides once it has trained `period_frames` since it last did (the first time: `start_frames`, but not
    less than a period) and has `min_episodes` episodes since its last change; until then its comparison stays due.
    The others are those that have enough episodes, whatever their clocks show; without any it waits, too.
    growth: a member's next period is its last one times this.
    """

    def frames_left(self, report: PopulationReport) -> int:
        """Return those of the member that is due first."""
        return min(map(self._left, report.members), default=0)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Let the members that have arrived decide, among all that can be compared."""
        judged = tuple(m for m in report.members if comparable(m, self.min_episodes))
        arrived = self._arrived(report)
        if len(judged) < 2 or not arrived:
            return None
        return Round(self._hold(arrived), judged, "", frozenset(m.member for m in arrived))


@dataclass
class PartiallySynchronous(_Clocks):
    """Those that have arrived, as soon as they are this fraction of the members (Jaderberg et al. 2017, A.1).

    A member arrives when it has trained `period_frames` since its last comparison (the first time: `start_frames`,
    but not less than a period) and has `min_episodes` episodes since its last change. Members that come too late
    have arrived for the next comparison. At least two must have arrived. growth: a member's next period is its last
    one times this.
    """

    fraction: float = field(default=0.8, kw_only=True)

    def frames_left(self, report: PopulationReport) -> int:
        """Return those of the member that makes them enough."""
        left, needed = sorted(map(self._left, report.members)), self._needed(report)
        return left[needed - 1] if len(left) >= needed else 0

    def _needed(self, report: PopulationReport) -> int:
        return max(2, math.ceil(self.fraction * len(report.members) - 1e-9))

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that have arrived, if they are enough."""
        arrived = self._arrived(report)
        if len(arrived) < self._needed(report):
            return None
        there = {m.member for m in arrived}
        missing = ", ".join(str(m.member) for m in report.members if m.member not in there)
        note = f"without {missing}: on their way" if missing else ""
        return Round(self._hold(arrived), tuple(arrived), note)


ASYNCHRONOUS = ReadyRule(
    lambda pbt: Asynchronous(*periods(pbt)),
    help="each member at its own times, with the others as they are then (Jaderberg et al. 2017).",
)
PARTIALLY_SYNCHRONOUS = ReadyRule(
    lambda pbt: PartiallySynchronous(*periods(pbt), fraction=pbt.ready_fraction),
    (*PERIOD_OPTIONS, "pbt.ready_fraction"),
    help="the members that have arrived, once they are enough (Jaderberg et al.).",
)


# -- by the time of training --------------------------------------------------------------------------------


@dataclass
class Timed:
    """All members together, every `period_seconds` of training, first at `start_seconds` or after a whole period.

    Later ones keep the times of the first, so that their number follows from the budget; after one that was later than
    half a period, a whole one follows. Members with fewer than `min_episodes` episodes since their last change wait for
    the next comparison. One of fewer than half of the members stays due for one period at most, of fewer than two for
    ever, as with `Synchronous`.
    """

    period_seconds: float
    start_seconds: float
    min_episodes: int
    _held: int = field(default=0, init=False)
    _due_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._due_seconds = max(self.start_seconds, self.period_seconds)

    def restored(self) -> None:
        """Let another start or period hold for the first comparison at once."""
        if not self._held:
            self.__post_init__()

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that are ready, once a comparison is due and two of them are."""
        late, period = -self.seconds_left(report), self.period_seconds
        ready = _ready(report, self.min_episodes, late=late >= period)
        if late < 0 or not ready:
            return None
        said = f"compared {late:.3g} s after it was due" if late > LATE_SHARE * period else ""
        note = _note(report, self.min_episodes, said)
        self._held += 1
        self._due_seconds = (self._due_seconds if late < period / 2 else self._due_seconds + late) + period
        return Round(self._held, ready, note)

    def seconds_left(self, report: PopulationReport) -> float:
        """Return the seconds until a comparison is due; negative if it is overdue."""
        return self._due_seconds - (report.seconds or 0.0)

    def frames_left(self, report: PopulationReport) -> int:
        """Return how many frames of the slowest member that is, by its frames until now; 1 before there are any."""
        left = self.seconds_left(report)
        if left <= 0:
            return 0
        return math.ceil(report.frames / report.seconds * left) or 1 if report.seconds else 1


TIMED = ReadyRule(
    lambda pbt: Timed(pbt.period_seconds, pbt.start_seconds, pbt.min_episodes),
    ("pbt.period_seconds", "pbt.start_seconds", "pbt.min_episodes"),
    by_time=True,
    help="all members together, by seconds of training.",
)
