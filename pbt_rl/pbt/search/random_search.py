"""Random search and grid search: every configuration is trained to the end (the papers' baseline)."""

from __future__ import annotations

from collections.abc import Mapping

from pbt_rl.pbt.decisions import Continue, Decision, PopulationReport
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.search.base import Ended, Search
from pbt_rl.pbt.search.draws import Sampling, draw_grid, draw_random


class RandomSearch(Search):
    """Every member is drawn from the prior and trained for `frames`; then its slot goes to the next."""

    def __init__(
        self,
        table: Mapping[str, HyperSpec],
        seed: int,
        *,
        frames: int,
        min_episodes: int = 1,
        sampling: Sampling = draw_random,
    ) -> None:
        super().__init__(table, seed, phase_frames=frames, min_episodes=min_episodes, sampling=sampling)

    def _plan(self, num_members: int) -> None:
        pass

    def _begin(self, report: PopulationReport) -> list[Decision]:
        for m in report.members:
            progress = self._progress[m.member]
            progress.end_frames = progress.until_frames = self._phase_frames
        return [Continue(m.member, "phase 0", self._phase_frames) for m in report.members]

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:  # noqa: ARG002
        return [self._stop(member, f"completed: {at_end.score:.4g}") for member, at_end in ended.items()]


class GridSearch(RandomSearch):
    """Every member is a point of a grid that is quantised on each spec's scale (`draw_grid`)."""

    def __init__(
        self, table: Mapping[str, HyperSpec], seed: int, *, frames: int, min_episodes: int = 1
    ) -> None:
        super().__init__(table, seed, frames=frames, min_episodes=min_episodes, sampling=draw_grid)
