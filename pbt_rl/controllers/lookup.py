"""Construction of rules and controllers from option values.

Rules and controllers are registered in `pbt_rl.registry`, or defined by the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.controllers.controllers import PbtController, StaticController
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry
from pbt_rl.controllers.evaluation import build_evaluation
from pbt_rl.controllers.exploit import Exploit, ExploitRule
from pbt_rl.controllers.explore import Explore, ExploreRule
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.own import (
    checked_exploit,
    checked_explore,
    own_controller,
    own_exploit,
    own_explore,
    with_function,
)
from pbt_rl.controllers.ready import Ready, ReadyRule
from pbt_rl.controllers.settings import with_settings
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.names import meant
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES


def texts() -> dict[str, str]:
    """Return name -> help text of all controllers."""
    return {name: entry.help for name, entry in CONTROLLERS.items()}


def controller_entry(name: str) -> ControllerEntry:
    """Return the registry entry of a controller. Raises ConfigError if it cannot be loaded.

    name: registered name, or `module:Class` of the user.
    """
    entry: ControllerEntry = own_controller(name) if ":" in name else _found(CONTROLLERS, name, "controller")
    return entry


def _found(table: Mapping[str, Any], name: str, option: str) -> Any:
    """Return a registry entry. Raises ConfigError for an unknown name, and for an unusable entry of another package.

    option: name of the option for the error message, such as `controller`.
    """
    try:
        return table[name]
    except KeyError:
        raise ConfigError(
            f"--{option} {name} cannot be used: {meant(option, name, table)}known names are {', '.join(table)}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"--{option} {name} cannot be used: {error}") from error


def build_ready(pbt: PbtConfig) -> Ready:
    """Build the ready rule from the options. Raises ConfigError for an unknown name."""
    rule: ReadyRule = _found(READY_RULES, pbt.ready, "pbt.ready")
    return rule.build(pbt)


def build_exploit(pbt: PbtConfig) -> Exploit:
    """Build the exploit rule from the options.

    Raises ConfigError for an unknown name, an invalid setting, and an unusable rule of the user.
    """
    if ":" in pbt.exploit:
        return own_exploit(pbt.exploit, pbt.exploit_option)
    rule: ExploitRule = _found(EXPLOIT_RULES, pbt.exploit, "pbt.exploit")
    exploit = with_settings(rule.build(pbt), pbt.exploit_option, "pbt.exploit-option")
    return checked_exploit(pbt.exploit, exploit) if EXPLOIT_RULES.is_external(pbt.exploit) else exploit


def least_members(exploit: str) -> int:
    """Return the minimum population size for this exploit rule. For a rule of the user: 1.

    exploit: registered name, or `module:Class` of the user. Raises ConfigError for an unknown name.
    """
    return 1 if ":" in exploit else int(_found(EXPLOIT_RULES, exploit, "pbt.exploit").least_members)


def build_explore(pbt: PbtConfig, table: Mapping[str, HyperSpec]) -> Explore:
    """Build the explore rule from the options, including the function of --pbt.custom-explore.

    table: specs of all values of a member.
    Raises ConfigError for an unknown name, an invalid setting, and an unusable rule or function of the user.
    """
    rule: Explore
    if ":" in pbt.explore:
        rule = own_explore(pbt.explore, table, pbt.explore_option)
    else:
        entry: ExploreRule = _found(EXPLORE_RULES, pbt.explore, "pbt.explore")
        tuned = {name: spec for name, spec in table.items() if spec.tuned}
        rule = with_settings(entry.build(pbt, tuned), pbt.explore_option, "pbt.explore-option")
        if EXPLORE_RULES.is_external(pbt.explore):
            rule = checked_explore(pbt.explore, rule, table)
    return with_function(rule, pbt.custom_explore, pbt.explore, table) if pbt.custom_explore else rule


def _pbt(given: ControllerContext) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    least = least_members(pbt.exploit)
    require(
        given.members >= least,
        "pbt.exploit",
        pbt.exploit,
        f"it needs at least {least} members: give --num-policies {least} or another rule",
    )
    return PbtController(given.table, given.seed, **pbt_rules(given), copy=pbt.copy)


def pbt_rules(given: ControllerContext) -> dict[str, Any]:
    """Return the keyword arguments of `PbtController` that are built from the options.

    Raises ConfigError for an option that cannot be used.
    """
    pbt = given.pbt
    return {
        "ready": build_ready(pbt),
        "exploit": build_exploit(pbt),
        "explore": build_explore(pbt, given.table),
        "evaluation": build_evaluation(given),
    }


PBT = ControllerEntry(_pbt, ("pbt",), "population-based training.", compares=True)
