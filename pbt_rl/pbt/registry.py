"""The controllers that `--controller` names. A new controller is one file and one entry here."""

from __future__ import annotations

from typing import Any

from pbt_rl.errors import require
from pbt_rl.extras import discover, offered
from pbt_rl.pbt.controllers import BeforeComparing, PbtController, StaticController
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import ControllerEntry, Ingredients, own_entry
from pbt_rl.pbt.rules import build_exploit, build_explore, build_ready, least_members


def _pbt(given: Ingredients) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    least = least_members(pbt.exploit)
    require(
        given.members >= least,
        "pbt.exploit",
        pbt.exploit,
        f"it compares at least {least} members; give --num-policies {least} or another rule",
    )
    return PbtController(given.table, given.seed, **pbt_rules(given), copy=pbt.copy)


def pbt_rules(given: Ingredients) -> dict[str, Any]:
    """Return the parts of a controller that compares members: by name, as `PbtController` takes them."""
    pbt = given.pbt
    return {
        "ready": build_ready(pbt),
        "exploit": build_exploit(pbt),
        "explore": build_explore(pbt, given.table),
        "evaluation": _evaluation(given),
    }


def _evaluation(given: Ingredients) -> BeforeComparing | None:
    return next((build(given) for build in offered("pbt_rl.pbt", "BEFORE_COMPARING")), None)


CONTROLLERS: dict[str, ControllerEntry] = {
    "pbt": ControllerEntry(_pbt, ("pbt",), "population-based training.", compares=True),
}
"""Name -> controller. All of them read `--pbt.tune`, and all that follow no recorded run `--pbt.min-episodes`."""
OPTIONS: dict[str, type] = {}
"""Groups of options of controllers, beside those of PBT."""
for _extra in discover("pbt_rl.pbt"):
    CONTROLLERS |= getattr(_extra, "CONTROLLERS", {})
    OPTIONS |= getattr(_extra, "OPTIONS", {})


def texts() -> dict[str, str]:
    """Return name -> help."""
    return {name: entry.help for name, entry in CONTROLLERS.items()}


def controller_entry(name: str) -> ControllerEntry:
    """Return how a controller is built, also one of the user's own (`module:Class`), which is imported for that."""
    own: ControllerEntry = own_entry("controller", name) if ":" in name else CONTROLLERS[name]
    return own
