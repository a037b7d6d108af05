"""Decide the rounds of a journal again and compare with the recorded decisions, bit for bit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pbt_rl.controllers.decisions import Controller, Decision, PopulationReport
from pbt_rl.controllers.events import Event, Initial, Resume, Round
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.state import save_state
from pbt_rl.errors import ConfigError

Resumed = Callable[[Resume, Any], Controller]
"""(event that changed options, state of the controller until then) -> the controller from there on."""


@dataclass(frozen=True)
class Mismatch:
    """A difference between a journal and its audit. index: of the event. decided: by the controller of the audit."""

    index: int
    recorded: list[Values] | list[Decision]
    decided: list[Values] | list[Decision]


def audit_decisions(
    events: Iterable[Event], controller: Controller, resumed: Resumed | None = None
) -> list[Mismatch]:
    """Pass the recorded reports to a controller and compare its decisions with the recorded ones, bit for bit.

    events: of the journal. controller: built as at the start of the run, from the recorded config and seed, and not
    used yet. resumed: needed if options changed at a `resume` or a `set`. Raises ConfigError for events that cannot be
    those of a run.
    """
    mismatches = []
    lineage = Lineage()
    for index, event in enumerate(events):
        report = with_values(event.report, lineage) if isinstance(event, Round) else None
        lineage.take(event)
        recorded: list[Values] | list[Decision]
        decided: list[Values] | list[Decision]
        match event:
            case Initial(values=values):
                recorded, decided = list(values), controller.initial(len(values))
            case Round(decisions=decisions):
                assert report is not None
                recorded, decided = list(decisions), _decided(controller, report, index)
            case Resume(changed=changed) if changed:
                assert resumed is not None
                controller = resumed(event, save_state(controller))
                continue
            case _:
                continue
        if recorded != decided:
            mismatches.append(Mismatch(index, recorded, decided))
    return mismatches


def with_values(report: PopulationReport, lineage: Lineage) -> PopulationReport:
    """Return the report of a recorded round with its members' values, as they were before it."""
    present = {m: lineage.present(m).values for m in lineage.members}
    members = tuple(replace(m, values=dict(present.get(m.member, {}))) for m in report.members)
    return replace(report, members=members)


def _decided(controller: Controller, report: PopulationReport, index: int) -> list[Decision]:
    """Ask the controller. Rules take logarithms and quotients of numbers, which only those of a real run allow."""
    try:
        return controller.observe(report)
    except ConfigError:
        raise
    except (ArithmeticError, ValueError) as error:
        place = f"line {index + 1} of the journal"
        raise ConfigError(f"{place} holds numbers from which nothing can be decided: {error}") from error
