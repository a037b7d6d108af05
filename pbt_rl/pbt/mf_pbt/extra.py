"""MF-PBT: groups of members, compared at different frequencies."""

from __future__ import annotations

NAMES = {"MfPbt": "pbt_rl.pbt.mf_pbt.controller"}
"""Name in `pbt_rl.pbt` -> its module."""
