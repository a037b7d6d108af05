"""Declares the command `pbt-rl audit`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.pbt.history", "pbt_rl.journals", "pbt_rl.provenance", "pbt_rl.advice")
COMMANDS = (
    Command(
        "audit",
        "pbt_rl.audit.command",
        "RUN",
        "decide a recorded run again and compare the decisions bit for bit",
    ),
)
ASKED = ("audit runs/x",)
"""Command lines that ask for it."""
