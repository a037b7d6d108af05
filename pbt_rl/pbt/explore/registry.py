"""The rules of exploration that `--pbt.explore` names. A new rule is one file and one entry here.

A rule of one's own needs no entry: `--pbt.explore module:Class`, called with the specs of the tuned values. A function
that changes the values last: `--pbt.custom-explore module:function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pbt_rl.errors import require
from pbt_rl.extras import discover
from pbt_rl.pbt.entry import ExploreRule
from pbt_rl.pbt.explore.base import Explore, Pairing
from pbt_rl.pbt.explore.custom import CustomExplore
from pbt_rl.pbt.explore.factors import MultiplyOrDivide, PerturbFactors
from pbt_rl.pbt.explore.own import build_own_explore
from pbt_rl.pbt.explore.pairwise import PairwiseLearning
from pbt_rl.pbt.explore.perturb import Perturb
from pbt_rl.pbt.explore.pipeline import ExplorePipeline
from pbt_rl.pbt.explore.resample import Resample, ResampleAll
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.settings import load, with_settings

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig

Specs = Mapping[str, HyperSpec]
ORION_VOLATILITY = 1e-4
IMPALA_PROBABILITY = 1 / 3


def _perturb(pbt: PbtConfig, tuned: Specs) -> Explore:
    return Perturb(tuned, pbt.mutation_rate, pbt.perturb_min, pbt.perturb_max, pbt.reset_probability)


def _factors(pbt: PbtConfig, tuned: Specs) -> Explore:
    return PerturbFactors(tuned, pbt.factors, _probability_of_each(pbt))


def _multiply_or_divide(pbt: PbtConfig, tuned: Specs) -> Explore:
    return MultiplyOrDivide(tuned, probability=_probability_of_each(pbt))


def _resample(pbt: PbtConfig, tuned: Specs) -> Explore:
    return Resample(tuned, _probability(pbt, 0.25), PerturbFactors(tuned, pbt.factors))


def _resample_all(pbt: PbtConfig, tuned: Specs) -> Explore:
    otherwise = MultiplyOrDivide(tuned, volatility=ORION_VOLATILITY)
    return ExplorePipeline((ResampleAll(tuned, _probability(pbt, 0.2)), otherwise), until_change=True)


def _probability_of_each(pbt: PbtConfig) -> float:
    return _probability(pbt, IMPALA_PROBABILITY if pbt.exploit == "impala" else 1.0)


def _probability(pbt: PbtConfig, usual: float) -> float:
    return usual if pbt.explore_probability is None else pbt.explore_probability


_PROBABILITY = "pbt.explore_probability"

EXPLORE_RULES: dict[str, ExploreRule] = {
    "perturb": ExploreRule(
        _perturb, ("pbt.mutation_rate", "pbt.perturb_min", "pbt.perturb_max", "pbt.reset_probability")
    ),
    "factors": ExploreRule(_factors, ("pbt.factors", _PROBABILITY)),
    "multiply-or-divide": ExploreRule(_multiply_or_divide, (_PROBABILITY,)),
    "resample": ExploreRule(_resample, ("pbt.factors", _PROBABILITY)),
    "resample-all": ExploreRule(_resample_all, (_PROBABILITY,)),
    "pairwise": ExploreRule(
        lambda pbt, tuned: PairwiseLearning(tuned, _probability(pbt, 0.25)), (_PROBABILITY,)
    ),
}
"""Name -> rule. `--pbt.explore-option` sets any field of the rule that is built."""
for _extra in discover("pbt_rl.pbt"):
    EXPLORE_RULES |= getattr(_extra, "EXPLORE_RULES", {})


def build_explore(pbt: PbtConfig, table: Specs) -> Explore:
    """Return the rule of exploration that the options name, with the user's own function last. Raises ConfigError.

    table: the specs of all values of a member.
    """
    tuned = {name: spec for name, spec in table.items() if spec.tuned}
    if ":" in pbt.explore:
        rule: Explore = build_own_explore(pbt.explore, table, pbt.explore_option)
    else:
        built = EXPLORE_RULES[pbt.explore].build(pbt, tuned)
        rule = with_settings(built, pbt.explore_option, "pbt.explore-option")
    if not pbt.custom_explore:
        return rule
    require(
        not isinstance(rule, Pairing),
        "pbt.custom-explore",
        pbt.custom_explore,
        f"leave it out: --pbt.explore {pbt.explore} makes the values from two members",
    )
    function = load(pbt.custom_explore, "pbt.custom-explore")
    require(callable(function), "pbt.custom-explore", pbt.custom_explore, "give a function of (values, rng)")
    return ExplorePipeline((rule, CustomExplore(function, table)), until_change=False)
