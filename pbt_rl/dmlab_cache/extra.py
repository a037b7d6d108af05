"""Declares the command `pbt-rl dmlab-cache`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.envs.dmlab",)
COMMANDS = (
    Command(
        "dmlab-cache",
        "pbt_rl.dmlab_cache.command",
        "",
        "build maps of DeepMind Lab beforehand",
    ),
)
ASKED = ("dmlab-cache --help",)
"""Command lines that ask for it."""
