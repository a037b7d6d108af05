"""A rule of readiness: members are compared once enough of them have arrived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pbt_rl.pbt.decisions import PopulationReport
from pbt_rl.pbt.ready import Clocks, Round, comparable


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
