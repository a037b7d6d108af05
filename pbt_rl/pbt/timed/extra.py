"""Declares the rule of readiness `timed`, which compares members by the time of training."""

from __future__ import annotations

from pbt_rl.pbt.entry import ReadyRule
from pbt_rl.pbt.timed.options import TimedOptions
from pbt_rl.pbt.timed.rule import Timed

READY_RULES = {
    "timed": ReadyRule(
        # mypy does not know the fields of PBT_FIELDS
        lambda pbt: Timed(pbt.period_seconds, pbt.start_seconds, pbt.min_episodes),  # type: ignore[attr-defined]
        ("pbt.period_seconds", "pbt.start_seconds", "pbt.min_episodes"),
        by_time=True,
    )
}
PBT_FIELDS = TimedOptions
"""Options beside those of PBT."""
NAMES = {"Timed": "pbt_rl.pbt.timed.rule"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = (
    "train --env toy/identity --pbt.ready timed --show",
    "train --env toy/identity --pbt.period-seconds 5 --show",
)
"""Command lines that ask for it."""
