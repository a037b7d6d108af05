"""What a run begins from: its own last checkpoint, with options that may differ in part, or another run's members.

The state of everything that the supervisor of a run holds is JSON types, and a resumed run continues from it:

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

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pbt_rl.config import Config
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.records import Whole, converted
from pbt_rl.controllers.state import decoded, encoded, restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import walk
from pbt_rl.population.population import Population
from pbt_rl.record.checkpoints import PARTIAL, STATE, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import was_saved
from pbt_rl.record.saved import read_config
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.continued import Changed, Continued
from pbt_rl.run.throughput import Spent, Throughput

OF_THE_COMMAND = frozenset({"name", "out", "overwrite", "resume"})
"""Options that say which run is meant and what to do with it: to give others changes nothing in the run."""


def may_resume(config: Config) -> bool:
    """Return whether there is a run of this name that is not to be replaced."""
    exists = config.name is not None and RunFolder(config.out / config.name).is_run
    return exists and not config.overwrite


def find_continued(config: Config, folder: RunFolder, note: Callable[[str], None]) -> Continued | None:
    """Return what an existing run is continued from; None if it ended before it was saved for the first time.

    note: is told of checkpoints that are broken. Raises ConfigError if the run may not be continued with this config,
    or if all of its checkpoints are broken or gone.
    """
    if not config.resume:
        raise ConfigError(
            f"--name {config.name}: {folder.path} exists already, and --resume no was given: choose another name, or "
            "--overwrite"
        )
    changes_of(read_config(folder.path), config, folder)
    checkpoint = Checkpoints(folder.checkpoints).newest(note)
    if checkpoint is None:
        if any(not PARTIAL.fullmatch(path.name) for path in folder.checkpoints.glob("*")):
            raise ConfigError(
                f"{folder.path} cannot be continued: none of its checkpoints is whole; begin anew with --overwrite, or "
                "choose another --name"
            )
        if was_saved(folder.path):  # somebody has made room: what is left is all that there is of the run
            raise ConfigError(
                f"{folder.path} was saved, and its checkpoints are gone: put them back, begin anew with --overwrite, "
                "or choose another --name"
            )
        return None
    state = checkpoint.state()
    converted(state, _SavedState, f"{checkpoint.path / STATE}", strict=True)
    # What was changed since the checkpoint is in config.json; the journal is cut off before that.
    saved = config_from_json(state["record"]["config"])
    return Continued(checkpoint, state, _differing(saved, config))


@dataclass(frozen=True)
class _SavedRecord:
    """What `Recorder.positions` returned."""

    journal: Whole
    config: dict[str, Any]
    evaluation: Any


@dataclass(frozen=True)
class _SavedState:
    """The outer levels of a run's state; who continues from a part of it reads the inner ones."""

    record: _SavedRecord
    run: Any
    resumes: Whole
    learners: list[dict[str, Any]]
    units: list[list[Any]]


@contextlib.contextmanager
def fitting_state(folder: RunFolder) -> Iterator[None]:
    """Turn the ValueError of a saved state that does not fit the options into the user's error."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{folder.path} cannot be continued with these options: {error}") from error


def changes_of(before: Config, now: Config, folder: RunFolder) -> Changed:
    """Return the options that differ. Raises ConfigError if one of them may not."""
    differing = _differing(before, now)
    metadata = {name: declared for name, declared, _ in walk(now)}
    fixed = [
        f"--{name}: {_text(old)} there, {_text(new)} now"
        for name, (old, new) in differing.items()
        if "may_change" not in metadata[name]
    ]
    if fixed:
        raise ConfigError(
            f"{folder.path} was trained with other options: {'; '.join(fixed)}. Leave them out to continue it "
            f"(pbt-rl resume {folder.path} needs none). For another run: pbt-rl train with another --name, which may "
            f"begin from this one (--init-from {folder.path}), or with --overwrite"
        )
    return differing


def _differing(before: Config, now: Config) -> Changed:
    there = {name: value for name, _, value in walk(before)}
    changes = {name: (there.get(name), new) for name, _, new in walk(now) if name not in OF_THE_COMMAND}
    return {name: (old, new) for name, (old, new) in changes.items() if old != new}


def _text(value: Any) -> str:
    return (" ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


# -- the state of a run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RunState:
    """The parts above, each as it is saved. Slots and matchups are those of the plans beside them."""

    controller: dict[str, Any]
    population: dict[str, Any]
    dispatch: dict[str, Any]
    slots_plan: list[Any]
    slots: dict[str, Any]
    matchups_plan: list[Any]
    matchups: dict[str, Any]
    times: list[float]
    spent: Spent


def run_state(
    controller: Controller, population: Population, comparisons: Comparisons, throughput: Throughput
) -> dict[str, Any]:
    """Return the state of a run between two comparisons, while no edit is on its way."""
    assert not comparisons.dispatch.busy
    slots, matchups = comparisons.slots, comparisons.matchups
    state = _RunState(
        controller=save_state(controller),
        population=save_state(population),
        dispatch=save_state(comparisons.dispatch),
        slots_plan=slots.plan,
        slots=save_state(slots),
        matchups_plan=[] if matchups is None else matchups.plan,
        matchups={} if matchups is None else save_state(matchups),
        times=[*comparisons.replacement_times],
        spent=throughput.spent,
    )
    return {name: encoded(part) for name, part in vars(state).items()}


def controller_state(state: Any) -> Any:
    """Return what `resumed_controller` takes of a run's state. Raises ValueError if that is none."""
    return decoded(_RunState, state, "run").controller


def restore_run_state(
    state: Any, population: Population, comparisons: Comparisons, throughput: Throughput
) -> bool:
    """Continue from a saved state, in objects that were built with the options of the resumed run.

    The controller is that of `resumed_controller`. Returns whether members and slots of every pack are those of the
    saved run, so that all holders are. Raises ValueError if the state does not fit; the objects are of no use then.
    """
    saved: _RunState = decoded(_RunState, state, "run")
    restore_state(population, saved.population, "population")
    restore_state(comparisons.dispatch, saved.dispatch, "dispatch")
    same_plan = saved.slots_plan == comparisons.slots.plan
    if same_plan:
        restore_state(comparisons.slots, saved.slots, "slots")
    else:
        comparisons.slots.choose_holders()
    matchups = comparisons.matchups
    if matchups is not None and saved.matchups_plan == matchups.plan:
        restore_state(matchups, saved.matchups, "matchups")
    comparisons.replacement_times.extend(saved.times)
    throughput.resume(saved.spent)
    return same_plan
