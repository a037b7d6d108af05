"""What came out: the picked members' scores of each arm, and every arm less the baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError
from pbt_rl.experiments.prove.games import Judged
from pbt_rl.experiments.prove.statistics import Comparison, compare, iqm

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

    def lines(self) -> list[str]:
        """Return a verdict line per arm."""
        width = max(map(len, self.scores))
        base = self.baseline
        head = (
            f"{base:<{width}}  {self.mean(base):.4g} in fresh games, mean of {len(self.scores[base])} seeds"
        )
        return [head, *(self._line(arm, one, width) for arm, one in self.comparisons.items())]

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
