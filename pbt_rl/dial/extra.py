"""Declares `--hours`: a time of training with thirty comparisons in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.errors import require
from pbt_rl.options import option, validate

COMPARISONS = 30
ENDLESS_FRAMES = 10**15
"""The time ends the run, and not the usual number of frames."""


@dataclass(frozen=True)
class HoursOption:
    """The time of a run."""

    hours: float | None = option(None, above=0, at_most=10_000, common=True)
    """Train for so many hours (0.5 is allowed), and compare members thirty times in them (--pbt.ready timed). What you
    give yourself stays as you give it."""


NEEDS = ("pbt_rl.pbt.timed",)
FIELDS = HoursOption
"""Options of a run."""


def PLANNED(values: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what follows from `hours`, without what is given; nothing without it. Raises ConfigError."""
    hours = values.get("hours")
    if hours is None:
        return {}
    validate(HoursOption(hours))
    from pbt_rl.pbt.registry import controller_entry  # noqa: PLC0415 - the config reads this module

    compares = controller_entry(values.get("controller", "pbt")).compares and values.get("pbt.enabled", True)
    remedy = "it says when members are compared, and these are not: give --train-for-seconds instead"
    require(compares, "hours", f"{hours:g}", remedy)
    seconds = given.get("train_for_seconds") or 3600 * hours
    follows = {
        "train_for_seconds": seconds,
        "train_for_frames": ENDLESS_FRAMES,
        "pbt.ready": "timed",
        "pbt.period_seconds": float(f"{seconds / (COMPARISONS + 1):.3g}"),  # the last one is trained on, too
    }
    return {name: value for name, value in follows.items() if name not in given}


def PLAN_NOTES(resolved: Any) -> list[str]:
    """Return what `--hours` means, for the plan of a run."""
    config = resolved.config
    if config.hours is None:
        return []
    times = f", compared every {config.pbt.period_seconds:.3g} s" if config.pbt.ready == "timed" else ""
    return [f"--hours {config.hours:g}: {config.train_for_seconds:,.0f} s of training{times}"]


ASKED = ("train --env toy/identity --hours 0.05 --show",)
"""Command lines that ask for it."""
