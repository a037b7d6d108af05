"""Rules of readiness: when members are compared, and which of them take part.

The protocol, the comparison that it starts, how a rule is built, and the rule of all members together. Pure: seeded
Python, no process, no file, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """Decides when members are compared. A dataclass; fields with `init=False` are its state (`pbt.state`)."""

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


def grown(period_frames: int, growth: float, rounds: int) -> int:
    """Return the period after this many comparisons, within what any clock can reach."""
    if rounds * math.log(growth) > math.log(FOREVER / period_frames):
        return FOREVER
    return round(period_frames * growth**rounds)


LATE_SHARE = 0.1
"""A comparison that is later than this share of a period has a note."""


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
        assert self.period_frames > 0
        assert self.min_episodes > 0
        assert self.growth >= 1
        self._due_frames = max(self.start_frames, self.period_frames)

    def restored(self) -> None:
        """Let another start or period hold for the first comparison at once."""
        if not self._held:
            self._due_frames = max(self.start_frames, self.period_frames)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that are ready, once a comparison is due and two of them are."""
        if report.frames < self._due_frames:
            return None
        ready = tuple(m for m in report.members if comparable(m, self.min_episodes))
        late = report.frames - self._due_frames >= self.period
        if len(ready) < 2 or (2 * len(ready) < len(report.members) and not late):
            return None
        note = self._note(report)
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

    def _note(self, report: PopulationReport) -> str:
        # Made from the due time and this report alone: the reports that postponed a comparison must leave no
        # state, or decisions could not be repeated from the comparisons that were held.
        notes = []
        if report.frames - self._due_frames > LATE_SHARE * self.period:
            notes.append(f"compared at {report.frames:,} frames, due at {self._due_frames:,}")
        waiting = [str(m.member) for m in report.members if not comparable(m, self.min_episodes)]
        if waiting:
            notes.append(f"without {', '.join(waiting)}: fewer than {self.min_episodes} episodes that count")
        return "; ".join(notes)


SYNCHRONOUS = ReadyRule(lambda pbt: Synchronous(*periods(pbt)))
