"""Evaluation phase before a comparison: complete episodes with frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, Evaluate, MemberReport, PopulationReport
from pbt_rl.controllers.entry import TIMEOUT_PERIODS, ControllerContext
from pbt_rl.controllers.ready import FOREVER
from pbt_rl.errors import require


@dataclass
class Evaluation:
    """Separate evaluation phase: `eval` in algorithm 1 of Jaderberg et al. (2017).

    When a comparison is due, all members that are not broken are evaluated simultaneously. The comparison is held when
    each of them has finished its episodes, has run for `timeout_frames`, or is broken.
    If no comparison is possible after the evaluation, members continue to learn. The next possible comparison is then
    held without an evaluation, because repeated evaluations would stop all learning if episodes never end.

    episodes: evaluation episodes per member. With tasks: number of rounds, each with one episode of every task.
    timeout_frames: maximum length of an evaluation, in frames of each member.
    """

    episodes: int
    timeout_frames: int = FOREVER
    _began: dict[int, int] = field(default_factory=dict, init=False)
    """Member under evaluation -> its frames at the start of the evaluation."""
    _given_up: bool = field(default=False, init=False)
    """True if the next comparison is held without an evaluation."""

    def hold(
        self,
        report: PopulationReport,
        frames_left: int,
        compare: Callable[[PopulationReport], list[Decision]],
    ) -> list[Decision]:
        """Return the decisions that start an evaluation, the decisions of a comparison, or [].

        A member that was evaluated but gets no decision from the comparison continues (`Continue`).
        frames_left: frames until a comparison is due. compare: function that holds a comparison and returns its
        decisions, or [] if no comparison is possible.
        """
        if not self._began and not self._given_up and frames_left <= 0 and len(report.members) > 1:
            healthy = [m for m in report.members if not m.broken]
            self._began = {m.member: m.frames for m in healthy}
            if healthy:
                return [
                    Evaluate(m.member, self.episodes, "evaluation before the comparison") for m in healthy
                ]
        if any(self._plays(m) for m in report.members):
            return []
        decisions = compare(report)
        self._given_up = not decisions and bool(self._began or self._given_up)
        decided = {d.member for d in decisions}
        left = [m.member for m in report.members if m.member in self._began and m.member not in decided]
        self._began.clear()
        return [*decisions, *(Continue(m, "evaluated, but not compared") for m in left)]

    def _plays(self, member: MemberReport) -> bool:
        """Check whether the evaluation still waits for episodes of the member."""
        began = self._began.get(member.member)
        if began is None or member.broken or member.episodes >= self.episodes:
            return False
        return member.frames - began < self.timeout_frames

    def forget(self, members: Iterable[int]) -> None:
        """Remove members from the evaluation, because another decision changed them."""
        for member in members:
            self._began.pop(member, None)


def build_evaluation(given: ControllerContext) -> Evaluation | None:
    """Build the evaluation for --pbt.evaluate-episodes. Return None if the option is 0.

    Raises ConfigError if other options do not allow a separate evaluation phase.
    """
    pbt, episodes = given.pbt, given.pbt.evaluate_episodes
    if episodes == 0:
        return None
    at_least, at_most = pbt.min_episodes, pbt.objective_episodes
    for holds, remedy in (
        (pbt.ready == "synchronous", "all members are evaluated together: use --pbt.ready synchronous"),
        (
            given.slots >= given.members,
            "members that share slots cannot be evaluated together: leave out --slots",
        ),
        (
            at_least <= episodes <= at_most,
            f"give --pbt.min-episodes, {at_least}, to --pbt.objective-episodes, {at_most}",
        ),
    ):
        require(holds, "pbt.evaluate-episodes", episodes, remedy)
    return Evaluation(episodes, TIMEOUT_PERIODS * pbt.period_frames)
