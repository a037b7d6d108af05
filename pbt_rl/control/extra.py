"""Declares the control group: `--control`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl.control.options import ControlOptions, number_of_controls

if TYPE_CHECKING:
    from pbt_rl.config import Config
    from pbt_rl.display.view import RunView
    from pbt_rl.run.resolved import ResolvedRun

FIELDS = ControlOptions
"""Options of a run."""


def MORE_MEMBERS(config: Config) -> int:
    """Members that train beside the population."""
    return number_of_controls(config.group(ControlOptions).control, config.num_policies)


def PLAN_NOTES(resolved: ResolvedRun) -> list[str]:
    """Return which members are controls, for the plan of a run."""
    config = resolved.config
    more, last = MORE_MEMBERS(config), config.members - 1
    if not more:
        return []
    which = (
        f"member {last} is a control, which begins as the first member does and is"
        if more == 1
        else f"members {config.num_policies} to {last} are controls, which begin as the first members do and are"
    )
    return [f"note: {which} never changed or copied (--control)"]


def FOOTERS(view: RunView) -> list[str]:
    """See `display.ranking.footer_lines`."""
    from pbt_rl.control.shown import control_lines  # noqa: PLC0415 - actors read this module

    return control_lines(view)


AROUND = "pbt_rl.control.controller:around"
"""See `run.resolved.build_controller`."""
CHECKS = "pbt_rl.control.controller:check"
"""See `run.resolved.ResolvedRun`."""
ASKED = ("train --env toy/identity --control 1 --show",)
"""Command lines that ask for it."""
