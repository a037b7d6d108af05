"""Population-based training of anything that trains: a network, a simulation, a formula.

    factory -> members --objectives--> controller --decisions--> members, record
                  ^ step, evaluate                     | state, load, new hypers
                  +------------------------------------+

All members that hold a slot take the same number of steps, then each is evaluated, then the controller observes them.
A run is therefore repeatable with any number of processes: no decision depends on the speed of a member.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Never, TypeGuard

from pbt_rl.controllers.controllers import PbtController
from pbt_rl.controllers.decide import Mismatch, audit_decisions
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.events import Event, Start
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.member import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow
from pbt_rl.controllers.records import Whole, converted
from pbt_rl.controllers.state import save_state
from pbt_rl.errors import ConfigError
from pbt_rl.options.values import path_given
from pbt_rl.population.turns import SlotAssigner
from pbt_rl.record.journal import Journal, cut_journal, journal_events
from pbt_rl.run.callbacks import Stop
from pbt_rl.tune.result import Progress, Result, Screen
from pbt_rl.tune.saving import JOURNAL, RunState, alone
from pbt_rl.tune.space import FRACTION, Rules, Space, choices_of, needs, space_controller, table_of, whole
from pbt_rl.tune.training import Training, restore
from pbt_rl.tune.workers import LocalPool, Member, ProcessPool

API = "pbt_rl.tune.run"
"""Stands in the journal's first event."""
SPACE = "pbt"
"""What a saved run calls the controller of a space."""
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
    """Train a population until every member that was not stopped has taken `steps` steps.

    - members: the members themselves, or a factory `make_member(index)`, of `num_members` (8 if left out). The members
      at the start have the indices 0 .. N - 1; a restarted member is made with the next index, so a factory that seeds
      by it gives other weights. (Members passed as such restart from the state that they were passed in.)
    - controller: a space, name -> (low, high) or a list of choices (see `tune.space`), which PBT with ten comparisons
      tunes; or a controller of your own. Its clock, the *frames* of its reports, is the number of steps that a member
      has taken.
    - evaluate_every: steps between two evaluations. The controller observes after each, and before the first step.
      window: an objective is the mean of at most this many last evaluations since the member's last change. With
      `PbtController(evaluation=Evaluation(n))` members are evaluated n times before a comparison, without a step.
    - table: of a controller of your own. With it, `step` receives `decode`d hypers (integers, choices, tuples), as with
      a space; without it plain numbers.
    - slots: number of members that train at a time, the least trained first; 0: all. slot_steps: with fewer slots than
      members, a member leaves its slot to a less trained one after this many steps; None: it keeps the slot until it is
      stopped, waits for a decision or is done.
    - workers: 0 or 1: all members in this process; more: in this many processes. The result is the same if members
      draw from random generators of their own.
    - folder: for the record of the run (`journal.jsonl`, as of `pbt-rl train`) and its state, saved after the first
      round of evaluations, at least once a minute and at the end: the same call goes on from there, also after Ctrl-C
      or with more steps. journal: a new file for the record alone.
    - on_progress: is told of every round of evaluations, as a `tune.Progress` (steps, members, best); it may return
      `pbt_rl.Stop(reason)`. progress: print a line to stderr every five seconds.
    - period, quantile, factors, explore: of the PBT that tunes a space: steps between two comparisons (a tenth of the
      run if left out); the share of the members that copies, from the best equal share; what values are multiplied by;
      and a function that changes the values of copies after that, `explore(values)` or `explore(values, rng)` -> all
      values. It has them as `step` has them. If it draws from `rng`, a random.Random, alone, the run can be audited.
    - seed: of the controller that tunes a space. A controller of your own and the members have seeds of their own.

    A member whose code raises is *broken*: it is reported as such, with NaN for its objective, its steps pass without
    work, and a decision that brings new weights repairs it. Raises RunFailed if all are broken, or if a worker died.
    """
    for name in others:
        raise ConfigError(_unknown(name))
    remedy = "give a space, or a controller of pbt_rl.controllers"
    needs(isinstance(controller, Mapping) or hasattr(controller, "observe"), "controller", controller, remedy)
    assert controller is not None
    steps = whole("steps", steps, 1)
    evaluate_every = whole("evaluate_every", evaluate_every, 1)
    window, workers = whole("window", window, 1), whole("workers", workers, 0)
    slots, seed = whole("slots", slots, 0), whole("seed", seed, 0)
    folder = None if folder is None else path_given("folder", folder)
    needs(folder is None or journal is None, "journal", str(journal), "leave it out: the folder has one")
    path = None if journal is None else path_given("journal", journal)
    written = path is not None and path.exists() and path.stat().st_size > 0
    remedy = "it exists, and no run goes on from it: remove it, or give folder= for runs that go on"
    needs(not written, "journal", str(journal), remedy)
    needs(isinstance(factors, Sequence), "factors", factors, "give positive numbers, such as (1.2, 0.8)")
    rules = Rules(period, quantile, tuple(factors), explore)
    is_space = isinstance(controller, Mapping)
    remedy = "period, quantile, factors, explore are of a space"
    needs(is_space or rules == Rules(), "controller", controller, remedy)
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
        needs(table is None, "table", "given", "leave it out: the space is one")
        table = table_of(controller)
        options |= {"period": rules.period, "quantile": rules.quantile, "factors": list(rules.factors)}
    with alone(folder):
        saved_options = {**options, "seed": seed, "space": _summary(table)}
        state = None if folder is None else RunState(folder, saved_options)
        saved = None if state is None else state.load()
        if isinstance(controller, Mapping):
            assert table is not None
            begun = steps if saved is None else saved.options["steps"]
            controller = space_controller(table, begun, seed, rules)
        top: int = getattr(controller, "highest_rung_frames", 0)
        highest = f"where the highest rung of {type(controller).__name__} ends"
        needs(steps >= top, "steps", steps, f"give {top} or more, {highest}")
        before = controller.evaluation if isinstance(controller, PbtController) else None
        evaluated: int = getattr(before, "episodes", 0)
        needs(window >= evaluated, "window", window, f"give {evaluated} or more, as its evaluation has")
        if folder is not None:
            try:  # not in a minute: a controller of the user's own may be none that can be saved
                save_state(controller)
            except TypeError as error:
                raise ConfigError(f"folder cannot be used with this controller: {error}") from error
            path = folder / JOURNAL
            if saved is None:
                _clear(path)
        pool = ProcessPool(make, min(workers, count)) if workers > 1 else LocalPool(make)
        record = None
        try:
            if saved is not None and path is not None:
                restore(pool, saved.parts, path.parent)
                cut_journal(path, saved.position)
            recorded = {"api": API, **options, "choices": choices_of(table)}
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                record = Journal(path)
                if saved is None:
                    record.start(recorded, seed, {"table": dict(table or {})})
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
        finally:
            pool.close()
            if record is not None:
                record.close()


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
"""Ray's argument -> that of `pbt_rl.tune.run`."""
RAY_ANSWERS = {
    "metric": "`evaluate` returns the one number by which members are compared",
    "mode": "more is better: let `evaluate` return the negative of what should be small",
    **dict.fromkeys(
        ("config", "param_space", "hyperparam_mutations", "space"),
        'the space is the second argument, such as {"lr": (1e-5, 1e-1)}',
    ),
    "scheduler": "the second argument is a space, which PBT tunes, or a controller",
}
"""Argument of Ray that has none for it -> what to do instead."""


def _unknown(name: str) -> str:
    """Return the message about an argument of `run` that it does not have."""
    if answer := RAY_ANSWERS.get(name):
        return f"{name} is no option of tune.run: {answer}"
    known = [one for one in signature(run).parameters if one != "others"]
    close = [RAY_NAMES[name]] if name in RAY_NAMES else get_close_matches(name, known, n=1)
    hint = f"write {close[0]}" if close else f"there are {', '.join(known)}"
    return f"{name} is no option of tune.run: {hint}"


def audit(
    folder: Path | str,
    controller: Controller | Space,
    *,
    explore: Callable[..., Mapping[str, Any]] | None = None,
) -> list[Mismatch]:
    """Decide a recorded run again, and return where its decisions differ: nothing if they agree bit for bit.

    folder: of `run(folder=...)`. controller: the space of the run, or its controller, made anew. explore: as in the
    run. Raises ConfigError.
    """
    events = list(journal_events(path_given("folder", folder)))
    start = events[0] if events else None
    if not _is_tuned(start):
        raise ConfigError(f"{folder} is not the folder of a run of tune.run")
    if isinstance(controller, Mapping):
        options = converted(start.config, _Options, "the first line of the journal")
        rules = Rules(options.period, options.quantile, tuple(options.factors), explore)
        controller = space_controller(table_of(controller), options.steps, start.seed or 0, rules)
    return audit_decisions(events, controller)


@dataclass(frozen=True)
class _Options:
    """Of the options in the journal, what an audit needs."""

    steps: Whole
    period: Whole | None = None
    quantile: float = FRACTION
    factors: tuple[float, ...] = (1.2, 0.8)


def _is_tuned(event: Event | None) -> TypeGuard[Start]:
    """Return whether this is the first event of a run of `tune.run`."""
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
    needs(same is None, "members", members, f"entries {same} are one object: make a new one for each")
    alike = num_members in (None, len(members))
    needs(alike, "num_members", num_members, f"leave it out: a list of {len(members)} members was given")
    return list(members).__getitem__, len(members)


def _summary(table: Mapping[str, HyperSpec] | None) -> dict[str, str]:
    """Return what a folder's runs must agree on of their tables: choices themselves may be of any kind."""
    return {name: f"{spec.scale} {spec.low:g}..{spec.high:g}" for name, spec in (table or {}).items()}


def _clear(journal: Path) -> None:
    """Remove the events of a run that was killed before its state was saved, as it begins anew.

    Raises ConfigError for the record of anything else.
    """
    if not journal.exists():
        return
    first = next(journal_events(journal.parent), None)
    if first is not None and not _is_tuned(first):
        raise ConfigError(f"{journal.parent} cannot be used: it holds another run; give another folder")
    if first is not None:
        text = f"tune.run: {journal.parent}: the run before was never saved: it begins anew"
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
