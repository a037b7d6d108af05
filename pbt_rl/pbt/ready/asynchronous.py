"""Each member is compared by its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.pbt.decisions import PopulationReport
from pbt_rl.pbt.ready.base import Round, comparable
from pbt_rl.pbt.ready.clocks import Clocks


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
