"""Declares start values of single members: `--pbt.start-values`."""

from __future__ import annotations

from pbt_rl.pbt.starts.options import StartOptions

PBT_FIELDS = StartOptions
"""Options beside those of PBT."""
AROUND = "pbt_rl.pbt.starts.rows:around"
"""See `run.resolved.build_controller`."""
ASKED = ("train --env toy/identity --pbt.start-values learning_rate=1e-3 --show",)
"""Command lines that ask for it."""
