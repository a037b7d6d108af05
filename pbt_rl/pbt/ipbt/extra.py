"""Declares IPBT: all members restart when they no longer get better."""

from __future__ import annotations

from pbt_rl.errors import require
from pbt_rl.pbt.controllers import StaticController
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import ControllerEntry, Ingredients
from pbt_rl.pbt.ipbt.controller import Ipbt


def _ipbt(given: Ingredients) -> Controller:
    # The registries read this module.
    from pbt_rl.pbt.registry import pbt_rules  # noqa: PLC0415
    from pbt_rl.pbt.rules import least_members  # noqa: PLC0415

    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    least = max(4, least_members(pbt.exploit))
    require(
        given.members >= least,
        "controller",
        "ipbt",
        f"it needs at least {least} members (--num-policies): the weights of the best quarter go on",
    )
    require(
        pbt.ready == "synchronous",
        "pbt.ready",
        pbt.ready,
        "ipbt restarts all members at once: use synchronous",
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "a restart of ipbt copies weights and values: use both")
    return Ipbt(given.table, given.seed, **pbt_rules(given), budget_frames=given.budget_frames)


CONTROLLERS = {
    "ipbt": ControllerEntry(
        _ipbt,
        ("pbt",),
        "pbt that begins again with shrunk weights and longer periods when it stagnates (needs the extra `search`).",
        compares=True,
    )
}
NAMES = {"Ipbt": "pbt_rl.pbt.ipbt.controller"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = ("train --env toy/identity --controller ipbt --show",)
"""Command lines that ask for it."""
