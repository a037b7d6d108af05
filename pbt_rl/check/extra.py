"""Declares the command `pbt-rl envs check`."""

from __future__ import annotations

from pbt_rl.extras import Command

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
