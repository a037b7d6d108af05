"""Options that follow from the budget of a run: when members are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.config import Config
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.errors import require

MOST_HOURS, COMPARISONS = 10_000, 30
"""Of a budget of time."""
USUAL_FRAMES: int = Config.train_for_frames
FIRST_SHARE, PERIODS = 20, 25
"""Of a budget of frames: the first comparison is due after a twentieth of it, each later one after a 25th."""
ENDLESS_FRAMES = 10**15
"""With --hours: the time ends the run, and not the usual number of frames."""


def following_budget(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of comparisons that follow from the run's own budget, without those that are set.

    By frames: the first after a twentieth of them, the others a 25th apart (docs/tune.md). By time, as with `hours`, if
    only --train-for-seconds is given, because how many frames these hold depends on the machine.
    """
    of_frames = ("train_for_frames", "pbt.start_frames", "pbt.period_frames")
    by_rounds = values.get("controller", "pbt") != "pbt" or values.get("pbt.evaluate_episodes")
    serial = values.get("mode") == "serial"  # equal seeds give equal decisions
    seconds = values.get("train_for_seconds", 0)
    follows: dict[str, Any] = {}
    if seconds and not (
        serial or by_rounds or "pbt.ready" in given or any(name in given for name in of_frames)
    ):
        follows = timed(seconds)
    follows |= in_frames(values.get("train_for_frames", USUAL_FRAMES))
    return {name: value for name, value in follows.items() if name not in values}


def in_frames(budget_frames: int) -> dict[str, int]:
    """Return the options for comparisons within a budget of frames of each member."""
    return {
        "pbt.start_frames": budget_frames // FIRST_SHARE,
        "pbt.period_frames": max(1, budget_frames // PERIODS),
    }


def timed(seconds: float) -> dict[str, Any]:
    """Return the options for COMPARISONS comparisons by time. The stretch after the last one is trained on, too."""
    return {"pbt.ready": "timed", "pbt.period_seconds": float(f"{seconds / (COMPARISONS + 1):.3g}")}


def following_hours(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from `hours`, without what is given; nothing without it. Raises ConfigError."""
    hours = values.get("hours")
    if hours is None:
        return {}
    require(0 < hours <= MOST_HOURS, "hours", f"{hours:g}", f"give a number above 0, at most {MOST_HOURS:,}")
    compares = controller_entry(values.get("controller", "pbt")).compares and values.get("pbt.enabled", True)
    remedy = "it says when members are compared, and these are not: give --train-for-seconds instead"
    require(compares, "hours", f"{hours:g}", remedy)
    seconds = given.get("train_for_seconds") or 3600 * hours
    follows = {
        "train_for_seconds": seconds,
        "train_for_frames": ENDLESS_FRAMES,
        **timed(seconds),
    }
    return {name: value for name, value in follows.items() if name not in given}
