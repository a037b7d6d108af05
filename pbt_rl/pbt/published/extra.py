"""Declares rules of other systems and papers, by name."""

from __future__ import annotations

from pbt_rl.pbt.entry import ExploitRule, ExploreRule
from pbt_rl.pbt.published.orion import Backtrack, ExploitPipeline, QuantileTruncation
from pbt_rl.pbt.published.pairwise import PairwiseLearning
from pbt_rl.pbt.published.sigma_gap import SigmaGap

EXPLOIT_RULES = {
    "quantile": ExploitRule(
        lambda _: QuantileTruncation(),
        least_members=5,
        help="the worst fifth copies one of the best fifth (Orion).",
    ),
    "backtrack": ExploitRule(
        lambda _: ExploitPipeline((Backtrack(), QuantileTruncation())),
        least_members=5,
        help="the worst return to an elite of any time, kept in memory; else as `quantile` (Orion's default).",
    ),
    "sigma-gap": ExploitRule(
        lambda pbt: SigmaGap(pbt.replace_fraction),
        ("pbt.replace_fraction",),
        least_members=3,
        help="the gap is counted in deviations of the population; a recent peak protects (DexPBT).",
    ),
}
EXPLORE_RULES = {
    "pairwise": ExploreRule(
        lambda pbt, tuned: PairwiseLearning(
            tuned, 0.25 if pbt.explore_probability is None else pbt.explore_probability
        ),
        ("pbt.explore_probability",),
        help="a copy's own values move towards its donor's (GPBT-PL).",
    ),
}
NAMES = {
    "Backtrack": "pbt_rl.pbt.published.orion",
    "ExploitPipeline": "pbt_rl.pbt.published.orion",
    "PairwiseLearning": "pbt_rl.pbt.published.pairwise",
    "QuantileTruncation": "pbt_rl.pbt.published.orion",
    "SigmaGap": "pbt_rl.pbt.published.sigma_gap",
}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = (
    "train --env toy/identity --pbt.exploit backtrack --show",
    "train --env toy/identity --pbt.explore pairwise --show",
)
"""Command lines that ask for it."""
