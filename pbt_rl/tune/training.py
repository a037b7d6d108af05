"""Main loop of `tune.run`: train, evaluate, compare, apply."""

from __future__ import annotations

import math
import pickle
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Controller, PopulationReport, StateKey, values_of
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.member_record import MemberRecord, population_clock
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.population.slot_assignment import Candidate, SlotAssigner
from pbt_rl.record.journal import Journal
from pbt_rl.tune.result import Evaluation, MemberProgress, Outcome, Progress, Result
from pbt_rl.tune.saving import RunState
from pbt_rl.tune.space import decode
from pbt_rl.tune.workers import Failure, Load, Make, Pool, Save, Task, Train

SAVED = (
    "members",
    "slots",
    "lineage",
    "history",
    "remembered",
    "next_index",
    "first_states",
    "next_progress",
    "cause",
    "changes",
)
"""Attributes of `Training` that are saved. The states of the controller and of members are saved separately."""
PROGRESS_EVENTS = 200
"""Approximate maximum number of `progress` events of a run."""


def restore(pool: Pool, parts: Mapping[str, Any], folder: Path) -> None:
    """Make the members of a saved run, and load their states. The folder is not changed.

    Broken members (whose code raised an error) are made too, because they may copy other members later.
    Raises RunFailed if another member cannot be made or loaded, and ConfigError if all members were broken at the save.

    parts: see `SavedRun.parts`. folder: folder of the run, for the messages.
    """
    states: Mapping[int, bytes] = parts["states"]
    if not states:
        raise ConfigError(f"{folder} cannot resume: every member was broken at the save; give another folder")
    tasks: list[Task] = [Make(m.id, m.id) for m in parts["members"]]
    tasks += [Load(member, state) for member, state in states.items()]
    for task, result in zip(tasks, pool.carry_out(tasks), strict=True):
        if isinstance(result, Failure) and (result.refused or task.member in states):
            what = result.refused or f"{result.what}\n{result.traceback}"
            raise RunFailed(f"{folder} cannot resume, and was not changed: {what}")


class Training:
    """Training of one run. In this class, the *frames* of a member are its steps."""

    def __init__(
        self,
        pool: Pool,
        controller: Controller,
        members: list[MemberRecord],
        slots: SlotAssigner,
        journal: Journal | None,
        table: Mapping[str, HyperSpec] | None,
        steps: int,
        evaluate_every: int,
        *,
        given: bool,
        watch: Callable[[Progress], str | None] = lambda _: None,
        state: RunState | None = None,
    ) -> None:
        """steps, evaluate_every, table: arguments of `tune.run`.

        given: True if the user passed a list of members. Restarted members then load their initial states.
        watch: function that is called after each round of evaluations. It returns None, or a reason to end the run.
        state: state file. None: the run is not saved.
        """
        self._watch, self._state = watch, state
        self._whole = False
        """True between two rounds of evaluations. At other times, the state is inconsistent, and must not be saved."""
        self._changes = 0
        self._pool, self._controller, self._members, self._slots = pool, controller, members, slots
        self._journal, self._table = journal, table
        self._steps, self._evaluate_every = steps, evaluate_every
        self._given = given
        self._first_states: dict[int, Any] = {}
        self._next_index = len(members)
        self._remembered: dict[StateKey, Any] = {}
        """(member, generation) -> pickled state, or Failure if this state could not be pickled."""
        self._lineage = Lineage()
        self._history: list[Evaluation] = []
        self._cause = ""
        self._shown: set[int] = set()
        """Members whose first failure was printed."""
        self._pickled = False
        """True after a state has been pickled."""
        self._next_progress = 0

    def run(self) -> Result:
        """Train from the initial values to the end."""
        self._begin_run()
        self._observe()
        return self._go_on()

    def go_on(self, parts: Mapping[str, Any], config: Mapping[str, Any]) -> Result:
        """Resume a run, and train to the end. parts: see `SavedRun.parts`. config: options for the journal."""
        self._whole = True
        self._write("resume", config=dict(config), changed={})  # first: readers subtract the pause before it
        restore_state(self._controller, parts["controller"])
        for name in SAVED:
            setattr(self, f"_{name}", parts[name])
        return self._go_on()

    def _go_on(self) -> Result:
        ended = None
        try:
            while ended is None and (due := self._due()):
                self._whole = False
                self._train(due)
                if not self._history:  # without this check, a controller would restart broken members forever
                    self._check_broken()
                self._observe()
                self._check_broken()
                self._whole = True
                ended = self._watch(self._progress())
                if self._state is not None and self._state.due:
                    self._save_run(self._state)
                if sum(m.frames for m in self._members) >= self._next_progress:
                    self._write_progress()
            self._whole = False
            self._train({m: 0 for m in self._members if not (m.objectives.rounds or m.stopped or m.broken)})
        except BaseException as error:
            if self._state is not None and not isinstance(error, ConfigError):
                self._leave(self._state, error)
            raise
        if self._state is not None:
            self._save_run(self._state)
        return self._end(ended)

    def _leave(self, state: RunState, error: BaseException) -> None:
        """Save the state if it is consistent. Print the step at which a repeated call resumes."""
        if self._whole and not all(m.broken for m in self._members):
            self._save_run(state)
        saved = "nothing was saved, because no round of evaluations had ended: repeat the call to restart"
        if state.saved_at is not None:
            saved = (
                f"saved at step {state.saved_at:,} of {self._steps:,}: repeat the call to resume from there"
            )
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        print(f"tune.run: {why}; {state.folder}: {saved}", file=sys.stderr, flush=True)

    def _check_broken(self) -> None:
        if all(m.broken for m in self._members):
            raise RunFailed(f"every member is broken; the latest failure:\n{self._cause}")

    @property
    def _live(self) -> list[MemberRecord]:
        return [m for m in self._members if not m.stopped]

    @property
    def _clock(self) -> int:
        return population_clock(self._members)

    # -- training -------------------------------------------------------------------------------------------

    def _due(self) -> dict[MemberRecord, int]:
        """Assign the slots. Return member -> steps until the member's next evaluation, for the members in slots.

        Members that must evaluate without training (decision `Evaluate`) are included with 0 steps, even without a
        slot, until they have enough evaluations.
        """
        steps = self._steps
        limits = {m.id: steps if m.until_frames is None else min(m.until_frames, steps) for m in self._live}
        candidates = [Candidate(m.id, m.frames, limits[m.id]) for m in self._live]
        for swap in self._slots.assign(candidates):
            self._write("slot", pack=0, slot=swap.slot, leaves=swap.leaves, enters=swap.enters)
        lacking = [m for m in self._live if m.outdated or m.objectives.rounds < m.evaluates]
        due = {m: 0 for m in lacking if m.evaluates and not m.broken}
        for i in sorted(member for member in self._slots.members if member is not None):
            member = self._members[i]
            if not member.evaluates:
                to_evaluation = self._evaluate_every - member.frames % self._evaluate_every
                due[member] = min(to_evaluation, limits[i] - member.frames)
        return due

    def _train(self, due: Mapping[MemberRecord, int]) -> None:
        """Train and evaluate members. A broken member skips its steps, and has the objective NaN."""
        tasks = [Train(m.id, self._hypers(m), steps) for m, steps in due.items() if not m.broken]
        results = dict(zip((t.member for t in tasks), self._carry_out(tasks), strict=True))
        for member, steps in due.items():
            member.frames += steps
            objective = results.get(member.id, math.nan)
            if isinstance(objective, Failure):
                continue
            member.note_objective(objective)
            if member.id in results:
                self._history.append(Evaluation(member.id, member.generation, member.frames, objective))

    def _hypers(self, member: MemberRecord) -> Mapping[str, Any]:
        return dict(member.values) if self._table is None else decode(self._table, member.values)

    def _carry_out(self, tasks: Sequence[Task]) -> list[Any]:
        results = self._pool.carry_out(tasks)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, Failure):
                if result.refused or (result.unpicklable and not self._pickled):
                    raise ConfigError(result.refused or result.what)
                self._cause = result.cause
                self._members[task.member].note_broken()
                self._write("member_broken", member=task.member, cause=result.cause)
                self._show(task.member, result)
            elif isinstance(task, Save):
                self._pickled = True
        return results

    def _show(self, member: int, failure: Failure) -> None:
        """Print the first failure of a member. The first failure of the run includes the traceback."""
        if member in self._shown:
            return
        lines = f"tune.run: {failure.what}; it takes no steps until it copies another member"
        print(
            lines if self._shown else f"{lines}\n{failure.traceback}".rstrip("\n"),
            file=sys.stderr,
            flush=True,
        )
        self._shown.add(member)

    # -- decisions ------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        report = PopulationReport(self._clock, tuple(m.report() for m in self._live))
        decisions = self._controller.observe(report)
        if not decisions:
            return
        if self._journal is not None:
            self._journal.round(report, decisions)
        self._measure()
        self._changes += len([d for d in decisions if values_of(d) is not None])
        made = changes(decisions, {m.id: m.generation for m in self._members})
        self._lineage.apply(report.frames, made)
        self._apply(made)

    def _apply(self, made: Sequence[Change]) -> None:
        """Save the states that will be copied or remembered. Then apply the changes."""
        kept, wanted = self._remembered, self._controller.remembers()
        recalled = {c.weights_from for c in made if c.weights_from is not None and c.remembered}
        copied = {c.weights_from for c in made if c.weights_from is not None and not c.remembered}
        saved = self._save(copied | ((wanted | recalled) - kept.keys()))
        self._remembered = {key: kept[key] if key in kept else saved[key] for key in wanted}
        tasks: list[Task] = []
        for change in made:
            member, source = self._members[change.member], change.weights_from
            member.apply(change)
            if change.weights == "fresh":
                tasks.append(self._renewal(member.id))
            elif source is not None:
                state = kept[source] if change.remembered and source in kept else saved[source]
                if isinstance(state, Failure):
                    member.note_broken()
                else:
                    tasks.append(Load(member.id, state))
            elif member.broken and change.values is not None:
                member.note_broken()  # again, because the new generation has an empty window
        self._carry_out(tasks)

    def _save(self, keys: Collection[StateKey]) -> dict[StateKey, Any]:
        """Return (member, generation) -> pickled state. Broken member or failed `state()`: a Failure instead."""
        for member, generation in keys:
            assert self._members[member].generation == generation, "a state that was not remembered in time"
        whole = sorted(key for key in keys if not self._members[key[0]].broken)
        states: dict[StateKey, Any] = dict.fromkeys(keys, Failure("broken"))
        return states | dict(zip(whole, self._carry_out([Save(i) for i, _ in whole]), strict=True))

    def _renewal(self, member: int) -> Task:
        if self._given:
            return Load(member, self._first_states[member])
        self._next_index += 1
        return Make(member, self._next_index - 1)

    # -- the record -----------------------------------------------------------------------------------------

    def _begin_run(self) -> None:
        if self._journal is not None:
            self._journal.initial([m.values for m in self._members])
        for slot, member in enumerate(self._slots.members):
            self._write("slot", pack=0, slot=slot, leaves=None, enters=member)
        self._lineage.add_first_members([dict(m.values) for m in self._members])
        self._carry_out([Make(m.id, m.id) for m in self._members])
        if self._given:
            saved = self._carry_out([Save(m.id) for m in self._members])
            self._first_states = {m.id: state for m, state in zip(self._members, saved, strict=True)}

    def _measure(self) -> None:
        for m in self._members:
            self._lineage.measure((m.id, m.generation), m.frames, m.objective)

    def _write(self, event: str, **content: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, self._clock, **content)

    def _write_progress(self) -> None:
        every = max(1, self._steps * len(self._members) // PROGRESS_EVENTS)
        self._next_progress = sum(m.frames for m in self._members) + every
        members = [
            {
                "member": m.id,
                "generation": m.generation,
                "frames": m.frames,
                "objective": m.objective,
                "episodes": m.objectives.rounds,
            }
            for m in self._members
        ]
        self._write("progress", members=members)

    def _progress(self) -> Progress:
        members = [
            MemberProgress(m.id, m.generation, m.frames, m.objective, self._hypers(m)) for m in self._members
        ]
        return Progress(self._clock, self._steps, self._changes, members)

    def _save_run(self, state: RunState) -> None:
        began = time.monotonic()
        whole = [m.id for m in self._members if not m.broken]
        saved = zip(whole, self._carry_out([Save(member) for member in whole]), strict=True)
        self._check_broken()  # the earlier state in the folder is better than a state without members
        parts = {name: getattr(self, f"_{name}") for name in SAVED}
        parts["states"] = {member: data for member, data in saved if not isinstance(data, Failure)}
        parts["controller"] = save_state(self._controller)
        position = 0
        if self._journal is not None:
            self._journal.sync()
            position = self._journal.position()
        state.save(position, parts, self._clock, began)

    def _end(self, ended: str | None) -> Result:
        self._measure()
        self._write_progress()
        waiting = any(m.frames < self._steps for m in self._live)
        ended = ended or ("waiting for a decision" if waiting else "steps")
        self._write("end", ended=ended)
        best, state = self._progress().best, None
        outcomes = tuple(map(self._outcome, self._members))
        if best is None and self._history:
            text = (
                "no member has a finite objective, so there is no best member: check the result of `evaluate`"
            )
            print(f"tune.run: {text}", file=sys.stderr, flush=True)
        if best is not None:
            saved = self._carry_out([Save(best.member)])[0]
            state = None if isinstance(saved, Failure) else pickle.loads(saved)
        best_id, history = None if best is None else best.member, tuple(self._history)
        return Result(outcomes, best_id, state, self._lineage, history, ended, self._table)

    def _outcome(self, m: MemberRecord) -> Outcome:
        values, objective, hypers = dict(m.values), None if m.broken else m.objective, self._hypers(m)
        return Outcome(m.id, values, objective, m.frames, m.generation, m.stopped, m.broken, hypers)
