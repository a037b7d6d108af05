"""Whether the best objectives of a population still rise, as IPBT tests it. Needs scikit-learn (extra `search`)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import fmean, stdev

SLOW_COMPARISONS, SLOW_RISE = 15, 1.0
"""A rise of less than so many deviations within so many comparisons is no progress."""


def standardized(bests: Sequence[float]) -> list[float]:
    """Return (b - mean) / deviation (of a sample); zeros if they are all equal."""
    mean, deviation = fmean(bests), stdev(bests)
    return [(b - mean) / deviation if deviation > 0 else 0.0 for b in bests]


def improves(bests: Sequence[float]) -> bool:
    """Return whether the last one, smoothed, is above the one before (Chebykin et al. 2025, section 3.1).

    bests: best objective of each comparison, oldest first. The first one improves.
    """
    if len(bests) < 2:
        return True
    smooth = smoothed(standardized(bests))
    return smooth[-1] > smooth[-2]


def is_slow(bests: Sequence[float]) -> bool:
    """Return whether the last comparisons brought less than a deviation."""
    if len(bests) < SLOW_COMPARISONS:
        return False
    heights = standardized(bests)
    return max(heights) - max(heights[: 1 - SLOW_COMPARISONS]) < SLOW_RISE


def smoothed(heights: Sequence[float]) -> list[float]:
    """Return the mean of a Gaussian process (Matern 5/2 and noise, fitted by maximum likelihood) at the same times."""
    import numpy as np  # noqa: PLC0415 - with the optional extra
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: PLC0415
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    times = np.linspace(0, 1, len(heights))[:, None]
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(0.5, (0.02, 10.0), nu=2.5) + WhiteKernel(
        0.1, (1e-3, 2.0)
    )
    process = GaussianProcessRegressor(kernel)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the best value may be at a bound
        means = process.fit(times, np.array(heights)).predict(times)
    return [float(mean) for mean in means]
