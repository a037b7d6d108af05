"""The events of a journal as reports need them, so that those of a run of weeks fit into memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.events import Event, Round, read_event
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.lineage import mean

_NONE: Values = {}


def light_events(records: Iterable[object], first: int = 1) -> list[Event]:
    """Do as `read_events`, but keep of a round's windows the means alone, and of its members no values.

    What is left out is nine tenths of a journal of many members; the lineage knows their values.
    """
    return [_light(read_event(record, line)) for line, record in enumerate(records, start=first)]


def _light(event: Event) -> Event:
    if not isinstance(event, Round):
        return event
    members = tuple(map(_light_member, event.report.members))
    return replace(event, report=replace(event.report, members=members))


def _light_member(report: MemberReport) -> MemberReport:
    objective = mean(report.objectives)
    return replace(report, objectives=() if objective is None else (objective,), values=_NONE)
