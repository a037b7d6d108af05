"""Declares `--hours`, and how the options of a run follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.dial.options import HoursOption

NEEDS = ("pbt_rl.files", "pbt_rl.python", "pbt_rl.pbt.timed", "pbt_rl.pbt.starts", "pbt_rl.pbt.evaluated")
FIELDS = HoursOption
"""Options of a run."""


def PLANNED(values: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what follows from `hours`; nothing without it."""
    if values.get("hours") is None:
        return {}
    from pbt_rl.dial.dial import dialled  # noqa: PLC0415 - the config reads this module

    return dialled(values, given)


def PLAN_NOTES(resolved: Any) -> list[str]:
    """Return what was chosen, for the plan of a run."""
    from pbt_rl.dial.dial import notes  # noqa: PLC0415

    return notes(resolved.config)


ASKED = ("train --env toy/identity --hours 0.05 --show",)
"""Command lines that ask for it."""
