"""Declares the family of VizDoom."""

from __future__ import annotations

from ..family import Family

NEEDS = ("pbt_rl.envs.agents",)
FAMILIES = (
    Family(
        "vizdoom",
        "Doom scenarios",
        "vizdoom/basic",
        ("vizdoom",),
        "pip install 'pbt-rl[vizdoom]'",
        ".doom.unit",
        several_agents=True,
    ),
)
ASKED = ("train --env vizdoom/basic --show",)
"""Command lines that ask for it."""
