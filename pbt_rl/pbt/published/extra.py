"""Declares rules of other systems and papers, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pbt_rl.pbt.entry import PERIOD_OPTIONS, ExploitRule, ExploreRule, ReadyRule
from pbt_rl.pbt.explore import Explore, PerturbFactors
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.published.clocks import Asynchronous, PartiallySynchronous
from pbt_rl.pbt.published.explore import ExplorePipeline, MultiplyOrDivide, Resample, ResampleAll
from pbt_rl.pbt.published.options import PublishedOptions
from pbt_rl.pbt.published.orion import Backtrack, ExploitPipeline, QuantileTruncation
from pbt_rl.pbt.published.pairwise import PairwiseLearning
from pbt_rl.pbt.published.sigma_gap import SigmaGap
from pbt_rl.pbt.published.tournaments import BinaryTournament, Impala, TTest

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig

Specs = Mapping[str, HyperSpec]
ORION_VOLATILITY = 1e-4
IMPALA_PROBABILITY = 1 / 3
_PROBABILITY = "pbt.explore_probability"


def _period(pbt: PbtConfig) -> tuple[int, int, int, float]:
    return pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth


def _partially(pbt: PbtConfig) -> PartiallySynchronous:
    return PartiallySynchronous(*_period(pbt), fraction=cast("PublishedOptions", pbt).ready_fraction)


def _probability(pbt: PbtConfig, usual: float) -> float:
    return usual if pbt.explore_probability is None else pbt.explore_probability


def _multiply_or_divide(pbt: PbtConfig, tuned: Specs) -> Explore:
    usual = IMPALA_PROBABILITY if pbt.exploit == "impala" else 1.0
    return MultiplyOrDivide(tuned, probability=_probability(pbt, usual))


def _resample(pbt: PbtConfig, tuned: Specs) -> Explore:
    return Resample(tuned, _probability(pbt, 0.25), PerturbFactors(tuned, pbt.factors))


def _resample_all(pbt: PbtConfig, tuned: Specs) -> Explore:
    otherwise = MultiplyOrDivide(tuned, volatility=ORION_VOLATILITY)
    return ExplorePipeline((ResampleAll(tuned, _probability(pbt, 0.2)), otherwise), until_change=True)


READY_RULES = {
    "asynchronous": ReadyRule(
        lambda pbt: Asynchronous(*_period(pbt)),
        help="each member at its own times, with the others as they are then (Jaderberg et al. 2017).",
    ),
    "partially-synchronous": ReadyRule(
        _partially,
        (*PERIOD_OPTIONS, "pbt.ready_fraction"),
        help="the members that have arrived, once they are enough (Jaderberg et al.).",
    ),
}
EXPLOIT_RULES = {
    "t-test": ExploitRule(
        lambda pbt: TTest(cast("PublishedOptions", pbt).t_test_level),
        ("pbt.t_test_level",),
        help="copy a random member if it is significantly better (Jaderberg et al.).",
    ),
    "binary-tournament": ExploitRule(
        lambda _: BinaryTournament(), help="copy a random member if it is better (Jaderberg et al.)."
    ),
    "impala": ExploitRule(
        lambda _: Impala(),
        explore_probability=IMPALA_PROBABILITY,
        help="copy a random member if it is 5 % better, mutate in any case.",
    ),
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
    "multiply-or-divide": ExploreRule(
        _multiply_or_divide, (_PROBABILITY,), help="each is multiplied or divided by 1.2 (IMPALA)."
    ),
    "resample": ExploreRule(
        _resample,
        ("pbt.factors", _PROBABILITY),
        help="each is drawn anew or else changed as by `factors` (Ray).",
    ),
    "resample-all": ExploreRule(
        _resample_all,
        (_PROBABILITY,),
        help="all are drawn anew, or else each is multiplied or divided by 1.2 (Orion).",
    ),
    "pairwise": ExploreRule(
        lambda pbt, tuned: PairwiseLearning(tuned, _probability(pbt, 0.25)),
        (_PROBABILITY,),
        help="a copy's own values move towards its donor's (GPBT-PL).",
    ),
}
NEEDS = ("pbt_rl.pbt.welch",)
PBT_FIELDS = PublishedOptions
"""Options beside those of PBT."""
_MODULES = {
    "clocks": "Asynchronous PartiallySynchronous",
    "explore": "ExplorePipeline MultiplyOrDivide Resample ResampleAll",
    "orion": "Backtrack ExploitPipeline QuantileTruncation",
    "pairwise": "PairwiseLearning",
    "sigma_gap": "SigmaGap",
    "tournaments": "BinaryTournament Impala TTest",
}
NAMES = {
    name: f"pbt_rl.pbt.published.{module}" for module, names in _MODULES.items() for name in names.split()
}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = (
    "train --env toy/identity --pbt.exploit backtrack --show",
    "train --env toy/identity --pbt.explore pairwise --show",
    "train --env toy/identity --pbt.t-test-level 0.1 --show",
)
"""Command lines that ask for it."""
