"""Declares the command `pbt-rl export`."""

from __future__ import annotations

from pbt_rl.extras import Command

NEEDS = ("pbt_rl.pbt.history", "pbt_rl.journals")
COMMANDS = (
    Command(
        "export",
        "pbt_rl.export.command",
        "RUN --format onnx",
        "write a trained member for others (onnx, safetensors, rsl_rl)",
    ),
)
ASKED = ("export runs/x",)
"""Command lines that ask for it."""
