"""Welch's t-test, in plain Python: scipy takes a second to load."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
