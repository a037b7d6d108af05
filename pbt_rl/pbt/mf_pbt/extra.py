"""Declares MF-PBT: groups of members, compared at different frequencies."""

from __future__ import annotations

from pbt_rl.errors import require
from pbt_rl.pbt.controllers import StaticController
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import ControllerEntry, Groups, Ingredients
from pbt_rl.pbt.mf_pbt.controller import MfPbt, usual_frequencies
from pbt_rl.pbt.mf_pbt.options import MfPbtOptions
from pbt_rl.pbt.ready import grown


def _mf_pbt(given: Ingredients) -> Controller:
    # The registries read this module.
    from pbt_rl.pbt.registry import pbt_rules  # noqa: PLC0415
    from pbt_rl.pbt.rules import least_members  # noqa: PLC0415

    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    own = given.options.group(MfPbtOptions)
    frequencies = own.frequencies or usual_frequencies(given.members)
    groups = len(frequencies)
    least = groups * max(4, least_members(pbt.exploit))
    require(
        given.members >= least,
        "controller",
        "mf-pbt",
        f"{groups} groups (--pbt.frequencies) need at least {least} members (--num-policies)",
    )
    require(
        pbt.ready == "synchronous", "pbt.ready", pbt.ready, "mf-pbt counts rounds of all: use synchronous"
    )
    require(
        pbt.exploit != "backtrack",
        "pbt.exploit",
        pbt.exploit,
        "its elites are those of all members, and groups of mf-pbt select among themselves: use another rule",
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "mf-pbt itself chooses what is copied: use both")
    return MfPbt(
        given.table,
        given.seed,
        **pbt_rules(given),
        frequencies=frequencies,
        migrant_hypers=own.migrant_hypers,
    )


def _never_compared(options: Groups, members: int, budget_frames: int) -> str:
    """Return a hint at groups that are never compared within the budget, or nothing."""
    from pbt_rl.pbt.options import PbtConfig  # noqa: PLC0415 - it reads this module

    pbt = options.group(PbtConfig)
    frequencies = options.group(MfPbtOptions).frequencies or usual_frequencies(members)
    due, held = max(pbt.start_frames, pbt.period_frames), 0
    while due < budget_frames and held < max(frequencies):
        held += 1
        due += grown(pbt.period_frames, pbt.period_growth, held)
    never = " and ".join(f"{each}" for each in frequencies if each > held)
    return never and (
        f"note: this run ends at {budget_frames:,} frames, after {held} comparison{'' if held == 1 else 's'}: groups "
        f"that mf-pbt compares every {never} of them never are: lower --pbt.period-frames, or give other "
        "--pbt.frequencies"
    )


CONTROLLERS = {
    "mf-pbt": ControllerEntry(
        _mf_pbt,
        ("pbt",),
        "its multi-frequency form (Doulazmi et al. 2025).",
        compares=True,
        note=_never_compared,
    )
}
PBT_FIELDS = MfPbtOptions
"""Options beside those of PBT."""
NAMES = {"MfPbt": "pbt_rl.pbt.mf_pbt.controller"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = (
    "train --env toy/identity --controller mf-pbt --show",
    "train --env toy/identity --pbt.frequencies 1 5 --show",
)
"""Command lines that ask for it."""
