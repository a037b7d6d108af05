"""What came out: the picked members' scores of each arm, and every arm less the baseline. Pure.

n seeds give n differences d (ours less theirs): intervals, power, verdict. Which interval covers the true mean for few
seeds was simulated: docs/reference/proving.md. The verdict is by Student's t.
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
from pbt_rl.experiments.prove.games import Judged

Scores = dict[str, dict[int, Judged]]
"""Arm -> seed -> scores."""
EQUAL = 0.05
"""Frames may differ by this share: a run ends with its last batch."""


@dataclass(frozen=True)
class Outcome:
    """The baseline's arm comes without a comparison."""

    baseline: str
    scores: Mapping[str, Mapping[int, Judged]]
    comparisons: Mapping[str, Comparison]

    def mean(self, arm: str) -> float:
        """Return the mean score of the picked members."""
        return fmean(one.score for one in self.scores[arm].values())

    def middle(self, arm: str) -> float:
        """Return the interquartile mean of the picked members."""
        return iqm([one.score for one in self.scores[arm].values()])

    def frames(self, arm: str) -> float:
        """Return the mean frames of a run."""
        return fmean(one.frames for one in self.scores[arm].values())

    def uneven(self, arm: str) -> bool:
        """Whether an arm has trained more or less than the baseline."""
        return abs(self.share(arm) - 1) > EQUAL

    def share(self, arm: str) -> float:
        """Return an arm's frames as a share of the baseline's."""
        return self.frames(arm) / self.frames(self.baseline)

    def ahead(self, arm: str) -> list[str]:
        """Return a text for each other arm that scored higher than this one on every seed that both have."""
        found, ours = [], self.scores[arm]
        for name, theirs in self.scores.items():
            common = ours.keys() & theirs.keys()
            if name != arm and common and all(theirs[seed].score > ours[seed].score for seed in common):
                means = [fmean(runs[seed].score for seed in common) for runs in (theirs, ours)]
                found.append(
                    f"{name} scored {means[0]:.4g} where {arm} scored {means[1]:.4g}, and more on each of "
                    f"{counted(len(common), 'seed')}"
                )
        return found

    def lines(self) -> list[str]:
        """Return a verdict line per arm."""
        width = max(map(len, self.scores))
        base, seeds = self.baseline, len(self.scores[self.baseline])
        head = f"{base:<{width}}  {self.mean(base):.4g} in fresh games, mean of {seeds} seeds"
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
    """Say how many seeds would tell arms of this difference and spread apart."""
    if one.mean == 0:
        return "there is no difference to find"
    if one.needed is None:
        return "10,000 seeds would not be enough to find such a difference"
    more = one.needed - one.seeds
    if more <= 0:
        return "this many seeds find such a difference four times of five"
    return f"if this is the true difference, {counted(more, 'more seed')} would find it four times of five"


def signed(number: float) -> str:
    """Return a difference with its sign; of none a plain 0."""
    return f"{number:+.4g}" if number else "0"


def outcome(scores: Scores, baseline: str) -> Outcome:
    """Compare every arm with the baseline, on the seeds that both have. Raises ConfigError for infinite scores."""
    for arm, runs in scores.items():
        for seed, one in runs.items():
            if not math.isfinite(one.score):
                raise ConfigError(
                    f"arm {arm}, seed {seed} has the score {one.score}: only finite true objectives can be compared"
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
RESAMPLES = 10_000
LEAST_WITHOUT_SPREAD = 4
"""Coarse scores, such as shares of 20 games, are often equally far apart on two or three seeds."""
DUST = 1e-9
"""Relative: below it is rounding."""
MOST_SEEDS = 10_000
"""More are not counted: nobody trains so many."""


@dataclass(frozen=True)
class Interval:
    """From low to high, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two arms on the same seeds. mean: of the differences. wins, losses: seeds on which ours is higher, lower."""

    seeds: int
    mean: float
    by_t: Interval
    by_bootstrap: Interval
    wins: int
    losses: int
    needed: int | None
    """Seeds in all for 80 % power, if the true difference and spread are those measured; None if more than 10,000."""

    @property
    def verdict(self) -> Verdict:
        """Whether the interval by t is above, around or below 0. Too few seeds without any spread tell nothing."""
        if self.seeds < LEAST_WITHOUT_SPREAD and self.by_t.high - self.by_t.low <= DUST * abs(self.mean):
            return "not told apart"
        if self.by_t.low > 0:
            return "helped"
        return "hurt" if self.by_t.high < 0 else "not told apart"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare scores seed by seed: both have one per seed, in the same order. Raises ValueError for less than two."""
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


def interval_by_t(gains: Sequence[float], level: float = LEVEL) -> Interval:
    """Return mean -+ t * s / sqrt(n), with the quantile t of n - 1 degrees of freedom (Student 1908)."""
    half = t_quantile((1 + level) / 2, len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
    return Interval(fmean(gains) - half, fmean(gains) + half)


def interval_by_bootstrap(gains: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the percentile interval of means of n seeds drawn with replacement (Efron 1979)."""
    drawn = np.random.default_rng(0).integers(len(gains), size=(RESAMPLES, len(gains)))
    low, high = np.quantile(np.asarray(gains)[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def seeds_needed(difference: float, deviation: float) -> int | None:
    """Return the least n >= 2 with n >= ((t[0.975] + t[0.8]) * s / d)^2, t of n - 1 degrees of freedom.

    The usual approximation of the power of the two-sided paired test (Chow, Shao and Wang 2008, section 3.1).
    """
    if difference == 0:
        return None
    ratio = (deviation / difference) ** 2

    def enough(n: int) -> bool:
        return n >= ratio * (t_quantile((1 + LEVEL) / 2, n - 1) + t_quantile(POWER, n - 1)) ** 2

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:  # more seeds are never fewer than enough
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def t_quantile(share: float, degrees: int) -> float:
    """Return the quantile of Student's t."""
    from scipy.stats import t  # noqa: PLC0415 - takes a second to load

    return float(t.ppf(share, degrees))


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean: of the middle half, with parts of values at its edges."""
    ordered, cut = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(values) - cut) - max(i, cut)) for i in range(len(values))]
    return math.fsum(w * x for w, x in zip(weights, ordered, strict=True)) / math.fsum(weights)
