"""Declares rules and controllers of the user's own, `module:Class`, and settings of any rule, NAME=VALUE."""

from __future__ import annotations

from pbt_rl.pbt.own.controllers import own_controller
from pbt_rl.pbt.own.options import OwnOptions
from pbt_rl.pbt.own.rules import own_exploit, own_explore, refine_exploit, refine_explore

NEEDS = ("pbt_rl.turns",)
"""A controller may stop members."""
OWN = {"controller": own_controller, "pbt.exploit": own_exploit, "pbt.explore": own_explore}
"""Option -> what returns the entry of `module:object`."""
REFINES = (refine_exploit, refine_explore)
"""What changes the rule of exploit, and that of explore, that the options name."""
PBT_FIELDS = OwnOptions
"""Options beside those of PBT."""
NAMES = {"CustomExplore": "pbt_rl.pbt.own.rules"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = (
    "train --env toy/identity --pbt.exploit-option gap.relative=0.5 --show",
    "train --env toy/identity --pbt.exploit statistics:mean --show",
    "train --env toy/identity --controller dataclasses:dataclass --show",
)
"""Command lines that ask for it."""
