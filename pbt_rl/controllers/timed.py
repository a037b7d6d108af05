"""A rule of readiness by the time of training: a budget of hours holds as many comparisons on any machine and task.

Pure: the time is a fact of the report, which the journal keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import PopulationReport
from pbt_rl.controllers.ready import LATE_SHARE, ReadyRule, Round, comparable


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
        assert self.period_seconds > 0
        assert self.min_episodes > 0
        self._due_seconds = max(self.start_seconds, self.period_seconds)

    def restored(self) -> None:
        """Let another start or period hold for the first comparison at once."""
        if not self._held:
            self._due_seconds = max(self.start_seconds, self.period_seconds)

    def next_round(self, report: PopulationReport) -> Round | None:
        """Compare the members that are ready, once a comparison is due and two of them are."""
        late = -self.seconds_left(report)
        if late < 0:
            return None
        ready = tuple(m for m in report.members if comparable(m, self.min_episodes))
        if len(ready) < 2 or (2 * len(ready) < len(report.members) and late < self.period_seconds):
            return None
        note = self._note(report, late)
        self._held += 1
        on_time = late < self.period_seconds / 2
        self._due_seconds = (self._due_seconds if on_time else self._due_seconds + late) + self.period_seconds
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

    def _note(self, report: PopulationReport, late: float) -> str:
        notes = []
        if late > LATE_SHARE * self.period_seconds:
            notes.append(f"compared {late:.3g} s after it was due")
        waiting = [str(m.member) for m in report.members if not comparable(m, self.min_episodes)]
        if waiting:
            notes.append(f"without {', '.join(waiting)}: fewer than {self.min_episodes} episodes that count")
        return "; ".join(notes)


TIMED = ReadyRule(
    lambda pbt: Timed(pbt.period_seconds, pbt.start_seconds, pbt.min_episodes),
    ("pbt.period_seconds", "pbt.start_seconds", "pbt.min_episodes"),
    by_time=True,
    help="all members together, by seconds of training.",
)
