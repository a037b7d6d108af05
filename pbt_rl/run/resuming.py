"""Resume of a run: its last checkpoint, its changed options, and the saved state of the supervisor.

The supervisor's state consists of JSON types:

    controller    random generator, and state of the rules
    population    members, objective windows, ratings, statistics
    dispatch      remembered states, numbers of replacements and mutations
    slots         assigned members, and their frames when they took the slots; discarded if the plan has changed
    matchups      random generator, counts of earlier pairs, current rows; discarded if the plan has changed
    times         durations of replacements
    spent         seconds, training seconds and frames

Weights, and the states of learners and actors, are stored separately.
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
from pbt_rl.options.declare import table, values_of
from pbt_rl.options.values import displayed
from pbt_rl.population.population import Population
from pbt_rl.record.checkpoints import PARTIAL, STATE, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import was_saved
from pbt_rl.record.saved import read_config
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.continued import Changed, Continued
from pbt_rl.run.throughput import Spent, Throughput

OF_THE_COMMAND = frozenset({"name", "out", "overwrite", "resume"})
"""Options that select a run. These options may differ at a resume."""


def may_resume(config: Config) -> bool:
    """Check whether a run with the name in `config` exists and --overwrite is not given."""
    exists = config.name is not None and RunFolder(config.out / config.name).is_run
    return exists and not config.overwrite


def find_continued(config: Config, folder: RunFolder, note: Callable[[str], None]) -> Continued | None:
    """Find the checkpoint of an existing run. None if the run was never saved.

    note: called with a line about each damaged checkpoint that is skipped.
    Raises ConfigError if `--no-resume` is given, if a fixed option was changed, or if all checkpoints are damaged or
    missing.
    """
    if not config.resume:
        raise ConfigError(
            f"--name {config.name}: {folder.path} already exists, and --resume is no: choose another --name, or give "
            "--overwrite"
        )
    changes_of(read_config(folder.path), config, folder)
    checkpoint = Checkpoints(folder.checkpoints).newest(note)
    if checkpoint is None:
        if any(not PARTIAL.fullmatch(path.name) for path in folder.checkpoints.glob("*")):
            raise ConfigError(
                f"{folder.path} cannot be resumed: all its checkpoints are incomplete or damaged. Start again with "
                "--overwrite, or choose another --name"
            )
        if was_saved(folder.path):  # do not delete the run of a user who has deleted its checkpoints
            raise ConfigError(
                f"{folder.path} cannot be resumed: its checkpoints are missing. Restore them, start again with "
                "--overwrite, or choose another --name"
            )
        return None
    state = checkpoint.state()
    converted(state, _SavedState, f"{checkpoint.path / STATE}", strict=True)
    # Compare with the checkpoint's config. config.json may contain later changes. Their event in the journal is lost,
    # because the journal is truncated to its length at the checkpoint.
    saved = config_from_json(state["record"]["config"])
    return Continued(checkpoint, state, _differing(saved, config))


@dataclass(frozen=True)
class _SavedRecord:
    """State of journal and displays, from `Recorder.positions`."""

    journal: Whole
    config: dict[str, Any]
    evaluation: Any


@dataclass(frozen=True)
class _SavedState:
    """Outer levels of a run's saved state. `decoded` and `restore_state` check the inner levels.

    run: state of the supervisor. learners: state of each learner. units: per actor, states of its vector envs.
    """

    record: _SavedRecord
    run: Any
    resumes: Whole
    learners: list[dict[str, Any]]
    units: list[list[Any]]


@contextlib.contextmanager
def fitting_state(folder: RunFolder, changed: Changed) -> Iterator[None]:
    """Convert a ValueError, which means that the saved state does not fit the options, into a ConfigError.

    changed: changed options. The message names the changed options of comparisons, because their rules have the state.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        names = [f"--{name}" for name in changed if name.startswith("pbt.")]
        remedy = f"; leave out {', '.join(names)}" * bool(names)
        raise ConfigError(f"{folder.path} cannot be resumed with these options: {error}{remedy}") from error


def changes_of(before: Config, now: Config, folder: RunFolder) -> Changed:
    """Return the changed options. Raises ConfigError if one of these options may not change.

    A search may not change its frames, because its phases depend on them.
    """
    differing = _differing(before, now)
    known = table(now)
    fixed = [
        f"--{name}: before {displayed(known[name].metadata, old)}, now {displayed(known[name].metadata, new)}"
        for name, (old, new) in differing.items()
        if not known[name].metadata.get("may_change") or (now.searches and name == "train-for-frames")
    ]
    if fixed:
        raise ConfigError(
            f"{folder.path} was trained with other options: {'; '.join(fixed)}. To resume the run, leave these options "
            f"out (pbt-rl resume {folder.path}). For a new run, give another --name (and --init-from {folder.path} to "
            "start from its weights), or --overwrite"
        )
    return differing


def _differing(before: Config, now: Config) -> Changed:
    there, here = values_of(before), values_of(now)
    return {
        name: (there.get(name), new)
        for name, new in here.items()
        if name not in OF_THE_COMMAND and there.get(name) != new
    }


# -- the state of a run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RunState:
    """Parts of the supervisor's state.

    Slots are restored only if `slots_plan` is unchanged, and matchups only if `matchups_plan` is unchanged.
    """

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
    """Return the supervisor's state as JSON types. Requires that no decision is pending."""
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
    """Return the controller's part of the supervisor's state. Raises ValueError if the state is invalid."""
    return decoded(_RunState, state, "run").controller


def restore_run_state(
    state: Any, population: Population, comparisons: Comparisons, throughput: Throughput
) -> bool:
    """Restore the supervisor's state, except the controller. The objects already have the options of the resumed run.

    Return True if the plan of packs and slots is unchanged.
    Raises ValueError if the state does not fit. The objects are unusable after this error.
    """
    saved: _RunState = decoded(_RunState, state, "run")
    restore_state(population, saved.population, "population")
    restore_state(comparisons.dispatch, saved.dispatch, "dispatch")
    same_plan = saved.slots_plan == comparisons.slots.plan
    if same_plan:
        restore_state(comparisons.slots, saved.slots, "slots")
    else:
        comparisons.slots.choose_members()
    matchups = comparisons.matchups
    if matchups is not None and saved.matchups_plan == matchups.plan:
        restore_state(matchups, saved.matchups, "matchups")
    comparisons.replacement_times.extend(saved.times)
    throughput.resume(saved.spent)
    return same_plan
