"""Declares what other trainers call the options and commands, so that a name of theirs is answered by the one here."""

from __future__ import annotations

from pbt_rl.other_names.table import NO_OPTION, OTHER_COMMANDS, OTHER_NAMES

__all__ = ["ASKED", "NO_OPTION", "OTHER_COMMANDS", "OTHER_NAMES"]

ASKED = ("train --env toy/identity --num-workers 4 --show",)
"""Command lines that ask for it."""
