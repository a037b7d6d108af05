"""Decide the rounds of a journal again and compare with the recorded decisions, bit for bit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.decisions import Controller, Decision, decision_from_dict, report_from_dict
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.state import save_state


@dataclass(frozen=True)
class Mismatch:
    """A difference between a journal and its audit. index: of the event. decided: by the controller of the audit."""

    index: int
    recorded: list[Values] | list[Decision]
    decided: list[Values] | list[Decision]


def audit_decisions(
    events: Iterable[Mapping[str, Any]],
    controller: Controller,
    resumed: Callable[[Mapping[str, Any], Any], Controller] | None = None,
) -> list[Mismatch]:
    """Pass the recorded reports to a controller and compare its decisions with the recorded ones, bit for bit.

    controller: built as at the start of the run, from the recorded config and seed, and not used yet. resumed: (config
    of an event `resume` that changed options, state of the controller until then) -> the controller from there on;
    needed if there is such an event.
    """
    mismatches = []
    for index, event in enumerate(events):
        recorded: list[Values] | list[Decision]
        decided: list[Values] | list[Decision]
        if event["event"] == "initial":
            recorded = [{name: float(v) for name, v in values.items()} for values in event["values"]]
            decided = controller.initial(len(recorded))
        elif event["event"] == "round":
            recorded = [decision_from_dict(d) for d in event["decisions"]]
            decided = controller.observe(report_from_dict(event["report"]))
        else:
            if event["event"] == "resume" and event["changed"]:
                assert resumed is not None
                controller = resumed(event["config"], save_state(controller))
            continue
        if recorded != decided:
            mismatches.append(Mismatch(index, recorded, decided))
    return mismatches
