"""The state of everything that the supervisor of a run holds, as JSON types: what a resumed run continues from.

    controller    its generator, and what its rules have noted
    population    members, objective windows, ratings, statistics
    dispatch      remembered states, counts of decisions
    slots         holders, and when they entered; with another plan they are chosen anew
    matchups      generator, games played, rows in force; with other rows they are made anew
    times         of replacements
    spent         seconds, training seconds and frames

Weights are not in it, nor anything that the learners and actors hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.state import decoded, encoded, restore_state, save_state
from pbt_rl.population.population import Population
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.throughput import Spent, Throughput

FORMAT = 6
"""Rises whenever a state of before could not be restored."""
PARTS = ("controller", "population", "dispatch", "slots", "matchups", "times", "spent")
NAMES = frozenset((*PARTS, "format", "slots_plan", "matchups_plan"))
"""Of the outermost level."""


def run_state(
    controller: Controller, population: Population, comparisons: Comparisons, throughput: Throughput
) -> dict[str, Any]:
    """Return the state of a run between two comparisons, while no edit is on its way."""
    assert not comparisons.dispatch.busy
    slots, matchups = comparisons.slots, comparisons.matchups
    return {
        "format": FORMAT,
        "controller": save_state(controller),
        "population": save_state(population),
        "dispatch": save_state(comparisons.dispatch),
        "slots_plan": slots.plan,
        "slots": save_state(slots),
        "matchups_plan": [] if matchups is None else matchups.plan,
        "matchups": {} if matchups is None else save_state(matchups),
        "times": save_state(comparisons.replacement_times),
        "spent": encoded(throughput.spent),
    }


def controller_state(state: Any) -> Any:
    """Return what `resumed_controller` takes of a run's state. Raises ValueError if that is none of this format."""
    return _checked(state)["controller"]


def restore_run_state(
    state: Any,
    controller: Controller,
    population: Population,
    comparisons: Comparisons,
    throughput: Throughput,
) -> bool:
    """Continue from a saved state, in objects that were built with the options of the resumed run.

    controller: it has drawn the members' initial values already, as that of `resumed_controller` has. Returns whether
    members and slots of every pack are those of the saved run, so that all holders are. Raises ValueError if the state
    does not fit; the objects are of no use then.
    """
    saved = _checked(state)
    restore_state(controller, saved["controller"], "controller")
    restore_state(population, saved["population"], "population")
    restore_state(comparisons.dispatch, saved["dispatch"], "dispatch")
    same_plan = bool(saved["slots_plan"] == comparisons.slots.plan)
    if same_plan:
        restore_state(comparisons.slots, saved["slots"], "slots")
    else:
        comparisons.slots.choose_holders()
    matchups = comparisons.matchups
    if matchups is not None and saved["matchups_plan"] == matchups.plan:
        restore_state(matchups, saved["matchups"], "matchups")
    restore_state(comparisons.replacement_times, saved["times"], "times")
    throughput.resume(decoded(Spent, saved["spent"], "spent"))
    return same_plan


def _checked(state: Any) -> Any:
    """Return the state. Raises ValueError if it is none, or one of another format."""
    problem = _problem(state)
    if problem:
        raise ValueError(f"the state of the run cannot be restored: {problem}")
    return state


def _problem(state: Any) -> str:
    """Return what is wrong with the outermost level of a state; empty if nothing is."""
    if not isinstance(state, Mapping) or not isinstance(state.get("format"), int):
        return "it has no number of a format"
    if state["format"] != FORMAT:
        return f"it has the format {state['format']}, and this version reads {FORMAT}; use the version that wrote it"
    strange = sorted(state.keys() ^ NAMES)
    return f"it lacks or has beyond the known: {', '.join(strange)}" if strange else ""
