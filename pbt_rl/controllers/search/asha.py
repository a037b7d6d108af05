"""ASHA: Successive Halving that promotes a member whenever a slot is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, MemberReport, PopulationReport
from pbt_rl.controllers.search.search import Ended, Search


@dataclass(eq=False)
class Asha(Search):
    """Asynchronous Successive Halving (Li et al. 2020, "Massively Parallel Hyperparameter Tuning", algorithm 2).

    phase_frames: frames of one unit of the resource, and length of the first rung (r in the paper, with s = 0).
    resource: number of units at the end of the last rung. Rung k ends after min(eta^k, resource) units.
    slots: number of members that train at the same time.

    A free slot goes to a member that ranks among the best 1 / eta of its rung. This member is promoted to the next
    rung. The highest rung with a promotable member has priority. In this rung, the best member is promoted first. The
    ranking contains all members that have ended the rung so far, including promoted members. The number of promotable
    members is rounded down. If no member can be promoted, the next member starts. A waiting member keeps its weights,
    without a slot.

    The paper draws new configurations forever. Here, the number of members is fixed. If all members have started, no
    member trains, and no member can be promoted, the waiting members are stopped.

    Ties go to the lower id, not to a random member, because a call of `observe` that returns no decision must not draw
    random numbers.
    """

    eta: int = field(default=3, kw_only=True)
    resource: int = field(default=27, kw_only=True)
    slots: int = field(default=1, kw_only=True)
    _promoted: list[dict[int, float]] = field(default_factory=list, init=False)
    """Rung -> promoted members with their scores at the end of this rung."""

    @property
    def highest_rung_frames(self) -> int:
        """Frames of a member at the end of the highest rung."""
        return self.resource * self.phase_frames

    @property
    def rungs(self) -> list[int]:
        """Number of units of the resource at the end of each rung."""
        assert self.eta >= 2
        units = [1]
        while units[-1] < self.resource:
            units.append(min(units[-1] * self.eta, self.resource))
        return units

    def _plan(self, num_members: int) -> None:  # noqa: ARG002 - a hook of the base
        self._promoted = [{} for _ in self.rungs[:-1]]

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        for m in report.members:
            self._progress[m.member].end_frames = self.rungs[0] * self.phase_frames
        first = self._fill(report.members, {}, self.slots)
        return self._with_waiting(first, report, "waits for a slot")

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:
        top = len(self.rungs) - 1
        done = [m for m in ended if self._progress[m].phase == top]
        decisions: list[Decision] = [self._complete(m, ended[m].score) for m in done]
        alive = [m for m in report.members if not self._progress[m.member].stopped]
        waiting = {m.member: ended[m.member].score for m in alive if m.member in ended}
        training = [m for m in alive if m.member not in waiting and self._progress[m.member].until_frames > 0]
        filled = self._fill(alive, waiting, self.slots - len(training))
        if not filled and not training:  # all members have started: otherwise `_fill` would start a member
            filled = [
                self._give_up(m, f"score {score:.4g} was not promoted", score) for m, score in waiting.items()
            ]
        return [*decisions, *filled]

    def _fill(self, alive: Sequence[MemberReport], waiting: Mapping[int, float], free: int) -> list[Decision]:
        """Return decisions that fill the free slots.

        alive: members that have not been stopped. waiting: scores of the members that have ended their rung. free:
        number of free slots.
        """
        by_id, left = {m.member: m for m in alive}, dict(waiting)
        decisions: list[Decision] = []
        while len(decisions) < free:
            promoted = self._promotable(left)
            if promoted is not None:
                decisions.append(self._promote(by_id[promoted], left.pop(promoted)))
                continue
            fresh = next((m for m in alive if self._progress[m.member].until_frames == 0), None)
            if fresh is None:
                break
            progress = self._progress[fresh.member]
            progress.end_frames = progress.until_frames = max(progress.end_frames, fresh.frames + 1)
            decisions.append(Continue(fresh.member, "rung 0", progress.until_frames, phase=0))
        return decisions

    def _promotable(self, waiting: Mapping[int, float]) -> int | None:
        """Return the best promotable member of the highest rung with promotable members. None: no such rung.

        waiting: scores of the members that have ended their rung.
        """
        for rung in reversed(range(len(self._promoted))):
            here = {m: score for m, score in waiting.items() if self._progress[m].phase == rung}
            ended = self._promoted[rung] | here
            best = sorted(ended, key=lambda m: (-ended[m], m))[: len(ended) // self.eta]
            if candidates := [m for m in best if m in here]:
                return candidates[0]
        return None

    def _promote(self, m: MemberReport, score: float) -> Decision:
        progress = self._progress[m.member]
        ended = len(self._promoted[progress.phase]) + 1
        self._promoted[progress.phase][m.member] = score
        progress.phase += 1
        units = self.rungs[progress.phase]
        progress.end_frames = progress.until_frames = max(units * self.phase_frames, m.frames + 1)
        reason = f"rung {progress.phase}: score {score:.4g}, promotion {ended} from rung {progress.phase - 1}"
        return Continue(m.member, reason, progress.until_frames, progress.phase)
