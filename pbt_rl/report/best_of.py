"""The best of k draws: what k members that are left alone reach, from any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import fmean


def expected_best(scores: Sequence[float], k: int, picks: Sequence[float] | None = None) -> float:
    """Return the expected maximum of k of N scores x_1 <= ... <= x_N, over all ways to draw them.

    k <= N, without replacement: sum_i x_i C(i-1, k-1) / C(N, k), which is unbiased for the best of k new draws.
    k > N, with replacement: sum_i x_i ((i/N)^k - ((i-1)/N)^k), which is too low: N draws do not show what is rarer.
    picks: the expected score of the one that is best by these other numbers, which it is ordered by; of equal ones any.
    """
    by, count = scores if picks is None else picks, len(scores)
    equal: dict[float, list[float]] = {}
    for pick, score in zip(by, scores, strict=True):
        equal.setdefault(pick, []).append(score)
    ordered = [fmean(equal[pick]) for pick in sorted(by)]
    assert k >= 1
    assert count >= 1
    if k <= count:
        ways = comb(count, k)
        return sum(x * (comb(i, k - 1) / ways) for i, x in enumerate(ordered))
    return sum(x * (((i + 1) / count) ** k - (i / count) ** k) for i, x in enumerate(ordered))
