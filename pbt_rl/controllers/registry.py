"""The rules and controllers that options name: from the tables of `pbt_rl.registry`, or of the user's own.

A new rule is a class, its entry beside it, and one line of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.controllers.entry import ControllerEntry
from pbt_rl.controllers.exploit import Exploit, ExploitRule
from pbt_rl.controllers.explore import Explore, ExploreRule
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.own import own_controller, own_exploit, own_explore, refine_exploit, refine_explore
from pbt_rl.controllers.ready import Ready, ReadyRule
from pbt_rl.errors import ConfigError
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES


def texts() -> dict[str, str]:
    """Return name -> help of the controllers."""
    return {name: entry.help for name, entry in CONTROLLERS.items()}


def controller_entry(name: str) -> ControllerEntry:
    """Return how a controller is built, also one of the user's own (`module:Class`), which is imported for that."""
    entry: ControllerEntry = own_controller(name) if ":" in name else _found(CONTROLLERS, name, "controller")
    return entry


def _found(table: Mapping[str, Any], name: str, option: str) -> Any:
    """Return an entry. Raises ConfigError if it is another package's and cannot be imported."""
    try:
        return table[name]
    except ValueError as error:
        raise ConfigError(f"--{option} {name} cannot be used: {error}") from error


def build_ready(pbt: PbtConfig) -> Ready:
    """Return the rule of readiness that the options name."""
    rule: ReadyRule = _found(READY_RULES, pbt.ready, "pbt.ready")
    return rule.build(pbt)


def build_exploit(pbt: PbtConfig) -> Exploit:
    """Return the rule of selection that the options name. Raises ConfigError."""
    name = pbt.exploit
    rule: ExploitRule = own_exploit(name) if ":" in name else _found(EXPLOIT_RULES, name, "pbt.exploit")
    return refine_exploit(rule.build(pbt), pbt)


def least_members(exploit: str) -> int:
    """Return the size of the smallest population in which this rule does anything."""
    rule: ExploitRule | None = None if ":" in exploit else _found(EXPLOIT_RULES, exploit, "pbt.exploit")
    return 1 if rule is None else rule.least_members


def build_explore(pbt: PbtConfig, table: Mapping[str, HyperSpec]) -> Explore:
    """Return the rule of exploration that the options name. Raises ConfigError.

    table: the specs of all values of a member.
    """
    if ":" in pbt.explore:
        return refine_explore(own_explore(pbt.explore).build(pbt, table), pbt, table)
    rule: ExploreRule = _found(EXPLORE_RULES, pbt.explore, "pbt.explore")
    tuned = {name: spec for name, spec in table.items() if spec.tuned}
    return refine_explore(rule.build(pbt, tuned), pbt, table)
