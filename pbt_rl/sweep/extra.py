"""Declares the command `pbt-rl sweep`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.listing",)
COMMANDS = (
    Command(
        "sweep",
        "pbt_rl.sweep.command",
        "--name NAME ...",
        "train the same with several seeds and options, one after the other or side by side",
    ),
)
ASKED = ("sweep --name s --env toy/identity --show",)
"""Command lines that ask for it."""
