"""Declares the controller `schedule`, which follows a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbt_rl.errors import ConfigError, require
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import ControllerEntry, Ingredients
from pbt_rl.pbt.schedule.options import ScheduleConfig

if TYPE_CHECKING:
    from pbt_rl.journals.events import Event


def _schedule(given: Ingredients) -> Controller:
    from pbt_rl.pbt.schedule.controller import build_schedule  # noqa: PLC0415 - it stands on another extra

    options = given.options.group(ScheduleConfig)
    return build_schedule(
        _recorded(options.run), given.table, options.run, options.member, hold_final=options.hold_final
    )


def _recorded(run: str) -> list[Event]:
    from pbt_rl.journals.reading import journal_events  # noqa: PLC0415

    require(run != "", "schedule.run", repr(run), "give the folder of a recorded run")
    try:
        return list(journal_events(Path(run)))
    except ConfigError as error:
        raise ConfigError(f"--schedule.run {run} cannot be used: {error}") from error


NEEDS = ("pbt_rl.pbt.history", "pbt_rl.journals")
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
