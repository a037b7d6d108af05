"""Statistics of scores, one per seed: interquartile means, and paired differences with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev

from pbt_rl.experiments.prove.statistics import iqm, t_quantile

__all__ = ["Paired", "bootstrap", "half_by_t", "iqm", "paired"]
RESAMPLES = 10_000


@dataclass(frozen=True)
class Paired:
    """Two methods on the same seeds: the mean of the differences, its 95 % interval, and how often one is ahead."""

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    seeds: int

    def __str__(self) -> str:
        """Return the form of the tables."""
        return (
            f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}] {self.wins}:{self.losses} of {self.seeds}"
        )


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Compare two methods seed by seed. Both have one score per seed, in the same order."""
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap(gains)
    wins, losses = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
    return Paired(fmean(gains), low, high, wins, losses, len(gains))


def half_by_t(gains: Sequence[float], comparisons: int = 1) -> float:
    """Return half of the 95 % interval of the mean by Student's t; by Bonferroni if it is one of several."""
    quantile = t_quantile(1 - 0.025 / comparisons, len(gains) - 1)
    return quantile * stdev(gains) / math.sqrt(len(gains))


def bootstrap(gains: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference, by resampling seeds."""
    rng = Random(0)
    means = sorted(fmean(rng.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    return means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
