"""From a report of the population to changed members: decisions, then slots, then matchups.

    report -> controller -> Dispatch: edits, in order -> all applied -> Slots change hands -> new matchups
                                ^ acks                                     |
                                +---- one comparison at a time --------------+

consumes      reports of the population, acknowledgements
produces      messages to the learners, rows of matchups; lines of the record
waits for     nothing: each method does what can be done now
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import Acknowledgement, Saved, ToLearner
from pbt_rl.controllers.changes import Change, changes, given
from pbt_rl.controllers.decisions import Controller, Decision
from pbt_rl.controllers.hypers import Values
from pbt_rl.display.terminal import in_words
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.matchups.run import RunMatchups
from pbt_rl.population.population import Population
from pbt_rl.population.slots import Slots
from pbt_rl.population.store import State
from pbt_rl.registry import READY_RULES
from pbt_rl.run.ending import RunEnd
from pbt_rl.run.fleet import Fleet
from pbt_rl.run.recorder import Recorder, fields_of
from pbt_rl.run.resolved import ResolvedRun

REPLACEMENT_TIMES = 1000
"""So many times are kept: a run of a month makes hundreds of thousands of replacements."""

LONG_LOOK_SECONDS = 0.005
"""After a look at all members that took more processor time than this, and decided nothing, there is a pause..."""
LOOK_GAP = 4
"""...this many times as long..."""
MOST_LOOK_GAP_SECONDS = 0.5
"""...but no longer than this."""


def make_slots(resolved: ResolvedRun, population: Population) -> Slots:
    """Return the slots of all packs. In a search nobody's time in one is limited."""
    config = resolved.config
    limits = (None, None) if config.searches else (config.slot_frames, config.train_for_frames)
    return Slots(resolved.plan.packs, population, *limits)


class Comparisons:
    """Compares the members whenever the controller wants it, and carries out its decisions.

    slots: of `make_slots`. end: says whether the run is about to end, so that slots keep their holders. seconds: of
    training until now.
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
        self._population, self._controller, self._recorder = population, controller, recorder
        self._end = end
        self._fleet: Fleet | None = None
        self.slots = slots
        self._packs = resolved.plan.packs
        self._at_once = config.mode == "serial"
        """Nobody goes on before a report is answered."""
        self._spread = resolved.spread
        """Learners read other clocks, and members go where there is a slot for them."""
        self.dispatch = Dispatch(population, self.slots, self._send)
        seats = resolved.spec.seats
        self.matchups = (
            None
            if seats == 1
            else RunMatchups(config, resolved.plan.packs, seats, self.slots, population.ratings)
        )
        """None if environments have one seat."""
        self.replacement_times = deque[float](maxlen=REPLACEMENT_TIMES)
        """Milliseconds that each of the newest replacements took at its learner."""
        self._reported: list[int] = []
        """Packs of the reports since the last look."""
        self._next_look = 0.0

    def note_first_slots(self) -> None:
        """Record who holds the slots when the fleet starts."""
        for pack, handover in self.slots.start():
            self._recorder.slot_held(pack, handover)

    def first_matchups(self) -> list[NDArray[np.int64]]:
        """Return the matchups that the fleet starts with, rows [U, E, S] of each pack, and record them."""
        matchups = [] if self.matchups is None else self.matchups.first()
        for pack, row_UES in enumerate(matchups):
            self._record_matchup(pack, 1, row_UES)
        return matchups

    def send_to(self, fleet: Fleet) -> None:
        """Send decisions to this fleet from now on."""
        self._fleet = fleet

    def go_on(self, values: Values) -> None:
        """Tell the fleet of a resumed run what was decided before it: how far members may train.

        values: that the user gives every member.

        Nothing is compared before its first report: the run was saved after a comparison. A run that was about to end
        has left its slots and matchups as they were, so they change now if they should.
        """
        self.dispatch.send_limits()
        if values:
            live = {m.id: m for m in self._population.members if not m.stopped}
            made = given(values, [(m.id, m.generation, m.values) for m in live.values()])
            # What was decided of them holds on.
            self._carry_out(
                [
                    replace(c, until_frames=live[c.member].until_frames, evaluates=live[c.member].evaluates)
                    for c in made
                ]
            )
        if self.slots.held_back:
            self.change_slots()

    def _send(self, pack: int, message: ToLearner) -> None:
        assert self._fleet is not None
        self._fleet.send(pack, message)

    def observe(self) -> bool:
        """Show the controller the population, and begin to apply its decisions; return whether there were any."""
        report = self._population.report(self._seconds())
        decisions = self._controller.observe(report)
        if decisions:
            self._recorder.decided(report, decisions)
            self.enact(decisions)
            if self.matchups is not None:
                self.matchups.due = True
        self.change_slots()
        return bool(decisions)

    def enact(self, decisions: Sequence[Decision]) -> None:
        """Begin to apply decisions that are recorded already."""
        made = changes(decisions, self._population.generations)
        for decision, change in zip(decisions, made, strict=True):
            if change.stopped:
                self._recorder.note(
                    f"member {decision.member} is stopped: {in_words(decision.reason, change)}"
                )
        self._carry_out(made)

    def _carry_out(self, made: Sequence[Change]) -> None:
        self.dispatch.enact(made, self._controller.remembers())
        self._note_acks()

    def note_report(self, pack: int) -> None:
        """Compare after a learner's report, unless decisions are still on their way; `look` does if it has to wait."""
        self._reported.append(pack)
        self.look()

    def look(self) -> None:
        """Compare after the reports since the last look, if it is time.

        A look is at all members, and reports come from every learner: for a thousand members, one look per report would
        take more time than there is.
        """
        if not self._reported or time.monotonic() < self._next_look:
            return
        reported, self._reported = self._reported, []
        if self.dispatch.busy:
            return
        began = time.thread_time()
        decided = self.observe()
        for pack in reported:
            self.slots.note_report(pack)
        took = time.thread_time() - began
        if took > LONG_LOOK_SECONDS and not (decided or self._at_once):
            self._next_look = time.monotonic() + min(LOOK_GAP * took, MOST_LOOK_GAP_SECONDS)

    def note_applied(self, ack: Acknowledgement) -> None:
        """Go on after a decision was applied."""
        pending = self.dispatch.applied(ack)
        if pending.decided is None:  # it has taken a slot
            if pending.proves:
                self._recorder.write("applied", **fields_of(ack))
            return
        clock = {"sent": pending.sent} | ({} if self._spread else ack.clock)
        clock["answered"] = time.perf_counter()
        self._recorder.applied(ack, {name: (at - pending.decided) * 1000 for name, at in clock.items()})
        if ack.donor is not None:
            self.replacement_times.append(ack.milliseconds)
        self.change_slots()

    def note_saved(self, message: Saved) -> State:
        """Go on with a state that is there now."""
        waited = self.dispatch.busy
        state = self.dispatch.saved(message)
        self._note_acks()
        if waited:
            self.change_slots()
        return state

    def _note_acks(self) -> None:
        for ack in self.dispatch.take_acks():
            self.note_applied(ack)

    def note_lost(self, pack: int) -> None:
        """Go on after a learner was replaced, which knows its members and who holds its slots."""
        self._note_acks()
        self.dispatch.send_limits(pack)
        for number, handover in self.slots.start():
            if number == pack:
                self._recorder.slot_held(number, handover)
        self.change_slots()

    def change_slots(self) -> None:
        """Let slots change hands once all decisions are applied, so that members enter as they were decided to be."""
        if self.dispatch.busy:
            return
        self.slots.held_back = self._end.why is not None
        if self.slots.held_back:
            return
        self._hand_over()
        while self._spread and (moved := self.slots.travel()):
            self._note_moved(moved)
            self._hand_over()
        if self.matchups is not None and self.matchups.due and self._fleet is not None:
            for pack, row_UES in enumerate(self.matchups.make_again()):
                self._record_matchup(pack, self._fleet.set_matchup(pack, row_UES), row_UES)

    def _hand_over(self) -> None:
        for pack, handover in self.dispatch.hand_over():
            self._recorder.slot_held(pack, handover)
            self._recorder.note(handover.text(pack))

    def scatter(self, pack: int) -> bool:
        """Let the members of a pack that has no machine wait in others for a slot; return whether there are others."""
        moved = self.dispatch.scatter(pack)
        self._note_moved(moved)
        if moved:
            self.change_slots()
        return bool(moved)

    def _note_moved(self, moved: Sequence[tuple[int, int]]) -> None:
        """Note members that belong to another pack now."""
        for member, pack in moved:
            self._population.play_elsewhere(member, self._packs[pack].environments_of_member)
            self._recorder.write("moved", member=member, pack=pack)
            self._recorder.note(f"member {member} moves to learner {pack}")

    def _record_matchup(self, pack: int, matchup_version: int, row_UES: NDArray[np.int64]) -> None:
        assert self.matchups is not None
        games = self.matchups.games(pack, row_UES)
        self._recorder.matchup(pack, matchup_version, games, self.slots.members_of(pack))
