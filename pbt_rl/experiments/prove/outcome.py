"""Scores of the picked members of each arm, and paired differences to the baseline. All functions are pure.

n seeds give n differences d (arm minus baseline). The verdict depends on the 95 % interval of their mean by Student's
t. The page docs/reference/proving.md has the simulated coverage of the intervals for few seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError
from pbt_rl.experiments.prove.judged import Judged

Scores = dict[str, dict[int, Judged]]
"""Arm -> seed -> scores."""
EQUAL = 0.05
"""Tolerated relative difference of frames. (The frames of runs differ, because a run ends after a complete batch.)"""


@dataclass(frozen=True)
class Outcome:
    """Result of an experiment. comparisons: arm -> comparison with the baseline."""

    baseline: str
    scores: Mapping[str, Mapping[int, Judged]]
    comparisons: Mapping[str, Comparison]

    def mean(self, arm: str) -> float:
        """Return the mean score of an arm's picked members over the seeds."""
        return fmean(one.score for one in self.scores[arm].values())

    def middle(self, arm: str) -> float:
        """Return the interquartile mean score of an arm's picked members over the seeds."""
        return iqm([one.score for one in self.scores[arm].values()])

    def frames(self, arm: str) -> float:
        """Return the sum of the members' frames in a run, averaged over the runs of an arm."""
        return fmean(one.frames for one in self.scores[arm].values())

    def uneven(self, arm: str) -> bool:
        """Return True if the frames of an arm differ from the frames of the baseline by more than the share EQUAL."""
        return abs(self.share(arm) - 1) > EQUAL

    def share(self, arm: str) -> float:
        """Return the frames of an arm divided by the frames of the baseline."""
        return self.frames(arm) / self.frames(self.baseline)

    def ahead(self, arm: str) -> list[str]:
        """Return a sentence for each other arm that scored higher than `arm` on every common seed."""
        found, ours = [], self.scores[arm]
        for name, theirs in self.scores.items():
            common = ours.keys() & theirs.keys()
            if name != arm and common and all(theirs[seed].score > ours[seed].score for seed in common):
                means = [fmean(runs[seed].score for seed in common) for runs in (theirs, ours)]
                found.append(
                    f"{name} scored {means[0]:.4g} where {arm} scored {means[1]:.4g}, and was ahead on each of "
                    f"{counted(len(common), 'seed')}"
                )
        return found

    def lines(self) -> list[str]:
        """Return the verdicts as lines of text: the baseline, each other arm, and arms that are ahead of `pbt`."""
        width = max(map(len, self.scores))
        base, seeds = self.baseline, len(self.scores[self.baseline])
        head = f"{base:<{width}}  {self.mean(base):.4g} in evaluation episodes, mean of {seeds} seeds"
        ahead = self.ahead("pbt") if "pbt" in self.scores else []
        return [head, *(self._line(arm, one, width) for arm, one in self.comparisons.items()), *ahead]

    def _line(self, arm: str, one: Comparison, width: int) -> str:
        interval = f"{signed(one.by_t.low)} to {signed(one.by_t.high)}"
        line = (
            f"{arm:<{width}}  {self.mean(arm):.4g}: {one.verdict}, {signed(one.mean)} against {self.baseline} "
            f"(95 % by t: {interval}; {one.seeds} seeds, {one.wins} better, {one.losses} worse)"
        )
        if one.verdict == "not told apart":
            line += f"; {needed(one)}"
        if self.uneven(arm):
            line += f"; it had {100 * self.share(arm):.0f} % of the frames of {self.baseline}"
        return line


def needed(one: Comparison) -> str:
    """Describe how many seeds would detect the measured difference with the measured spread."""
    if one.mean == 0:
        return "the difference is 0"
    if one.needed is None:
        return "10,000 seeds would not be enough to detect such a difference"
    more = one.needed - one.seeds
    if more <= 0:
        return "this number of seeds detects such a difference with a power of 80 %"
    return f"{counted(more, 'more seed')} would detect such a difference with a power of 80 %"


def signed(number: float) -> str:
    """Format a difference with a sign. Zero has no sign."""
    return f"{number:+.4g}" if number else "0"


def outcome(scores: Scores, baseline: str) -> Outcome:
    """Compare each arm with the baseline on their common seeds. Raises ConfigError if a score is not finite.

    Arms with fewer than two common seeds have no comparison.
    """
    for arm, runs in scores.items():
        for seed, one in runs.items():
            if not math.isfinite(one.score):
                raise ConfigError(
                    f"arm {arm}, seed {seed} has the score {one.score}, which cannot be compared: make the true "
                    "objective of the environment finite"
                )
    theirs = scores[baseline]
    found = {}
    for arm, ours in scores.items():
        seeds = sorted(ours.keys() & theirs.keys())
        if arm != baseline and len(seeds) > 1:
            found[arm] = compare([ours[s].score for s in seeds], [theirs[s].score for s in seeds])
    return Outcome(baseline, scores, found)


# -- paired differences of two arms on the same seeds -------------------------------------------------------

Verdict = Literal["helped", "not told apart", "hurt"]
LEVEL, POWER = 0.95, 0.8
"""Coverage probability of the intervals, and statistical power for `seeds_needed`."""
RESAMPLES = 10_000
"""Number of bootstrap samples."""
LEAST_WITHOUT_SPREAD = 4
"""Minimum number of seeds for a verdict if the differences of all seeds are equal.

Coarse scores (such as success rates over 20 episodes) often have equal differences on two or three seeds by chance."""
DUST = 1e-9
"""Relative tolerance for rounding errors."""
MOST_SEEDS = 10_000
"""Upper limit in the search for the needed number of seeds."""


@dataclass(frozen=True)
class Interval:
    """Closed interval from low to high."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with the baseline on their common seeds.

    seeds: number of common seeds. mean: mean of the differences. by_t, by_bootstrap: 95 % intervals of the mean.
    wins: number of seeds on which the arm scores higher than the baseline. losses: number of seeds on which the arm
    scores lower.
    """

    seeds: int
    mean: float
    by_t: Interval
    by_bootstrap: Interval
    wins: int
    losses: int
    needed: int | None
    """Number of seeds for 80 % power with the measured difference and spread. None: more than MOST_SEEDS, or a
    difference of 0.

    At least LEAST_WITHOUT_SPREAD if all differences are equal.
    """

    @property
    def verdict(self) -> Verdict:
        """`helped` if `by_t` is above 0, `hurt` if `by_t` is below 0, otherwise `not told apart`.

        With fewer than LEAST_WITHOUT_SPREAD seeds and equal differences, the verdict is always `not told apart`.
        """
        if self.seeds < LEAST_WITHOUT_SPREAD and self.by_t.high - self.by_t.low <= DUST * abs(self.mean):
            return "not told apart"
        if self.by_t.low > 0:
            return "helped"
        return "hurt" if self.by_t.high < 0 else "not told apart"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the scores of an arm (`ours`) with the scores of the baseline (`theirs`) on the same seeds.

    Both sequences have one score per seed, in the same order of seeds. Raises ValueError for fewer than two seeds.
    """
    gains = [0.0 if math.isclose(a, b, rel_tol=DUST) else a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gains) < 2:
        raise ValueError(f"{len(gains)} seed has no spread: give 2 or more")
    mean, spread = fmean(gains), stdev(gains)
    needed = seeds_needed(mean, spread)
    if needed is not None and spread <= DUST * abs(mean):
        needed = max(needed, LEAST_WITHOUT_SPREAD)
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    by_t, by_bootstrap = interval_by_t(gains), interval_by_bootstrap(gains)
    return Comparison(len(gains), mean, by_t, by_bootstrap, wins, losses, needed)


def interval_by_t(gains: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of n gains (score differences) by Student (1908).

    The interval is mean -+ t * s / sqrt(n), where s is the std of the gains, and t has n - 1 degrees of freedom.
    """
    half = t_quantile((1 + LEVEL) / 2, len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
    return Interval(fmean(gains) - half, fmean(gains) + half)


def interval_by_bootstrap(gains: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean gain by the percentile bootstrap over the seeds (Efron 1979)."""
    drawn = np.random.default_rng(0).integers(len(gains), size=(RESAMPLES, len(gains)))
    low, high = np.quantile(np.asarray(gains)[drawn].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def seeds_needed(difference: float, std: float) -> int | None:
    """Return the number of seeds that detects a difference with a power of 80 %. None: see `Comparison.needed`.

    difference, std: mean and std of the differences. The result is the smallest n >= 2 with n >= ((t[0.975] + t[0.8]) *
    std / difference)^2, where t has n - 1 degrees of freedom. This formula is the usual approximation for the two-sided
    paired test (Chow, Shao and Wang 2008, section 3.1).
    """
    if difference == 0:
        return None
    ratio = (std / difference) ** 2

    def enough(n: int) -> bool:
        return n >= ratio * (t_quantile((1 + LEVEL) / 2, n - 1) + t_quantile(POWER, n - 1)) ** 2

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:  # bisection, because `enough` is monotonic
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def t_quantile(share: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution. share: probability. degrees: degrees of freedom."""
    from scipy.stats import t  # noqa: PLC0415 - takes a second to load

    return float(t.ppf(share, degrees))


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean. Values at the borders of the middle half have fractional weights."""
    ordered, cut = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(values) - cut) - max(i, cut)) for i in range(len(values))]
    return math.fsum(w * x for w, x in zip(weights, ordered, strict=True)) / math.fsum(weights)
