"""One run of `members.run`: who trains next, what the controller says, and what becomes of it."""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import RunFailed
from pbt_rl.pbt.decisions import (
    Continue,
    Controller,
    Decision,
    MemberReport,
    PopulationReport,
    Replace,
    Restart,
    StateKey,
    Stop,
)
from pbt_rl.pbt.exploit.base import mean_objective
from pbt_rl.pbt.hypers import HyperSpec, Values, decode
from pbt_rl.pbt.lineage import Lineage
from pbt_rl.population.assigner import Candidate, SlotAssigner
from pbt_rl.tune.workers import Crew, Failure, Load, Make, Order, Save, Train

if TYPE_CHECKING:
    from pbt_rl.record.journal import Journal

PROGRESS_EVENTS = 200
"""At most about so many `progress` events are written in one run."""


@dataclass(frozen=True)
class Outcome:
    """One member at the end. objective: the mean of its last evaluations; None if it is broken."""

    member: int
    values: Values
    objective: float | None
    steps: int
    generation: int
    stopped: bool
    broken: bool


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: whose, after how many of its steps, and what it gave."""

    member: int
    generation: int
    steps: int
    objective: float


@dataclass(frozen=True)
class Result:
    """What a run came to.

    members: in order of id. best: id of the member of the highest finite objective, stopped or not; ties go to the
    lower id. best_state: its `state()`. Both None if no member has such an objective.
    history: all evaluations, as they came.
    """

    members: tuple[Outcome, ...]
    best: int | None
    best_state: Any
    lineage: Lineage
    history: tuple[Evaluation, ...]

    @property
    def objectives(self) -> list[float | None]:
        """Of all members, in order of id."""
        return [m.objective for m in self.members]

    @property
    def values(self) -> list[Values]:
        """Final values of all members, in order of id."""
        return [m.values for m in self.members]


@dataclass(eq=False)
class Row:
    """What the run knows of one member."""

    id: int
    values: Values
    window: int
    generation: int = 0
    frames: int = 0
    evaluations: int = 0
    """Since the last change."""
    objectives: deque[float] = field(init=False)
    best: float | None = None
    until_frames: int | None = None
    stopped: bool = False
    broken: bool = False

    def __post_init__(self) -> None:
        self.values = dict(self.values)
        self.objectives = deque(maxlen=self.window)

    @property
    def objective(self) -> float | None:
        """Mean of the window; None while it is empty, NaN if one of them is not finite."""
        return mean_objective(self.objectives) if self.objectives else None

    def note(self, objective: float) -> None:
        """Take in an evaluation."""
        self.objectives.append(objective)
        self.evaluations += 1
        mean = mean_objective(self.objectives)
        if not math.isnan(mean):
            self.best = mean if self.best is None else max(self.best, mean)

    def change(self, values: Values) -> None:
        """Begin a new generation: nothing measured before counts for it."""
        self.values = dict(values)
        self.generation += 1
        self.evaluations = 0
        self.objectives.clear()
        self.best = None

    def breaks(self) -> None:
        """Its code raised: what was measured before does not speak for it any more."""
        self.broken = True
        self.objectives.clear()
        self.note(math.nan)

    def report(self) -> MemberReport:
        """What the controller may know."""
        return MemberReport(
            member=self.id,
            frames=self.frames,
            objectives=tuple(self.objectives),
            episodes=self.evaluations,
            generation=self.generation,
            values=dict(self.values),
            best=self.best,
            broken=self.broken,
        )

    def outcome(self) -> Outcome:
        """What the user gets."""
        objective = None if self.broken else self.objective
        return Outcome(
            self.id, dict(self.values), objective, self.frames, self.generation, self.stopped, self.broken
        )


class Training:
    """One run: who trains next, what the controller says, and what becomes of it."""

    def __init__(
        self,
        crew: Crew,
        controller: Controller,
        rows: list[Row],
        slots: SlotAssigner,
        journal: Journal | None,
        table: Mapping[str, HyperSpec] | None,
        steps: int,
        evaluate_every: int,
        *,
        given: bool,
    ) -> None:
        self._crew, self._controller, self._rows, self._slots = crew, controller, rows, slots
        self._journal, self._table = journal, table
        self._steps, self._evaluate_every = steps, evaluate_every
        self._given = given
        self._first_states: dict[int, Any] = {}
        """Of members that were given: what a restart goes back to."""
        self._next_index = len(rows)
        self._remembered: dict[StateKey, Any] = {}
        """(member, generation) -> its pickled state, or the Failure in place of one."""
        self._lineage = Lineage()
        self._history: list[Evaluation] = []
        self._cause = ""
        self._next_progress = 0

    def run(self) -> Result:
        """Train to the end."""
        self._begin()
        self._observe()
        while turns := self._turns():
            self._train(turns)
            self._observe()
            if all(row.broken for row in self._rows):
                raise RunFailed(f"every member is broken; the last one:\n{self._cause}")
            if sum(row.frames for row in self._rows) >= self._next_progress:
                self._write_progress()
        changed = [r for r in self._rows if not (r.objectives or r.stopped or r.broken)]
        self._train(dict.fromkeys(changed, 0))
        return self._end()

    @property
    def _live(self) -> list[Row]:
        return [row for row in self._rows if not row.stopped]

    @property
    def _clock(self) -> int:
        return min((row.frames for row in self._live), default=0)

    # -- training -------------------------------------------------------------------------------------------

    def _turns(self) -> dict[Row, int]:
        """Who trains now, and for how many steps."""
        limits = {
            row.id: self._steps if row.until_frames is None else min(row.until_frames, self._steps)
            for row in self._live
        }
        candidates = [Candidate(row.id, row.frames, limits[row.id]) for row in self._live]
        for change in self._slots.assign(candidates):
            self._write("slot", pack=0, slot=change.slot, leaves=change.leaves, enters=change.enters)
        turns = {}
        for member in sorted(m for m in self._slots.occupants if m is not None):
            row = self._rows[member]
            to_evaluation = self._evaluate_every - row.frames % self._evaluate_every
            turns[row] = min(to_evaluation, limits[member] - row.frames)
        return turns

    def _train(self, turns: Mapping[Row, int]) -> None:
        orders = [Train(r.id, self._hypers(r), steps) for r, steps in turns.items() if not r.broken]
        replies = dict(zip((o.member for o in orders), self._carry_out(orders), strict=True))
        for row, steps in turns.items():
            row.frames += steps
            reply = replies.get(row.id, math.nan)
            if isinstance(reply, Failure):
                continue
            row.note(reply)
            if row.id in replies:
                self._history.append(Evaluation(row.id, row.generation, row.frames, reply))

    def _hypers(self, row: Row) -> Mapping[str, Any]:
        return dict(row.values) if self._table is None else decode(self._table, row.values)

    def _carry_out(self, orders: Sequence[Order]) -> list[Any]:
        replies = self._crew.carry_out(orders)
        for order, reply in zip(orders, replies, strict=True):
            if isinstance(reply, Failure):
                self._cause = reply.traceback
                self._rows[order.member].breaks()
                self._write("member_broken", member=order.member, cause=reply.traceback)
        return replies

    # -- decisions ------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        report = PopulationReport(self._clock, tuple(row.report() for row in self._live))
        decisions = self._controller.observe(report)
        if not decisions:
            return
        if self._journal is not None:
            self._journal.round(report, decisions)
        self._measure()
        self._lineage.apply(report.frames, decisions)
        self._enact(decisions)

    def _enact(self, decisions: Sequence[Decision]) -> None:
        """All decisions hold at once: whoever is copied is copied as it was before any of them."""
        donors = {d.member: key for d in decisions if (key := self._donor(d)) is not None}
        wanted = self._controller.remembers()
        states = self._states(wanted | set(donors.values()))
        self._remembered = {key: states[key] for key in wanted}
        orders: list[Order] = []
        for decision in decisions:
            row = self._rows[decision.member]
            row.best = None
            row.until_frames = getattr(decision, "until_frames", None)
            if isinstance(decision, Stop):
                row.stopped = True
            if isinstance(decision, Continue | Stop):
                continue
            row.change(decision.values)
            key = donors.get(decision.member)
            if key is not None or isinstance(decision, Restart):
                row.broken = False
            if isinstance(decision, Restart):
                orders.append(self._renewal(decision.member))
            elif key is not None and isinstance(states[key], Failure):
                row.breaks()  # what it was to become cannot be had
            elif key is not None:
                orders.append(Load(decision.member, states[key]))
            elif row.broken:
                row.breaks()
        self._carry_out(orders)

    def _donor(self, decision: Decision) -> StateKey | None:
        """Whose state, of which generation, the decision copies."""
        if not isinstance(decision, Replace) or decision.copy == "hypers":
            return None
        generation = decision.donor_generation
        return decision.donor, self._rows[decision.donor].generation if generation is None else generation

    def _states(self, keys: frozenset[StateKey]) -> dict[StateKey, Any]:
        states = {key: state for key, state in self._remembered.items() if key in keys}
        missing = sorted(keys - states.keys())
        for member, generation in missing:
            assert self._rows[member].generation == generation, "a state that nobody was asked to remember"
        broken = {key: Failure("broken") for key in missing if self._rows[key[0]].broken}
        present = [key for key in missing if key not in broken]
        saved = self._carry_out([Save(member) for member, _ in present])
        return states | broken | dict(zip(present, saved, strict=True))

    def _renewal(self, member: int) -> Order:
        if self._given:
            return Load(member, self._first_states[member])
        self._next_index += 1
        return Make(member, self._next_index - 1)

    # -- the record -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._journal is not None:
            self._journal.initial([row.values for row in self._rows])
        for slot, member in enumerate(self._slots.occupants):
            self._write("slot", pack=0, slot=slot, leaves=None, enters=member)
        self._lineage.begin([dict(row.values) for row in self._rows])
        self._carry_out([Make(row.id, row.id) for row in self._rows])
        if self._given:
            saved = self._carry_out([Save(row.id) for row in self._rows])
            self._first_states = {row.id: state for row, state in zip(self._rows, saved, strict=True)}

    def _measure(self) -> None:
        for row in self._rows:
            self._lineage.measure((row.id, row.generation), row.frames, row.objective)

    def _write(self, event: str, **content: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, self._clock, **content)

    def _write_progress(self) -> None:
        every = max(1, self._steps * len(self._rows) // PROGRESS_EVENTS)
        self._next_progress = sum(row.frames for row in self._rows) + every
        members = [
            {
                "member": row.id,
                "generation": row.generation,
                "frames": row.frames,
                "objective": row.objective,
                "episodes": row.evaluations,
            }
            for row in self._rows
        ]
        self._write("progress", members=members)

    def _end(self) -> Result:
        self._measure()
        self._write_progress()
        waiting = any(row.frames < self._steps for row in self._live)
        self._write("end", ended="waiting for a decision" if waiting else "frames")
        outcomes = tuple(row.outcome() for row in self._rows)
        finite = [
            (-o.objective, o.member)
            for o in outcomes
            if o.objective is not None and math.isfinite(o.objective)
        ]
        best = min(finite)[1] if finite else None
        state = None
        if best is not None:
            reply = self._carry_out([Save(best)])[0]
            state = None if isinstance(reply, Failure) else pickle.loads(reply)
        return Result(outcomes, best, state, self._lineage, tuple(self._history))
