"""Declares repairs of members whose weights or objectives are not finite any more."""

from __future__ import annotations

from pbt_rl.pbt.repairs.broken import Broken

REPAIRS = Broken
"""See `pbt.controllers.Repairs`."""
