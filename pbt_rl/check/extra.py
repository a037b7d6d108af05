"""Declares the command `pbt-rl envs check`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.advice", "pbt_rl.envs.remarks")
COMMANDS = (
    Command(
        "envs check",
        "pbt_rl.check.command",
        "ENV",
        "step an environment and report its mistakes",
    ),
)
ASKED = ("envs check toy/identity --steps 8",)
"""Command lines that ask for it."""
