"""The events of a journal as reports need them, so that those of a run of weeks fit into memory."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.history.lineage import mean
from pbt_rl.controllers.hypers import Values
from pbt_rl.record.events import Event, Round

_NONE: Values = {}


def light(event: Event) -> Event:
    """Return the event; of a round, keep of each window the mean alone.

    What is left out is nine tenths of a journal of many members.
    """
    if not isinstance(event, Round):
        return event
    members = tuple(map(_light_member, event.report.members))
    return structs.replace(event, report=replace(event.report, members=members))


def _light_member(report: MemberReport) -> MemberReport:
    objective = mean(report.objectives)
    return replace(report, objectives=() if objective is None else (objective,), values=_NONE)
