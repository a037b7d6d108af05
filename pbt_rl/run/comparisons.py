"""Comparisons of members: decisions of the controller, their execution, slot swaps, and new matchups.

    report -> controller -> Dispatch: changes, in order -> all applied -> slot swaps -> new matchups
                                ^ acknowledgements                          |
                                +---- one comparison at a time -------------+

consumes      reports of the population, acknowledgements
produces      messages to the learners, rows of matchups, journal events
waits for     nothing (no method blocks)

Axes: U vector envs of a pack, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import Acknowledgement, Saved, ToLearner
from pbt_rl.controllers.changes import Change, changes, given
from pbt_rl.controllers.decisions import Controller, Decision
from pbt_rl.controllers.entry import TIMEOUT_PERIODS
from pbt_rl.controllers.hypers import Values
from pbt_rl.display.terminal import in_words
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.matchups.run_matchups import RunMatchups
from pbt_rl.population.population import Population
from pbt_rl.population.slots import Slots
from pbt_rl.population.store import State
from pbt_rl.registry import READY_RULES
from pbt_rl.run.ending import RunEnd
from pbt_rl.run.fleet import Fleet
from pbt_rl.run.recorder import Recorder, fields_of
from pbt_rl.run.resolved import ResolvedRun

REPLACEMENT_TIMES = 1000
"""Maximum number of stored durations of replacements. (A run of a month makes hundreds of thousands.)"""

LONG_LOOK_SECONDS = 0.005
"""A pause follows if `Comparisons.look` takes more CPU time than this without a decision (not in serial mode)."""
LOOK_GAP = 4
"""Length of the pause after a slow `look`, as a multiple of its CPU time."""
MOST_LOOK_GAP_SECONDS = 0.5
"""Maximum length of the pause after a slow `look`."""


def make_slots(resolved: ResolvedRun, population: Population) -> Slots:
    """Build the slots of all packs. A search has no time slices: its controller limits the frames of members."""
    config = resolved.config
    limits = (None, None) if config.searches else (config.slot_frames, config.train_for_frames)
    return Slots(resolved.plan.packs, population, *limits)


class Comparisons:
    """Comparisons of members by the controller, and execution of its decisions.

    slots: from `make_slots`. end: end condition of the run, which stops comparisons and changes of slots.
    seconds: function that returns the seconds of training.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        population: Population,
        slots: Slots,
        controller: Controller,
        recorder: Recorder,
        end: RunEnd,
        seconds: Callable[[], float],
    ) -> None:
        config = resolved.config
        self._seconds = (
            (lambda: round(seconds(), 3)) if READY_RULES[config.pbt.ready].by_time else lambda: None
        )
        self._period_seconds = config.pbt.period_seconds
        self._population, self._controller, self._recorder = population, controller, recorder
        self._end = end
        self._fleet: Fleet | None = None
        self.slots = slots
        self._packs = resolved.plan.packs
        self._at_once = config.mode == "serial"
        """True in serial mode, which requires a comparison after each report."""
        self._spread = resolved.spread
        """True if learners are on other machines. Only then do members move to free slots of other packs."""
        self.dispatch = Dispatch(population, self.slots, self._send)
        agents = resolved.spec.agents
        self.matchups = (
            None
            if agents == 1
            else RunMatchups(config, resolved.plan.packs, agents, self.slots, population.ratings)
        )
        """None for single-agent environments."""
        self.replacement_times = deque[float](maxlen=REPLACEMENT_TIMES)
        """Milliseconds that a learner spent on each of the latest replacements."""
        self._reported: list[int] = []
        """Pack of each report that `exchange` has not handled yet."""
        self._next_look = 0.0

    def note_first_slots(self, packs: Collection[int]) -> None:
        """Record the slot assignments of these packs in the journal, at the start of their learners."""
        for pack, swap in self.slots.start():
            if pack in packs:
                self._recorder.slot_held(pack, swap)

    def first_matchups(self) -> list[NDArray[np.int64]]:
        """Record and return the initial matchups of each pack, new or restored. Empty for single-agent environments.

        An array [U, E, S] (vector env, environment, agent) contains the row of each agent.
        """
        matchups = [] if self.matchups is None else self.matchups.first()
        for pack, row_UES in enumerate(matchups):
            self._record_matchup(pack, 1, row_UES)
        return matchups

    def send_to(self, fleet: Fleet) -> None:
        """Set the fleet that receives decisions."""
        self._fleet = fleet

    def go_on(self, values: Values) -> None:
        """Continue a resumed run: send frame limits and evaluations, apply new values, compare members if necessary.

        Members are compared now if a comparison was skipped because the run was about to end. Otherwise they are
        compared at the next report.
        values: values that the user has changed for all members (name -> new value).
        """
        self.dispatch.send_limits()
        if values:
            live = {m.id: m for m in self._population.members if not m.stopped}
            made = given(values, [(m.id, m.generation, m.values) for m in live.values()])
            # Keep the limits and evaluations of earlier decisions.
            self._carry_out(
                [
                    replace(c, until_frames=live[c.member].until_frames, evaluates=live[c.member].evaluates)
                    for c in made
                ]
            )
        if self.slots.held_back:
            self.exchange(self.compare())

    def _send(self, pack: int, message: ToLearner) -> None:
        assert self._fleet is not None
        self._fleet.send(pack, message)

    def compare(self, pack: int | None = None) -> Sequence[Decision]:
        """Report the population to the controller. Record and return the controller's decisions.

        Return no decisions while earlier decisions are not yet applied. Also return no decisions if the end condition
        of the run is met, because no member would train with the changes.
        pack: pack whose learner has just reported. None: no learner has just reported.
        """
        self._reported += [] if pack is None else [pack]
        if self.dispatch.busy or self._end.why is not None:
            self._reported = []
            return ()
        report = self._population.report(self._seconds())
        if report.seconds and report.frames:
            # Periods are seconds here, but the timeout of unfinished episodes is in frames.
            seconds = TIMEOUT_PERIODS * self._period_seconds
            self._population.set_timeout(math.ceil(seconds * report.frames / report.seconds))
        decisions = self._controller.observe(report)
        if decisions:
            self._recorder.decided(report, decisions)
        return decisions

    def exchange(self, decisions: Sequence[Decision]) -> None:
        """Send decisions to the learners, and reassign slots."""
        if decisions:
            self.enact(decisions)
            if self.matchups is not None:
                self.matchups.due = True
        self.change_slots()
        reported, self._reported = self._reported, []
        for pack in reported:
            self.slots.note_report(pack)

    def enact(self, decisions: Sequence[Decision]) -> None:
        """Start the execution of recorded decisions."""
        made = changes(decisions, self._population.generations)
        for decision, change in zip(decisions, made, strict=True):
            if change.stopped:
                self._recorder.note(
                    f"member {decision.member} is stopped: {in_words(decision.reason, change)}"
                )
        self._carry_out(made)

    def _carry_out(self, made: Sequence[Change]) -> None:
        decided = time.perf_counter()
        for ack in self.dispatch.enact(made, self._controller.remembers()):
            self._record_applied(ack, decided, {"sent": time.perf_counter()})

    def note_report(self, pack: int) -> None:
        """Record a learner's report, and compare members now or in a later `look`."""
        self._reported.append(pack)
        self.look()

    def look(self) -> None:
        """Compare members if there were reports since the last comparison, and if no decision is pending.

        The rate is limited, because each call reads all members: with 1,000 members, a call per report is too slow.
        """
        if not self._reported or time.monotonic() < self._next_look:
            return
        began = time.thread_time()
        decisions = self.compare()
        self.exchange(decisions)
        took = time.thread_time() - began
        if took > LONG_LOOK_SECONDS and not (decisions or self._at_once):
            self._next_look = time.monotonic() + min(LOOK_GAP * took, MOST_LOOK_GAP_SECONDS)

    def note_applied(self, ack: Acknowledgement) -> None:
        """Process a learner's acknowledgement of a decision or of a slot swap.

        Record the acknowledgement of a decision, and reassign slots. Record the acknowledgement of a swap only if the
        member has changed while it was parked.
        """
        pending = self.dispatch.applied(ack)
        if pending.decided is None:  # the acknowledgement of a slot swap
            if pending.proves:
                self._recorder.write("applied", **fields_of(ack))
            return
        self._record_applied(
            ack, pending.decided, {"sent": pending.sent} | ({} if self._spread else ack.clock)
        )
        self.change_slots()

    def _record_applied(self, ack: Acknowledgement, decided: float, clock: dict[str, float]) -> None:
        """Record that a decision was applied.

        decided: `time.perf_counter()` of the decision. clock: stage -> `time.perf_counter()` at this stage.
        """
        times = clock | {"answered": time.perf_counter()}
        self._recorder.applied(ack, {stage: (at - decided) * 1000 for stage, at in times.items()})
        if ack.donor is not None and not ack.parked:
            self.replacement_times.append(ack.milliseconds)

    def note_saved(self, message: Saved) -> State:
        """Record that a learner has saved a state to the `StatePool`, and return this state."""
        waited = self.dispatch.busy
        state = self.dispatch.saved(message)
        if waited:
            self.change_slots()
        return state

    def note_lost(self, pack: int) -> None:
        """Send frame limits to the new learner of a lost pack, and record its slots.

        Call this after `Fleet.replace_learner`.
        """
        self.dispatch.send_limits(pack)
        self.note_first_slots([pack])
        self.change_slots()

    def change_slots(self) -> None:
        """Swap slots and send new matchups, if all decisions are applied and the run has not ended."""
        if self.dispatch.busy:
            return
        self.slots.held_back = self._end.why is not None
        if self.slots.held_back:
            return
        self._swap_slots()
        while self._spread and (moved := self.slots.travel()):
            self._note_moved(moved)
            self._swap_slots()
        if self.matchups is not None and self.matchups.due and self._fleet is not None:
            for pack, row_UES in enumerate(self.matchups.make_again()):
                self._record_matchup(pack, self._fleet.set_matchup(pack, row_UES), row_UES)

    def _swap_slots(self) -> None:
        for pack, swap in self.dispatch.swap_slots():
            self._recorder.slot_held(pack, swap)
            self._recorder.note(swap.text(pack))

    def scatter(self, pack: int) -> bool:
        """Move members of a pack without a machine to other packs. Return True if a member has moved."""
        moved = self.dispatch.scatter(pack)
        self._note_moved(moved)
        if moved:
            self.change_slots()
        return bool(moved)

    def _note_moved(self, moved: Sequence[tuple[int, int]]) -> None:
        for member, pack in moved:
            self._population.play_elsewhere(member, self._packs[pack].environments_of_member)
            self._recorder.write("moved", member=member, pack=pack)
            self._recorder.note(f"member {member} moves to learner {pack}")

    def _record_matchup(self, pack: int, matchup_version: int, row_UES: NDArray[np.int64]) -> None:
        assert self.matchups is not None
        pair_counts = self.matchups.pair_counts(pack, row_UES)
        self._recorder.matchup(pack, matchup_version, pair_counts, self.slots.members_of(pack))
