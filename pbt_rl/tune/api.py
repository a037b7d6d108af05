"""`tune.run`: population based training of any Python code that trains, such as a network or a simulation.

    factory -> members --objectives--> controller --decisions--> members, record
                  ^ step, evaluate                     | state, load, new hypers
                  +------------------------------------+

In each round of evaluations, each member in a slot trains until its next evaluation, and is evaluated. Afterwards, the
controller decides. Decisions do not depend on the speed of members. If the members use separate, seeded random
generators, and the controller is seeded, a run is therefore reproducible with any number of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Never, TypeGuard

from pbt_rl.controllers.decide import Mismatch, audit_decisions
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.events import Event, Initial, Start
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.member_record import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow
from pbt_rl.controllers.records import Whole, converted
from pbt_rl.controllers.state import save_state
from pbt_rl.errors import ConfigError
from pbt_rl.options.values import path_given
from pbt_rl.population.slot_assignment import SlotAssigner
from pbt_rl.record.journal import Journal, cut_journal, journal_events
from pbt_rl.run.callbacks import Stop
from pbt_rl.tune.result import Progress, Result, Screen
from pbt_rl.tune.saving import JOURNAL, RunState, alone, settings_text
from pbt_rl.tune.space import (
    FRACTION,
    Rules,
    Space,
    choices_of,
    needs,
    never_compared,
    space_controller,
    table_of,
    table_of_texts,
    whole,
)
from pbt_rl.tune.training import Training, restore
from pbt_rl.tune.workers import LocalPool, Member, ProcessPool

API = "pbt_rl.tune.run"
"""Value of the field `api` in the first event of the journal."""
SPACE = "pbt"
"""Name of the default controller in the journal and in the saved state."""
MEMBERS = 8


def run(
    members: Callable[[int], Member] | Sequence[Member],
    controller: Controller | Space | None = None,
    *,
    steps: int = 100,
    num_members: int | None = None,
    evaluate_every: int = 1,
    window: int = 1,
    table: Mapping[str, HyperSpec] | None = None,
    slots: int = 0,
    slot_steps: int | None = None,
    workers: int = 0,
    journal: Path | str | None = None,
    folder: Path | str | None = None,
    on_progress: Callable[[Progress], Stop | None] | None = None,
    progress: bool = True,
    seed: int = 0,
    period: int | None = None,
    quantile: float = FRACTION,
    factors: Sequence[float] = (1.2, 0.8),
    explore: Callable[..., Mapping[str, Any]] | None = None,
    **others: Never,
) -> Result:
    """Train each member of a population for `steps` steps, unless the controller stops the member. Return the result.

    - members: a list of members, or a factory `make_member(index)`. The initial members have the indices 0 to N - 1. To
      restart a member, the factory is called with the next unused index. If the factory uses the index as a seed, the
      restarted member has new weights. A member from a list restarts from its initial state.
    - num_members: population size, by default 8, or the length of the list.
    - controller: a space or a controller (required). A space maps names to (low, high) or to lists of choices (see
      `tune.space`). PBT tunes the values of a space. The *frames* in the reports to a controller are steps of members.
    - evaluate_every: steps between two evaluations. The controller decides before the first step, and after each round
      of evaluations. With `PbtController(evaluation=Evaluation(n))`, each member is evaluated n more times before a
      comparison.
    - window: maximum number of evaluations in an objective. The objective is the mean of the member's latest
      evaluations since its last change.
    - table: name -> HyperSpec, for a controller. With a table or a space, `step` receives decoded values
      (integers, choices, tuples). Without both, `step` receives floats.
    - slots: number of members that train in each round of evaluations. 0 means all members. The least trained members
      get slots first.
    - slot_steps: steps after which a member leaves its slot to a less trained member, if there are more members than
      slots. None: a member keeps its slot until it is stopped, waits for a decision or has finished.
    - workers: number of processes. With 0 or 1, all members run in this process. The result does not depend on this
      number if no two members share a random generator.
    - folder: folder for the journal (`journal.jsonl`, in the format of `pbt-rl train`) and the state of the run. The
      state is saved after the first round of evaluations, and at the end. In between, the state is saved after a round
      if at least min(60, 20 t) seconds have passed since the last save, where t is the duration of that save. Repeat
      the call to resume from the saved state, after Ctrl-C or with more steps.
    - journal: file for the journal, if there is no folder.
    - on_progress: function that is called with a `tune.Progress` (steps, members, best) after each round of
      evaluations. To end the run, the function returns `pbt_rl.Stop(reason)`.
    - progress: True to print a line to stderr after a round of evaluations, at most every five seconds.
    - period, quantile, factors, explore: options of the PBT that tunes a space.
      period: steps between two comparisons, by default a tenth of `steps`.
      quantile: fraction of the members. Members in the worst fraction copy members in the best fraction.
      factors: each tuned number of a copy is multiplied by one of these factors, chosen at random. A choice may move to
      a neighbour in its list.
      explore: function that changes the values of a copy after these changes: `explore(values)` or
      `explore(values, rng)` -> all values, decoded as for `step`. Use no other randomness than `rng` (a random.Random),
      because an audit repeats the call.
    - seed: seed of the PBT that tunes a space. Custom controllers and members need their own seeds.

    A member is *broken* if its code raises an error or returns an unusable object. Its objective is then NaN, and its
    steps are skipped. A decision with new weights repairs the member. Raises RunFailed if all members are broken, or if
    a worker died. Raises ConfigError for an invalid argument, if `step` reads a name that is not in the space, and if
    the first saved state cannot be pickled. Raises OSError if the journal or the state cannot be written.
    """
    for name in others:
        raise ConfigError(_unknown(name))
    steps = whole("steps", steps, 1)
    evaluate_every = whole("evaluate_every", evaluate_every, 1)
    window, workers = whole("window", window, 1), whole("workers", workers, 0)
    slots, seed = whole("slots", slots, 0), whole("seed", seed, 0)
    if slot_steps is not None:
        slot_steps = whole("slot_steps", slot_steps, 1)
    needs(on_progress is None or callable(on_progress), "on_progress", on_progress, "give a function")
    folder, path = _places(folder, journal)
    rules = Rules(period, quantile, factors, explore)
    make, count = _factory(members, num_members, workers)
    needs(0 <= slots <= count, "slots", slots, f"give 0 (all) to {count}")
    options: dict[str, Any] = {
        "steps": steps,
        "num_members": count,
        "evaluate_every": evaluate_every,
        "window": window,
        "slots": slots,
        "slot_steps": slot_steps,
        "controller": SPACE if isinstance(controller, Mapping) else type(controller).__name__,
    }
    if isinstance(controller, Mapping):
        needs(table is None, "table", "given", "leave it out, because the space defines it")
        table = table_of(controller)
        remedy = "no value is tuned: give a range, a list of choices, or HyperSpec(..., tuned=True)"
        needs(any(spec.tuned for spec in table.values()), "space", controller, remedy)
        if reason := never_compared(count, steps, evaluate_every, rules):
            print(
                f"tune.run: no member trains after a comparison, because {reason}",
                file=sys.stderr,
                flush=True,
            )
        options |= {"period": rules.period, "quantile": rules.quantile, "factors": list(rules.factors)}
    else:
        remedy = "give a space or a controller, for example from pbt_rl.controllers"
        usable = hasattr(controller, "observe") and not isinstance(controller, type)
        needs(usable, "controller", controller, remedy)
        remedy = "period, quantile, factors and explore need a space: set them in the controller instead"
        needs(rules == Rules(), "controller", controller, remedy)
    with alone(folder), ExitStack() as opened:
        state = None
        if folder is not None:
            compared = {"seed": seed, "explore": settings_text(explore), "value": _summary(table)}
            if not isinstance(controller, Mapping):
                compared["settings"] = settings_text(controller)
            state = RunState(folder, {**options, **compared})
        saved = None if state is None else state.load()
        if isinstance(controller, Mapping):
            assert table is not None
            controller = space_controller(table, saved.options["steps"] if saved else steps, seed, rules)
        assert controller is not None
        _check_controller(controller, steps, window, saved=folder is not None)
        if folder is not None and path is not None and saved is None:
            _clear(path)
        pool = ProcessPool(make, min(workers, count)) if workers > 1 else LocalPool(make)
        opened.callback(pool.close)
        if saved is not None and path is not None:
            restore(pool, saved.parts, path.parent)
            cut_journal(path, saved.position)
        recorded = {"api": API, **options, "choices": choices_of(table)}
        record = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            record = Journal(path)
            opened.callback(record.close)
            if saved is None:
                record.start(recorded, seed, {"table": table_of_texts(table)})
        first = controller.initial(count) if saved is None else [m.values for m in saved.parts["members"]]
        training = Training(
            pool,
            controller,
            [MemberRecord(i, v, ObjectiveWindow(tasks=1, window=window)) for i, v in enumerate(first)],
            SlotAssigner(range(slots or count), slot_steps),
            record,
            table,
            steps,
            evaluate_every,
            given=not callable(members),
            watch=_watcher(on_progress, Screen() if progress else None),
            state=state,
        )
        return training.run() if saved is None else training.go_on(saved.parts, recorded)


def _places(folder: Path | str | None, journal: Path | str | None) -> tuple[Path | None, Path | None]:
    """Return the paths of folder and journal.

    Raises ConfigError if both are given, or if the file `journal` exists and is not empty.
    """
    if folder is not None:
        needs(journal is None, "journal", str(journal), "leave it out, because the folder has a journal")
        place = path_given("folder", folder)
        return place, place / JOURNAL
    if journal is None:
        return None, None
    path = path_given("journal", journal)
    remedy = "the file exists, and a run cannot resume from it: remove it, or give folder= to resume runs"
    needs(not path.exists() or path.stat().st_size == 0, "journal", str(journal), remedy)
    return None, path


def _check_controller(controller: Controller, steps: int, window: int, *, saved: bool) -> None:
    """Raise ConfigError if a controller needs more than `steps` steps, or a window of more than `window` evaluations.

    saved: True if the run is saved. Then, also raise ConfigError for a controller that cannot be saved.
    """
    top: int = getattr(controller, "highest_rung_frames", 0)
    highest = f"the end of the highest rung of {type(controller).__name__}"
    needs(steps >= top, "steps", steps, f"give {top} or more, {highest}")
    evaluated: int = getattr(getattr(controller, "evaluation", None), "episodes", 0)
    needs(window >= evaluated, "window", window, f"give {evaluated} or more, the evaluations per comparison")
    if saved:
        try:  # fail now instead of at the first save
            save_state(controller)
        except TypeError as error:
            raise ConfigError(f"folder cannot be used with this controller: {error}") from error


RAY_NAMES = {
    "num_samples": "num_members",
    "population_size": "num_members",
    "perturbation_interval": "period",
    "quantile_fraction": "quantile",
    "perturbation_factors": "factors",
    "custom_explore_fn": "explore",
    "num_workers": "workers",
    "max_concurrent_trials": "slots",
    "storage_path": "folder",
    "local_dir": "folder",
    "callbacks": "on_progress",
    "verbose": "progress",
    "num_iterations": "steps",
    "training_iteration": "steps",
    "stop": "steps",
}
"""Argument of Ray Tune -> argument of `pbt_rl.tune.run`."""
RAY_ANSWERS = {
    "metric": "members are compared by the number that `evaluate` returns",
    "mode": "higher is better: to minimise, return the negative value from `evaluate`",
    **dict.fromkeys(
        ("config", "param_space", "hyperparam_mutations", "space"),
        'the space is the second argument, such as {"lr": (1e-5, 1e-1)}',
    ),
    "scheduler": "the second argument is a space, which is tuned by PBT, or a controller",
}
"""Argument of Ray Tune without an equivalent -> remedy."""


def _unknown(name: str) -> str:
    """Return the error message for an unknown argument of `run`."""
    if answer := RAY_ANSWERS.get(name):
        return f"{name} is not an argument of tune.run: {answer}"
    known = [one for one in signature(run).parameters if one != "others"]
    close = [RAY_NAMES[name]] if name in RAY_NAMES else get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known arguments: {', '.join(known)}"
    return f"{name} is not an argument of tune.run: {hint}"


def audit(
    folder: Path | str,
    controller: Controller | Space,
    *,
    explore: Callable[..., Mapping[str, Any]] | None = None,
) -> list[Mismatch]:
    """Recompute the decisions of a recorded run, and return the mismatches.

    The list is empty if all decisions agree bit for bit. Their reasons (texts) are not compared.
    folder, explore: arguments of `run`. controller: the space of the run, or a new instance of the run's controller.
    Raises ConfigError if `folder` is not the folder of a `tune.run` run, or if the names in the space differ from the
    names in the run.
    """
    events = list(journal_events(path_given("folder", folder)))
    start = events[0] if events else None
    if not _is_tuned(start):
        raise ConfigError(f"{folder} is not the folder of a tune.run run")
    if isinstance(controller, Mapping):
        options = converted(start.config, _Options, "the first line of the journal")
        rules = Rules(options.period, options.quantile, options.factors, explore)
        table = table_of(controller)
        names = next(
            (e.values[0].keys() for e in events if isinstance(e, Initial) and e.values), table.keys()
        )
        remedy = f"the run {folder} has the values {', '.join(names)}"
        needs(names == table.keys(), "controller", controller, remedy)
        controller = space_controller(table, options.steps, start.seed or 0, rules)
    return audit_decisions(events, controller)


@dataclass(frozen=True)
class _Options:
    """Options in the journal that an audit reads."""

    steps: Whole
    period: Whole | None = None
    quantile: float = FRACTION
    factors: tuple[float, ...] = (1.2, 0.8)


def _is_tuned(event: Event | None) -> TypeGuard[Start]:
    """Return True for the first event of a `tune.run` run."""
    return isinstance(event, Start) and event.config.get("api") == API


def _factory(
    members: Callable[[int], Member] | Sequence[Member], num_members: int | None, workers: int
) -> tuple[Callable[[int], Member], int]:
    if callable(members):
        return members, MEMBERS if num_members is None else whole("num_members", num_members, 1)
    is_list = isinstance(members, Sequence)
    needs(is_list, "members", members, "give a factory (index -> member), or a list of members")
    needs(workers <= 1, "workers", workers, "give a factory: members cannot move to other processes")
    needs(len(members) > 0, "members", members, "give 1 or more")
    same = next(((i, k) for k, one in enumerate(members) for i in range(k) if members[i] is one), None)
    needs(same is None, "members", members, f"entries {same} are one object: make a separate object for each")
    alike = num_members in (None, len(members))
    needs(alike, "num_members", num_members, f"leave it out: a list of {len(members)} members was given")
    return list(members).__getitem__, len(members)


def _summary(table: Mapping[str, HyperSpec] | None) -> dict[str, str]:
    """Return name -> text of a value's spec, to compare a table with the table of a saved run."""
    return {name: settings_text(spec) for name, spec in (table or {}).items()}


def _clear(journal: Path) -> None:
    """Clear the journal of a run without a saved state. Raises ConfigError if `tune.run` did not write the journal."""
    if not journal.exists():
        return
    first = next(journal_events(journal.parent), None)
    if first is not None and not _is_tuned(first):
        raise ConfigError(f"{journal.parent} cannot be used: it contains another run; give another folder")
    if first is not None:
        text = f"tune.run: {journal.parent}: the previous run ended before its first save: the run restarts"
        print(text, file=sys.stderr, flush=True)
    cut_journal(journal, 0)


def _watcher(
    on_progress: Callable[[Progress], Stop | None] | None, screen: Screen | None
) -> Callable[[Progress], str | None]:
    def watch(now: Progress) -> str | None:
        if screen is not None:
            screen.show(now)
        answer = None if on_progress is None else on_progress(now)
        if isinstance(answer, Stop):
            return answer.reason
        if answer is not None:
            raise TypeError(f"on_progress returned {answer!r:.80}: return None or pbt_rl.Stop(reason)")
        return None

    return watch
