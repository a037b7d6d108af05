"""Trained members, and the trials of a run, as files for other programs."""

from __future__ import annotations

NEEDS = ("pbt_rl.report",)
