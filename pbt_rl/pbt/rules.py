"""The rules that `--pbt.ready`, `--pbt.exploit` and `--pbt.explore` name. A new rule is a class and one entry here.

Extras add rules, load those that a user wrote (`module:object`), and refine the rule that the options name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pbt_rl.extras import discover, offered
from pbt_rl.pbt.entry import ExploitRule, ExploreRule, ReadyRule, own_entry
from pbt_rl.pbt.exploit import Exploit, Gap, Truncation
from pbt_rl.pbt.explore import Explore, Perturb, PerturbFactors
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.ready import Ready, Synchronous

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig


def _synchronous(pbt: PbtConfig) -> Ready:
    return Synchronous(pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth)


READY_RULES: dict[str, ReadyRule] = {"synchronous": ReadyRule(_synchronous)}


def build_ready(pbt: PbtConfig) -> Ready:
    """Return the rule of readiness that the options name."""
    return READY_RULES[pbt.ready].build(pbt)


def _truncation(pbt: PbtConfig, *, others_mutate: bool) -> Exploit:
    gap = Gap(pbt.replace_gap, pbt.replace_gap_absolute, pbt.replace_errors)
    return Truncation(pbt.replace_fraction, gap, others_mutate)


_TRUNCATION_OPTIONS = (
    "pbt.replace_fraction",
    "pbt.replace_gap",
    "pbt.replace_gap_absolute",
    "pbt.replace_errors",
)

EXPLOIT_RULES: dict[str, ExploitRule] = {
    "top-middle-bottom": ExploitRule(lambda pbt: _truncation(pbt, others_mutate=True), _TRUNCATION_OPTIONS),
    "truncation": ExploitRule(lambda pbt: _truncation(pbt, others_mutate=False), _TRUNCATION_OPTIONS),
}
"""Name -> rule. `--pbt.exploit-option` sets any field of the rule that is built."""


def build_exploit(pbt: PbtConfig) -> Exploit:
    """Return the rule of selection that the options name. Raises ConfigError."""
    rule = _exploit_rule(pbt.exploit).build(pbt)
    for refine, _ in offered("pbt_rl.pbt", "REFINES"):
        rule = refine(rule, pbt)
    return rule


def _exploit_rule(name: str) -> ExploitRule:
    own: ExploitRule = EXPLOIT_RULES.get(name) or own_entry("pbt.exploit", name)
    return own


def least_members(exploit: str) -> int:
    """Return the size of the smallest population in which this rule does anything."""
    return EXPLOIT_RULES[exploit].least_members if exploit in EXPLOIT_RULES else 1


Specs = Mapping[str, HyperSpec]


def _perturb(pbt: PbtConfig, tuned: Specs) -> Explore:
    return Perturb(tuned, pbt.mutation_rate, pbt.perturb_min, pbt.perturb_max, pbt.reset_probability)


def _factors(pbt: PbtConfig, tuned: Specs) -> Explore:
    rule, probability = EXPLOIT_RULES.get(pbt.exploit), pbt.explore_probability
    usual = 1.0 if rule is None else rule.explore_probability
    return PerturbFactors(tuned, pbt.factors, usual if probability is None else probability)


EXPLORE_RULES: dict[str, ExploreRule] = {
    "perturb": ExploreRule(
        _perturb, ("pbt.mutation_rate", "pbt.perturb_min", "pbt.perturb_max", "pbt.reset_probability")
    ),
    "factors": ExploreRule(_factors, ("pbt.factors", "pbt.explore_probability")),
}
"""Name -> rule. `--pbt.explore-option` sets any field of the rule that is built."""
for _extra in discover("pbt_rl.pbt"):
    READY_RULES |= getattr(_extra, "READY_RULES", {})
    EXPLOIT_RULES |= getattr(_extra, "EXPLOIT_RULES", {})
    EXPLORE_RULES |= getattr(_extra, "EXPLORE_RULES", {})


def build_explore(pbt: PbtConfig, table: Specs) -> Explore:
    """Return the rule of exploration that the options name. Raises ConfigError.

    table: the specs of all values of a member.
    """
    if ":" in pbt.explore:
        rule: Explore = own_entry("pbt.explore", pbt.explore).build(pbt, table)
    else:
        tuned = {name: spec for name, spec in table.items() if spec.tuned}
        rule = EXPLORE_RULES[pbt.explore].build(pbt, tuned)
    for _, refine in offered("pbt_rl.pbt", "REFINES"):
        rule = refine(rule, pbt, table)
    return rule
