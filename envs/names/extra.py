"""Declares what knows ids that name no environment as they are."""

from __future__ import annotations

FAMILIES = ()
NAMES = "pbt_rl.envs.names"
"""See `envs.family.Names`."""
ABSENT = "pbt_rl.envs.names.packages:absent"
"""Returns what is printed below the families that are listed."""
ASKED = ("train --env CartPole-v1 --show",)
"""Command lines that ask for it."""
