"""A page in the browser that follows a run."""

from __future__ import annotations

NEEDS = ("pbt_rl.report",)
WITHOUT_TORCH = True
