"""HyperTrick and Successive Halving (Heinrich and Frosio 2019)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, MemberReport, PopulationReport
from pbt_rl.controllers.ready import FOREVER
from pbt_rl.controllers.search.brackets import Bracket, Brackets, Rung
from pbt_rl.controllers.search.search import Ended, Progress, Search
from pbt_rl.controllers.state import STATE


def expected_members(members: float, eviction_rate: float, phase: int) -> float:
    """Return E[W_p] = W0 (1 - r)^p, the expected number of members in phase p (Heinrich and Frosio, equation 1).

    W0: `members` at the start. r: `eviction_rate`. p: `phase`, from 0.
    """
    return members * (1 - eviction_rate) ** phase


def collection_size(members: float, eviction_rate: float, phase: int) -> float:
    """Return W_p^DCM = (1 - sqrt(r)) W0 (1 - r)^p: number of members that end phase p before evictions begin.

    W0: `members` at the start. r: `eviction_rate`. p: `phase`, from 0. Source: Heinrich and Frosio (2019), equation 2.
    """
    return (1 - math.sqrt(eviction_rate)) * expected_members(members, eviction_rate, phase)


@dataclass(eq=False)
class HyperTrick(Search):
    """Asynchronous early stopping without barrier or preemption (Heinrich and Frosio 2019, section 3.2).

    A member that ends phase p continues if fewer than W_p^DCM members (`collection_size`) have already ended phase p
    (*data collection*). Otherwise, the member is evicted if its score is in the lower sqrt(r) quantile of all recorded
    scores of phase p (r: `eviction_rate`). These scores include its own. A member that ends the last phase is
    completed.

    The score with rank k of n (0 is the lowest) is in the lower quantile q if k <= q (n - 1). The rank among equal
    scores is random, because ties must not change the expected number of evictions. The total work is slightly more
    than in equation 9, because the number of members is an integer.

    phase_episodes: episodes of a member per phase (2,500 in the paper). Members with short episodes end a phase first.
    With 0, phases end after `phase_frames`. Members that began together on a device then end a phase together, and are
    judged in random order.
    most_frames: with `phase_episodes`, frame count at which a member ends its phase in any case, because episodes may
    never end.
    """

    phases: int = field(default=10, kw_only=True)
    eviction_rate: float = field(default=0.25, kw_only=True)
    phase_episodes: int = field(default=0, kw_only=True)
    most_frames: int = field(default=FOREVER, kw_only=True, metadata=STATE)
    _scores: list[list[float]] = field(default_factory=list, init=False)
    """Phase -> scores of the members that have ended the phase, ascending."""

    def _plan(self, num_members: int) -> None:  # noqa: ARG002 - a hook of the base
        self._scores = [[] for _ in range(self.phases)]

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        return [self._enter(m, 0) for m in report.members]

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:  # noqa: ARG002
        arrived = list(ended.values())
        self._rng.shuffle(arrived)
        return [self._decide(at_end.report, at_end.score) for at_end in arrived]

    def _decide(self, m: MemberReport, score: float) -> Decision:
        phase = self._progress[m.member].phase
        before = self._scores[phase]
        if phase == self.phases - 1:
            insort(before, score)
            return self._complete(m.member, score)
        collecting = len(before) < collection_size(len(self._progress), self.eviction_rate, phase)
        lower = bisect_left(before, score)
        rank = self._rng.randint(lower, bisect_right(before, score))
        insort(before, score)
        seen = len(before)
        if not collecting and rank <= math.sqrt(self.eviction_rate) * (seen - 1):
            reason = f"score {score:.4g} ranks {seen - rank} of {seen}"
            return self._give_up(m.member, reason, score, (seen - rank, seen))
        return self._enter(m, phase + 1, "data collection" if collecting else f"rank {seen - rank} of {seen}")

    def _phase_is_over(self, m: MemberReport, progress: Progress) -> bool:
        episodes = self.phase_episodes * (progress.phase + 1)
        return (0 < episodes <= m.episodes) or super()._phase_is_over(m, progress)

    def _needs_more(self, m: MemberReport, progress: Progress) -> bool:
        return not self.phase_episodes and super()._needs_more(m, progress)

    def _enter(self, m: MemberReport, phase: int, why: str = "") -> Decision:
        progress = self._progress[m.member]
        progress.phase = phase
        end = self.most_frames if self.phase_episodes else (phase + 1) * self.phase_frames
        progress.end_frames = progress.until_frames = max(end, m.frames + 1)
        reason = f"phase {phase}" + (f": {why}" if why else "")
        return Continue(m.member, reason, progress.until_frames, phase)


@dataclass(eq=False)
class SuccessiveHalving(Brackets):
    """Successive Halving: when all members have ended a phase, the worst members stop (Jamieson and Talwalkar 2016).

    With eviction rate r, W0 (1 - r)^p of W0 members train in phase p (rounded, at least one). r = 1/2 halves the number
    of members from phase to phase. HyperTrick's eviction rate has the same meaning (Heinrich and Frosio 2019, figures 3
    and 8).

    slots: None means that any free slot trains any member. With a number of slots, each member has a fixed slot.
    """

    phases: int = field(default=10, kw_only=True)
    eviction_rate: float = field(default=0.25, kw_only=True)

    def brackets(self, num_members: int) -> list[Bracket]:
        """Return one bracket of all members."""
        sizes = [
            max(1, round(expected_members(num_members, self.eviction_rate, p))) for p in range(self.phases)
        ]
        rungs = tuple(Rung(size, (p + 1) * self.phase_frames) for p, size in enumerate(sizes))
        return [Bracket(tuple(range(num_members)), rungs)]
