"""Declares the command `pbt-rl runs`."""

from __future__ import annotations

from pbt_rl.extras import Command

WITHOUT_TORCH = True
NEEDS = ("pbt_rl.control", "pbt_rl.journals")
COMMANDS = (
    Command(
        "runs",
        "pbt_rl.listing.command",
        "[DIR]",
        "list the runs in a folder (default: runs): env, members, frames, best, state, age",
    ),
)
ASKED = ("runs",)
"""Command lines that ask for it."""
