"""Declares PB2 and PB2-Mix: a Gaussian process chooses the values."""

from __future__ import annotations

from pbt_rl.pbt.entry import ExploreRule
from pbt_rl.pbt.pb2.pb2 import Pb2
from pbt_rl.pbt.pb2.pb2_mix import Pb2Mix

EXPLORE_RULES = {
    "pb2": ExploreRule(
        lambda _, tuned: Pb2(tuned), help="a Gaussian process chooses (needs the extra `search`)."
    ),
    "pb2-mix": ExploreRule(
        lambda _, tuned: Pb2Mix(tuned), help="that, of choices too (needs the extra `search`)."
    ),
}
NAMES = {"Pb2": "pbt_rl.pbt.pb2.pb2", "Pb2Mix": "pbt_rl.pbt.pb2.pb2_mix"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = ("train --env toy/identity --pbt.explore pb2 --show",)
"""Command lines that ask for it."""
