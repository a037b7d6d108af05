"""Before members are compared they play whole episodes, with weights that stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, Evaluate, MemberReport, PopulationReport
from pbt_rl.controllers.entry import PATIENCE_PERIODS, Ingredients
from pbt_rl.controllers.ready import FOREVER
from pbt_rl.errors import require


@dataclass
class Evaluation:
    """The `eval` of Jaderberg et al. (2017), algorithm 1, as a phase of its own, not from training episodes.

    When a comparison is due all members are evaluated at the same time, and compared once each has its `episodes`
    (rounds of all tasks, if there are tasks). A member that did not get them within `patience_frames` is waited for no
    longer. If nothing can be compared even then, the members learn on, and the next comparison that can be held is held
    without an evaluation: else an environment whose episodes never end would stop all learning.

    episodes: 0 for no evaluation: members are compared by the episodes of their training.
    """

    episodes: int = 0
    patience_frames: int = FOREVER
    _began: dict[int, int] = field(default_factory=dict, init=False)
    """Member that is being evaluated -> its frames when that began."""
    _given_up: bool = field(default=False, init=False)

    def hold(
        self,
        report: PopulationReport,
        frames_left: int,
        compare: Callable[[PopulationReport], list[Decision]],
    ) -> list[Decision]:
        """Return the decisions that prepare a comparison, or those of one.

        frames_left: until one is due. compare: holds one; it returns no decisions if that cannot be.
        """
        begun = self._begin_evaluation(report, frames_left)
        if begun or self._waits(report):
            return begun
        return self._end(report, compare(report))

    def _begin_evaluation(self, report: PopulationReport, frames_left: int) -> list[Decision]:
        """Return the decisions that begin an evaluation, if one has to be before the comparison that is due.

        frames_left: until a comparison is due.
        """
        idle = self.episodes == 0 or self._began or self._given_up
        if idle or frames_left > 0 or len(report.members) < 2:
            return []
        healthy = [m for m in report.members if not m.broken]
        self._began = {m.member: m.frames for m in healthy}
        return [Evaluate(m.member, self.episodes, "evaluated before it is compared") for m in healthy]

    def _waits(self, report: PopulationReport) -> bool:
        """Whether a member still plays the episodes by which it is to be judged."""
        return any(self._plays(m) for m in report.members)

    def _plays(self, member: MemberReport) -> bool:
        began = self._began.get(member.member)
        if began is None or member.broken or member.episodes >= self.episodes:
            return False
        return member.frames - began < self.patience_frames

    def _end(self, report: PopulationReport, decisions: Sequence[Decision]) -> list[Decision]:
        """Return the decisions of a comparison, with one for each member whose evaluation ends without any.

        decisions: of the comparison; none if it could not be held.
        """
        self._given_up = not decisions and bool(self._began or self._given_up)
        decided = {d.member for d in decisions}
        left = [m.member for m in report.members if m.member in self._began and m.member not in decided]
        self._began.clear()
        return [*decisions, *(Continue(m, "evaluated, and not compared") for m in left)]

    def forget(self, members: Iterable[int]) -> None:
        """Wait no longer for members that something else was decided about."""
        for member in members:
            self._began.pop(member, None)


def build_evaluation(given: Ingredients) -> Evaluation | None:
    """Return what `--pbt.evaluate-episodes` asks for before comparisons. Raises ConfigError."""
    pbt, name = given.pbt, "pbt.evaluate-episodes"
    episodes = pbt.evaluate_episodes
    if episodes == 0:
        return None
    require(
        pbt.ready == "synchronous",
        name,
        episodes,
        "all members are evaluated together: use --pbt.ready synchronous",
    )
    require(
        given.slots >= given.members,
        name,
        episodes,
        "members that take turns cannot be evaluated: leave out --slots",
    )
    require(
        pbt.min_episodes <= episodes <= pbt.objective_episodes,
        name,
        episodes,
        f"give --pbt.min-episodes, {pbt.min_episodes}, to --pbt.objective-episodes, {pbt.objective_episodes}",
    )
    return Evaluation(episodes, PATIENCE_PERIODS * pbt.period_frames)
