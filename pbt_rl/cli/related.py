"""Which options belong to an environment, a controller or a rule: help shows them together."""

from __future__ import annotations

from collections.abc import Mapping

from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES
from pbt_rl.pbt.exploit.registry import EXPLOIT_RULES
from pbt_rl.pbt.explore.registry import EXPLORE_RULES
from pbt_rl.pbt.ready.registry import READY_RULES
from pbt_rl.pbt.registry import CONTROLLERS

NAMING = ("env", "controller", "pbt.exploit", "pbt.explore", "pbt.ready")
"""Options whose value brings options of its own."""


def related(chosen: Mapping[str, str | None]) -> frozenset[str]:
    """Dotted names of options, and names of groups of them, that belong to the values of NAMING."""
    env = chosen["env"] or ""
    family = SHORT_NAMES.get(env, env).partition("/")[0]
    found = {*(FAMILIES[family].option_groups if family in FAMILIES else ())}
    if chosen["controller"] in CONTROLLERS:
        found |= {*CONTROLLERS[chosen["controller"]].options}
    if (exploit := chosen["pbt.exploit"]) is not None:
        found |= {"pbt.exploit_option", *(EXPLOIT_RULES[exploit].options if exploit in EXPLOIT_RULES else ())}
    if (explore := chosen["pbt.explore"]) is not None:
        found |= {"pbt.explore_option", *(EXPLORE_RULES[explore].options if explore in EXPLORE_RULES else ())}
    if chosen["pbt.ready"] in READY_RULES:
        found |= {*READY_RULES[chosen["pbt.ready"]].options}
    return frozenset(found)
