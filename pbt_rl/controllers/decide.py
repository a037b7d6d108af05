"""Audit of a journal: the controller decides again on the journal's reports.

The decisions, without their reasons, must equal the journal's decisions bit for bit. Pure: without processes or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from pbt_rl.controllers.decisions import Controller, Decision, PopulationReport
from pbt_rl.controllers.events import Comparison, Event, Initial, Resume
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.state import save_state
from pbt_rl.errors import ConfigError

Resumed = Callable[[Resume, Any], Controller]
"""Function that builds the controller after a resume: (resume event, state of the former controller) -> controller."""


@dataclass(frozen=True)
class Mismatch:
    """Difference between a journal and its audit.

    index: index of the event in the journal. recorded: start values or decisions in the journal. decided: start values
    or decisions of the controller that the audit runs.
    """

    index: int
    recorded: list[Values] | list[Decision]
    decided: list[Values] | list[Decision]


def audit_decisions(
    events: Iterable[Event], controller: Controller, resumed: Resumed | None = None
) -> list[Mismatch]:
    """Replay the reports of a journal, and return the differences from the recorded decisions.

    controller: new controller, built from the options and the seed at the start of the run.
    resumed: function (resume event, state of the former controller) -> controller after a resume with changed options.
    Required if the journal contains such a resume.
    Raises ConfigError for events that cannot come from a run.
    """
    mismatches = []
    lineage = Lineage()
    for index, event in enumerate(events):
        report = with_values(event.report, lineage) if isinstance(event, Comparison) else None
        lineage.take(event)
        recorded: list[Values] | list[Decision]
        decided: list[Values] | list[Decision]
        match event:
            case Initial(values=values):
                recorded, decided = list(values), controller.initial(len(values))
            case Comparison(decisions=decisions):
                assert report is not None
                recorded, decided = _bare(decisions), _bare(_decided(controller, report, index))
            case Resume(changed=changed) if changed:
                assert resumed is not None
                controller = resumed(event, save_state(controller))
                continue
            case _:
                continue
        if recorded != decided:
            mismatches.append(Mismatch(index, recorded, decided))
    return mismatches


def _bare(decisions: Sequence[Decision]) -> list[Decision]:
    """Return decisions without reasons, because the wording of reasons differs between versions."""
    return [structs.replace(decision, reason="") for decision in decisions]


def with_values(report: PopulationReport, lineage: Lineage) -> PopulationReport:
    """Return the report with the members' values, which the journal omits. lineage: state before the comparison."""
    present = {m: lineage.present(m).values for m in lineage.members}
    members = tuple(replace(m, values=dict(present.get(m.member, {}))) for m in report.members)
    return replace(report, members=members)


def _decided(controller: Controller, report: PopulationReport, index: int) -> list[Decision]:
    """Return the decisions on a report. Raises ConfigError for numbers that the controller cannot process.

    index: index of the event in the journal, for the error.
    """
    try:
        return controller.observe(report)
    except ConfigError:
        raise
    except (ArithmeticError, ValueError) as error:
        place = f"line {index + 1} of the journal"
        raise ConfigError(f"{place} contains numbers that the controller cannot process: {error}") from error
