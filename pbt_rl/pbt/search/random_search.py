"""Random search and grid search: every configuration is trained to the end (the papers' baseline)."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.pbt.decisions import Continue, Decision, PopulationReport
from pbt_rl.pbt.search.base import Ended, Search


@dataclass(eq=False)
class RandomSearch(Search):
    """Every member is drawn and trained for one phase; then its slot goes to the next.

    With `sampling=draw_grid` it is grid search: the members are points of a grid.
    """

    def _plan(self, num_members: int) -> None:
        pass

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        for m in report.members:
            progress = self._progress[m.member]
            progress.end_frames = progress.until_frames = self.phase_frames
        return [Continue(m.member, "phase 0", self.phase_frames, phase=0) for m in report.members]

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:  # noqa: ARG002
        return [self._complete(member, at_end.score) for member, at_end in ended.items()]
