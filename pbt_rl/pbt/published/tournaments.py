"""Rules of selection that compare a member with one uniformly drawn other, and Welch's t-test for one of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from pbt_rl.options import option
from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.exploit import Gap, Selection, decides, describe_shortfall, score


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


def welch_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of equal means for two samples of unequal variance (Welch 1947).

    t = (mean a - mean b) / sqrt(va/na + vb/nb), with the degrees of freedom of Welch and Satterthwaite. A sample of
    one has no variance: p is 1. Without any variance p is 0 if the means differ, else 1.
    """
    if min(len(a), len(b)) < 2:
        return 1.0
    largest = max(map(abs, [*a, *b]))
    if largest == 0:
        return 1.0
    # t does not depend on the unit; without this a square may overflow.
    mean_a, error_a = _mean_and_squared_error([x / largest for x in a])
    mean_b, error_b = _mean_and_squared_error([x / largest for x in b])
    error = error_a + error_b
    if error == 0:
        return 1.0 if mean_a == mean_b else 0.0
    share = error_a / error
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    t_squared = (mean_a - mean_b) ** 2 / error
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t_squared))


def _mean_and_squared_error(sample: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(sample) / len(sample)
    variance = math.fsum((x - mean) ** 2 for x in sample) / (len(sample) - 1)
    return mean, variance / len(sample)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for 0 <= x <= 1.

    The continued fraction 8.17.22 of the NIST Handbook of Mathematical Functions, evaluated by Lentz's method.
    """
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # the fraction would converge slowly
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return math.exp(log_front) * fraction / a
