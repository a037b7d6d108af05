"""What is known of an algorithm before it is imported: a line of the registry, or of an `extra.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pbt_rl.extras import Recipe

JADERBERG_PBT: Mapping[str, object] = {
    "pbt.ready": "asynchronous",
    "pbt.period_frames": 4_000_000,
    "pbt.start_frames": 4_000_000,
    "pbt.exploit": "truncation",
    "pbt.replace_fraction": 0.2,
    "pbt.replace_gap": 0.0,
    "pbt.replace_gap_absolute": 0.0,
    "pbt.explore": "factors",
    "pbt.factors": (1.2, 0.8),
    "pbt.objective_episodes": 10,
}
"""How the recipes of Jaderberg et al. 2017, section 4.1, compare and change members."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """What is known of an algorithm before it is imported."""

    module: str
    """`module:OBJECT`, the module relative to this package."""
    help: str = ""
    """One sentence."""
    hypers: type | None = None
    """Dataclass of hypers that only it reads (`hypers.py`)."""
    options: Mapping[str, type] = field(default_factory=dict)
    """Group of the config -> dataclass of options that only it reads."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Published command lines by name."""
    recipes_are_for_it: bool = False
    """Whether the recipes of environments are written for it: its own adds nothing to them."""
