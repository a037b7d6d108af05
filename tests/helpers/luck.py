"""What luck alone does to a population under a rule of selection, and how soon a real difference counts.

python -m tests.helpers.luck            # the table of docs/reference/pbt.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import product
from random import Random
from statistics import fmean, median

import numpy as np

from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import Exploit, Gap, Truncation
from pbt_rl.controllers.exploit_published import TTest

COMPARISONS = 60
WINDOWS = (20, 100)
Episodes = Callable[[np.random.Generator, int, float], np.ndarray]
"""(generator, episodes, deviations of an episode by which the member is better) -> objectives"""


def _success(rate: float) -> Episodes:
    std = (rate * (1 - rate)) ** 0.5
    return lambda rng, episodes, better: (rng.random(episodes) < rate + better * std).astype(float)


def _normal(mean: float, std: float) -> Episodes:
    return lambda rng, episodes, better: rng.normal(mean + better * std, std, episodes)


OBJECTIVES: Mapping[str, Episodes] = {
    "success rate 5 %": _success(0.05),
    "success rate 50 %": _success(0.5),
    "normal 0 +- 10": _normal(0, 10),
    "normal 100 +- 50": _normal(100, 50),
}


def _select(rule: Exploit, rng: Random, windows: list[np.ndarray]) -> dict[int, int]:
    """Return member -> donor of a comparison."""
    reports = [MemberReport(m, 0, tuple(window.tolist()), len(window), 0) for m, window in enumerate(windows)]
    return {s.member: s.donor for s in rule.select(reports, rng) if s.donor is not None}


def one_family_after(
    rule: Exploit, episodes: Episodes, window: int, members: int, seed: int
) -> tuple[int, int]:
    """Return after how many comparisons equal members have one ancestor (COMPARISONS + 1: never), and replacements."""
    rng, draws = Random(seed), np.random.default_rng(seed)
    ancestors, replaced, alone = list(range(members)), 0, COMPARISONS + 1
    for comparison in range(1, COMPARISONS + 1):
        donors = _select(rule, rng, [episodes(draws, window, 0.0) for _ in range(members)])
        replaced += len(donors)
        ancestors = [ancestors[donors.get(m, m)] for m in range(members)]
        if len(set(ancestors)) == 1:
            alone = min(alone, comparison)
    return alone, replaced


def replaced_after(rule: Exploit, episodes: Episodes, window: int, members: int, seed: int) -> int:
    """Return the comparison in which a member that is one deviation of an episode worse is first replaced."""
    rng, draws = Random(seed), np.random.default_rng(seed)
    for comparison in range(1, COMPARISONS + 1):
        windows = [episodes(draws, window, float(m > 0)) for m in range(members)]
        if 0 in _select(rule, rng, windows):
            return comparison
    return COMPARISONS + 1


def rules() -> dict[str, Exploit]:
    """Return the rules of the table: the default guard among others."""
    made: dict[str, Exploit] = {
        f"{errors:g} standard errors": Truncation(0.3, Gap(0.1, 1e-6, errors), others_mutate=True)
        for errors in (0.0, 1.0, 2.0, 2.5, 3.0)
    }
    return {**made, "t-test": TTest()}


def table(repeats: int) -> list[str]:
    """Return the table as lines of Markdown: of the objectives and windows, the least and the most."""
    lines = [
        "| a lead must exceed | members | equal ones: replaced a comparison | one ancestor after | worse one after |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rule in rules().items():
        for members in (4, 8):
            luck, alone, worse = [], [], []
            for episodes, window in product(OBJECTIVES.values(), WINDOWS):
                given = rule, episodes, window, members
                equal = [one_family_after(*given, seed) for seed in range(repeats)]
                alone.append(median(after for after, _ in equal))
                luck.append(fmean(replaced for _, replaced in equal) / COMPARISONS)
                worse.append(median(replaced_after(*given, seed) for seed in range(repeats)))
            row = (f"{min(luck):.2f} to {max(luck):.2f}", _span(alone), _span(worse))
            lines.append(f"| {' | '.join((name, str(members), *row))} |")
    return lines


def _span(medians: list[float]) -> str:
    """Return the least and the most, in words."""
    least, most = (f"{m:g}" if m <= COMPARISONS else "never" for m in (min(medians), max(medians)))
    return least if least == most else f"{least} to {most}"


if __name__ == "__main__":
    print("\n".join(table(int(sys.argv[1]) if len(sys.argv) > 1 else 21)))
