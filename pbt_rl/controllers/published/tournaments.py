"""Rules of selection that compare a member with one uniformly drawn other."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import ExploitRule, Gap, Selection, decides, describe_shortfall, score
from pbt_rl.controllers.welch import welch_p
from pbt_rl.options import option


@dataclass(frozen=True)
class BinaryTournament:
    """Copy the other if its mean objective is higher (Jaderberg et al. 2017, section 4.1.1 and appendix A.1).

    A member without a finite objective copies any that has one, and is never a donor.
    """

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order."""
        return [
            _selection(own, other, copies=_better(own, other), others_mutate=False)
            for own, other in _pairs(members, rng, deciding)
        ]


@dataclass(frozen=True)
class TTest:
    """Copy the other if its mean is significantly higher by Welch's t-test (Jaderberg et al. 2017, section 4.1.1).

    level: the two-sided p-value must be below it; the paper gives none. returns: the last ones that are tested.
    With fewer than two objectives on a side nothing is significant and nothing is copied.
    """

    level: float = option(0.05, at_least=0, at_most=1)
    returns: int = option(10, at_least=2)

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order."""
        return [
            _selection(own, other, copies=self._copies(own, other), others_mutate=False)
            for own, other in _pairs(members, rng, deciding)
        ]

    def _copies(self, own: _Scored, other: _Scored | None) -> bool:
        if other is None or not _better(own, other):
            return False
        if math.isnan(own.score):
            return True
        mine, theirs = (m.report.objectives[-self.returns :] for m in (own, other))
        # The tested returns are fewer than the window: their means may be in the other order.
        higher = math.fsum(theirs) / len(theirs) > math.fsum(mine) / len(mine)
        return higher and welch_p(mine, theirs) < self.level


@dataclass(frozen=True)
class Impala:
    """Copy the other if it is more than 5 % better; copied or not, the values mutate.

    Espeholt et al. (2018), section 5.3.1 and appendix; each value is there multiplied or divided by 1.2 with
    probability 1/3: `MultiplyOrDivide(tuned, 1.2, probability=1/3)`. The 5 % are of the larger magnitude, so that
    they mean the same for negative objectives.
    """

    gap: float = option(0.05, at_least=0)

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order."""
        gap = Gap(self.gap, 0.0)
        return [
            _selection(
                own,
                other,
                copies=other is not None and _better(own, other) and gap.exceeded(own.score, other.score),
                others_mutate=other is not None,
            )
            for own, other in _pairs(members, rng, deciding)
        ]


@dataclass(frozen=True)
class _Scored:
    report: MemberReport
    score: float


def _pairs(
    members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None
) -> Iterator[tuple[_Scored, _Scored | None]]:
    """Yield each deciding member with a uniformly drawn other; None if there is no other."""
    scored = [_Scored(m, score(m)) for m in members]
    for i, own in enumerate(scored):
        if not decides(own.report.member, deciding):
            continue
        if len(scored) == 1:
            yield own, None
            continue
        other = rng.randrange(len(scored) - 1)
        yield own, scored[other + (other >= i)]


def _better(own: _Scored, other: _Scored | None) -> bool:
    if other is None or math.isnan(other.score):
        return False
    return math.isnan(own.score) or other.score > own.score


def _selection(own: _Scored, other: _Scored | None, *, copies: bool, others_mutate: bool) -> Selection:
    member = own.report.member
    if other is None:
        return Selection(member, None, mutate=False, reason="nobody to compare with")
    if copies:
        shortfall = describe_shortfall(own.score, other.score)
        return Selection(member, other.report.member, mutate=True, reason=shortfall)
    reason = f"objective {own.score:.4g} stands against {other.score:.4g} of member {other.report.member}"
    return Selection(member, None, others_mutate, reason)


IMPALA_PROBABILITY = 1 / 3
T_TEST = ExploitRule(
    lambda pbt: TTest(pbt.t_test_level),
    ("pbt.t_test_level",),
    help="copy a random member if it is significantly better (Jaderberg et al.).",
)
BINARY_TOURNAMENT = ExploitRule(
    lambda _: BinaryTournament(), help="copy a random member if it is better (Jaderberg et al.)."
)
IMPALA = ExploitRule(
    lambda _: Impala(),
    explore_probability=IMPALA_PROBABILITY,
    help="copy a random member if it is 5 % better, mutate in any case.",
)
