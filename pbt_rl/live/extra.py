"""Declares the command `pbt-rl set`."""

from __future__ import annotations

from pbt_rl.extras import Command

COMMANDS = (
    Command(
        "set",
        "pbt_rl.cli.set",
        "RUN NAME=VALUE",
        "change options, or values of members, of a run that trains",
    ),
)
