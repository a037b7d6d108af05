"""Declares the family tree of a population, `pbt_rl.pbt.Lineage`."""

from __future__ import annotations

NEEDS = ("pbt_rl.pbt.welch", "pbt_rl.journals")
NAMES = {"Lineage": "pbt_rl.pbt.history.lineage"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = ("report runs/x",)
"""Command lines that ask for it."""
