"""Searches over configurations."""

from __future__ import annotations

NAMES = {
    "Asha": "pbt_rl.pbt.search.asha",
    "HyperTrick": "pbt_rl.pbt.search.hypertrick",
    "Hyperband": "pbt_rl.pbt.search.hyperband",
    "RandomSearch": "pbt_rl.pbt.search.random_search",
    "SuccessiveHalving": "pbt_rl.pbt.search.hypertrick",
    "draw_grid": "pbt_rl.pbt.search.draws",
    "draw_random": "pbt_rl.pbt.search.draws",
}
"""Name in `pbt_rl.pbt` -> its module."""
