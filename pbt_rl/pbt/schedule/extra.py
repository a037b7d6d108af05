"""Declares the controller `schedule`, which follows a recorded run."""

from __future__ import annotations

from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import ControllerEntry, Ingredients
from pbt_rl.pbt.schedule.options import ScheduleConfig


def _schedule(given: Ingredients) -> Controller:
    from pbt_rl.pbt.schedule.controller import build_schedule  # noqa: PLC0415 - it stands on another extra

    options = given.options.group(ScheduleConfig)
    return build_schedule(
        given.events, given.table, options.run, options.member, hold_final=options.hold_final
    )


NEEDS = ("pbt_rl.pbt.history",)
CONTROLLERS = {
    "schedule": ControllerEntry(
        _schedule,
        ("schedule",),
        "follow the schedule of a recorded run (--schedule).",
        follows="schedule.run",
    )
}
OPTIONS: dict[str, type] = {"schedule": ScheduleConfig}
"""Groups of options, beside those of PBT."""
NAMES = {"Schedule": "pbt_rl.pbt.schedule.controller"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = ("train --env toy/identity --controller schedule --show",)
"""Command lines that ask for it."""
