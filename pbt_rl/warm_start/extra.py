"""Declares runs that begin from what others have learned: `--init-from`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl.warm_start.options import InitOptions

if TYPE_CHECKING:
    from pbt_rl.pbt.hypers import Values
    from pbt_rl.run.resolved import ResolvedRun


def SHOWN(resolved: ResolvedRun, _first: Values) -> list[str]:
    """Return who begins where, for the page of `--show`. Raises ConfigError as a start would."""
    from pbt_rl.warm_start.saved import WarmStart  # noqa: PLC0415 - loads torch

    start = WarmStart.find(resolved, print)
    return [] if start is None else start.described()


FIELDS = InitOptions
"""Options of a run."""
FIRST_STATES = "pbt_rl.warm_start.saved:WarmStart"
"""See `run.resuming.first_states`."""
ASKED = ("train --env toy/identity --init-from runs/x --show",)
"""Command lines that ask for it."""
