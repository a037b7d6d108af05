"""Searches over configurations."""

from __future__ import annotations

NAMES = {
    "Asha": "asha",
    "HyperTrick": "hypertrick",
    "Hyperband": "hyperband",
    "RandomSearch": "random_search",
    "SuccessiveHalving": "hypertrick",
    "draw_grid": "draws",
    "draw_random": "draws",
}
"""Name in `pbt_rl.pbt` -> module of this folder."""
