"""MF-PBT: groups of members, compared at different frequencies."""

from __future__ import annotations

NAMES = {"MfPbt": "controller"}
"""Name in `pbt_rl.pbt` -> module of this folder."""
