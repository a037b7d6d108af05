"""Comparison times derived from the budget of a run."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any

from pbt_rl.config import Config
from pbt_rl.controllers.lookup import controller_entry
from pbt_rl.errors import require

MOST_HOURS, COMPARISONS = 10_000, 30
"""Limit of --hours. Number of comparisons within a time budget."""
USUAL_FRAMES: int = Config.train_for_frames
FIRST_SHARE, PERIODS = 20, 25
"""Comparisons start after 1/20 of a frame budget, and have a period of 1/25 of the budget."""
ENDLESS_FRAMES = 10**15
"""Frame budget with --hours. No run reaches this budget, because the time limit ends the run."""


def following_budget(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison options that follow from the budget, except options that are set in `values`.

    - Budget in frames: comparisons start at 1/20 of the budget, with a period of 1/25 of the budget (docs/tune.md).
    - Budget in seconds only: comparisons are due by time (`timed`), because the number of frames in this time depends
      on the machine.

    In some runs with a budget in seconds only, comparisons follow from the recipe's --train-for-frames, or from the
    default of this option.
    These runs have serial mode, another controller than `pbt`, or --pbt.evaluate-episodes. The same applies if `given`
    contains --pbt.ready, --pbt.start-frames or --pbt.period-frames.

    values: all options that are set (dotted field -> value). given: `values` without the recipes of the environment and
    of the algorithm.
    """
    of_frames = ("train_for_frames", "pbt.start_frames", "pbt.period_frames")
    by_rounds = values.get("controller", "pbt") != "pbt" or values.get("pbt.evaluate_episodes")
    serial = values.get("mode") == "serial"  # comparisons by time would not be reproducible
    seconds = values.get("train_for_seconds", 0)
    follows: dict[str, Any] = {}
    if seconds and not (
        serial or by_rounds or "pbt.ready" in given or any(name in given for name in of_frames)
    ):
        follows = timed(seconds)
    follows |= in_frames(values.get("train_for_frames", USUAL_FRAMES))
    return {name: value for name, value in follows.items() if name not in values}


def in_frames(budget_frames: int) -> dict[str, int]:
    """Return --pbt.start-frames and --pbt.period-frames (as dotted fields) for a budget of frames per member."""
    return {
        "pbt.start_frames": budget_frames // FIRST_SHARE,
        "pbt.period_frames": max(1, budget_frames // PERIODS),
    }


FOLLOW_HOURS = {"train_for_frames": ENDLESS_FRAMES, **in_frames(ENDLESS_FRAMES)}
"""Frame options with --hours: dotted field -> value. --show omits these options, because they have no effect."""


def timed(seconds: float) -> dict[str, Any]:
    """Return the options for `COMPARISONS` comparisons at equal intervals. seconds: training time of the run.

    Training ends about one interval after the last comparison. The interval is rounded up to three digits, because a
    shorter interval could add a comparison just before the end.
    """
    rounded = Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(seconds / (COMPARISONS + 1))
    return {"pbt.ready": "timed", "pbt.period_seconds": float(rounded)}


def comparison_times(config: Config) -> dict[str, Any]:
    """Return the options of a run that set the times of its comparisons: dotted field -> value."""
    names = ("ready", "start_frames", "period_frames", "period_seconds")
    return {f"pbt.{name}": getattr(config.pbt, name) for name in names}


def following_hours(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that follow from --hours, except options in `given`. Without --hours: {}.

    Raises ConfigError if the hours are out of range, or if the run has no comparisons.

    values: all options that are set (dotted field -> value). given: the part of `values` that --hours does not replace.
    """
    hours = values.get("hours")
    if hours is None:
        return {}
    require(0 < hours <= MOST_HOURS, "hours", f"{hours:g}", f"give a number above 0, at most {MOST_HOURS:,}")
    compares = controller_entry(values.get("controller", "pbt")).compares and values.get("pbt.enabled", True)
    remedy = "--hours sets the times of comparisons, but this run has no comparisons: give --train-for-seconds instead"
    require(compares, "hours", f"{hours:g}", remedy)
    seconds = given.get("train_for_seconds") or 3600 * hours
    follows = {
        "train_for_seconds": seconds,
        "train_for_frames": ENDLESS_FRAMES,
        **timed(seconds),
    }
    return {name: value for name, value in follows.items() if name not in given}
