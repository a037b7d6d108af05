"""The rules that `--pbt.ready`, `--pbt.exploit` and `--pbt.explore` name. A new rule is a class and one entry here.

A rule of one's own needs no entry (`pbt_rl.pbt.own`): `--pbt.exploit module:Class` or `module:function`, and
`--pbt.explore module:Class`, called with the specs of the tuned values. A function that changes the values last:
`--pbt.custom-explore module:function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pbt_rl.errors import require
from pbt_rl.extras import discover
from pbt_rl.pbt.entry import PERIOD_OPTIONS, ExploitRule, ExploreRule, ReadyRule
from pbt_rl.pbt.exploit import (
    Exploit,
    Gap,
    Truncation,
)
from pbt_rl.pbt.explore import (
    CustomExplore,
    Explore,
    ExplorePipeline,
    MultiplyOrDivide,
    Pairing,
    Perturb,
    PerturbFactors,
    Resample,
    ResampleAll,
    build_own_explore,
)
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.own import build_own_exploit
from pbt_rl.pbt.ready import Asynchronous, PartiallySynchronous, Ready, Synchronous
from pbt_rl.pbt.settings import load, with_settings
from pbt_rl.pbt.tournaments import BinaryTournament, Impala, TTest

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig


def _period(pbt: PbtConfig) -> tuple[int, int, int, float]:
    return pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth


READY_RULES: dict[str, ReadyRule] = {
    "synchronous": ReadyRule(lambda pbt: Synchronous(*_period(pbt))),
    "asynchronous": ReadyRule(lambda pbt: Asynchronous(*_period(pbt))),
    "partially-synchronous": ReadyRule(
        lambda pbt: PartiallySynchronous(*_period(pbt), fraction=pbt.ready_fraction),
        (*PERIOD_OPTIONS, "pbt.ready_fraction"),
    ),
}


def build_ready(pbt: PbtConfig) -> Ready:
    """Return the rule of readiness that the options name."""
    return READY_RULES[pbt.ready].build(pbt)


def _truncation(pbt: PbtConfig, *, others_mutate: bool) -> Exploit:
    return Truncation(pbt.replace_fraction, Gap(pbt.replace_gap, pbt.replace_gap_absolute), others_mutate)


_TRUNCATION_OPTIONS = ("pbt.replace_fraction", "pbt.replace_gap", "pbt.replace_gap_absolute")

EXPLOIT_RULES: dict[str, ExploitRule] = {
    "top-middle-bottom": ExploitRule(lambda pbt: _truncation(pbt, others_mutate=True), _TRUNCATION_OPTIONS),
    "truncation": ExploitRule(lambda pbt: _truncation(pbt, others_mutate=False), _TRUNCATION_OPTIONS),
    "t-test": ExploitRule(lambda pbt: TTest(pbt.t_test_level), ("pbt.t_test_level",)),
    "binary-tournament": ExploitRule(lambda _: BinaryTournament()),
    "impala": ExploitRule(lambda _: Impala()),
}
"""Name -> rule. `--pbt.exploit-option` sets any field of the rule that is built."""


def build_exploit(pbt: PbtConfig) -> Exploit:
    """Return the rule of selection that the options name. Raises ConfigError."""
    if ":" in pbt.exploit:
        return build_own_exploit(pbt.exploit, pbt.exploit_option)
    return with_settings(EXPLOIT_RULES[pbt.exploit].build(pbt), pbt.exploit_option, "pbt.exploit-option")


def least_members(exploit: str) -> int:
    """Return the size of the smallest population in which this rule does anything."""
    return 1 if ":" in exploit else EXPLOIT_RULES[exploit].least_members


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
}
"""Name -> rule. `--pbt.explore-option` sets any field of the rule that is built."""
for _extra in discover("pbt_rl.pbt"):
    READY_RULES |= getattr(_extra, "READY_RULES", {})
    EXPLOIT_RULES |= getattr(_extra, "EXPLOIT_RULES", {})
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
