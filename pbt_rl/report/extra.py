"""Declares the command `pbt-rl report`, and what draws figures for TensorBoard."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.pbt.history", "pbt_rl.control", "pbt_rl.journals")
WITHOUT_TORCH = True
FIGURES = "pbt_rl.report.images"
"""The process that draws figures for TensorBoard."""
COMMANDS = (
    Command(
        "report",
        "pbt_rl.report.command",
        "RUN...",
        "draw ancestry, schedules, curves...: one HTML page, PNG, CSV, DOT, Newick; of several runs, one page that "
        "compares them",
    ),
)
ASKED = ("report runs/x",)
"""Command lines that ask for it."""
TESTS = ("tests/test_strangers.py",)
"""Its tests outside of its own folder: damaged files, as all readers of a run meet them."""
