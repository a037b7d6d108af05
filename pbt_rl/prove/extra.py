"""Declares the command `pbt-rl prove`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = (
    "pbt_rl.sweep",
    "pbt_rl.listing",
    "pbt_rl.report",
    "pbt_rl.journals",
    "pbt_rl.tune",
    "pbt_rl.pbt.history",
    "pbt_rl.pbt.search",
    "pbt_rl.pbt.starts",
)
"""It trains as a sweep does, or members of `tune.run`, draws as a report does, and compares with random search."""
COMMANDS = (
    Command(
        "prove",
        "pbt_rl.prove.command",
        "--name NAME ...",
        "train arms (pbt, random draws, defaults...) on the same seeds, score them by fresh games, and say whether "
        "one helped",
    ),
)
ASKED = ("prove --name p --env toy/identity --train-for-frames 1000 --show",)
"""Command lines that ask for it."""
