"""Declares population-based training of anything that trains: `pbt_rl.tune`."""

from __future__ import annotations

NEEDS = (
    "pbt_rl.pbt.history",
    "pbt_rl.pbt.own",
    "pbt_rl.pbt.repairs",
    "pbt_rl.journals",
    "pbt_rl.python",
    "pbt_rl.turns",
)
WITHOUT_TORCH = True
PUBLIC = {"tune": "pbt_rl.tune"}
"""Name in `pbt_rl`."""
