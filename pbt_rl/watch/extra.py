"""Declares the command `pbt-rl watch`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.report", "pbt_rl.pbt.history", "pbt_rl.journals")
WITHOUT_TORCH = True
COMMANDS = (
    Command(
        "watch",
        "pbt_rl.watch.command",
        "RUN",
        "show a run in the browser as it goes on (or when it is over)",
    ),
)
ASKED = ("watch runs/x",)
"""Command lines that ask for it."""
