"""Declares the command `pbt-rl report`."""

from __future__ import annotations

from pbt_rl.extras import Command

COMMANDS = (
    Command(
        "report",
        "pbt_rl.report.command",
        "RUN...",
        "draw ancestry, schedules, curves...: one HTML page, PNG, CSV, DOT, Newick; of several runs, one page that "
        "compares them",
    ),
)
