"""Trains the same with several seeds and options, one run after the other or side by side."""

from __future__ import annotations

COMMANDS = {"sweep": "pbt_rl.sweep.command"}
"""Command of `pbt-rl` -> its module."""
