"""Replaces learners that have died or hang: their members go on as they were last saved, while other packs train on.

    LearnerLost -> fence: it and its actors are killed   nothing that it has sent is read any more
                -> a checkpoint in progress is given up
                -> Dispatch.lost                         what was on its way is settled
                -> a new learner and new actors          load the origin of each member (`population.store.Origin`)

Members without a slot, and remembered states, lose nothing: they are in the store. If a machine is lost and no other
one is free, the members go to the packs that serve, and wait there for a slot. The pack stays without members until
there is a machine for it; then members that wait move to its slots (`Slots.travel_to_free_slots`).

The clock never steps back: what a member had trained since it was saved is lost, and journaled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.population.population import Population
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import LearnerLost, ReplacesLearners
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.start import Start
from pbt_rl.wire.messages import LearnerReport

MOST_REPLACED = 2
WITHIN_SECONDS = 3600.0


class LostLearners:
    """Counts the learners that were replaced in a run, and ends it with the cause when that cannot help.

    run_seconds: returns for how long the run has trained.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        population: Population,
        comparisons: Comparisons,
        checkpoints: Checkpointing,
        recorder: Recorder,
        run_seconds: Callable[[], float],
    ) -> None:
        self._every_seconds = resolved.config.save_every_seconds
        self._population, self._comparisons, self._checkpoints = population, comparisons, checkpoints
        self._recorder, self._run_seconds = recorder, run_seconds
        self._continued = False
        self.count = 0
        self._replaced: deque[float] = deque(maxlen=MOST_REPLACED)
        """time.monotonic() of the last times."""
        self._updates: dict[int, dict[int, int]] = {}
        """Pack -> updates of its members at their first report by its learner."""
        self._trained: set[int] = set()
        """Packs whose learner has learned."""
        self._leaving: dict[int, tuple[LearnerLost, int]] = {}
        """Packs whose machine is about to be taken away -> (why, rounds of copies that were begun before)."""

    def begin(self, start: Start, *, continued: bool) -> None:
        """Note where the processes of the run begin. continued: from a checkpoint."""
        self._start, self._continued = start, continued

    def note_report(self, pack: int, report: LearnerReport) -> None:
        """Note that a learner trains: one that is lost before is not replaced."""
        first = self._updates.setdefault(pack, {})
        if any(one.updates > first.setdefault(one.member, one.updates) for one in report.members):
            self._trained.add(pack)

    def replace(self, fleet: ReplacesLearners, lost: LearnerLost) -> None:
        """Replace a learner. Raises RunFailed with the cause if that cannot help.

        Raises ConfigError if it could not begin, for a reason that only the user can mend.
        """
        fleet.fence(lost.pack)
        self._comparisons.slots.serving.discard(lost.pack)
        self._leaving.pop(lost.pack, None)
        if lost.user_error and lost.pack not in self._trained:
            raise ConfigError(lost.text)
        self._checkpoints.abandon("a learner was lost")
        refused = "" if lost.machine_lost else self._refused(lost.pack)
        if refused:
            raise RunFailed(f"{lost.text}\nThe run ends: {refused}. {self.saved_text()}")
        try:
            losses = self._comparisons.dispatch.lost(lost.pack)
            fleet.replace_learner(lost.pack, self._start_again(lost.pack))
        except (ConfigError, OSError) as error:
            raise RunFailed(
                f"{lost.text}\nThe run ends: its members could not be restored: {error}. {self.saved_text()}"
            ) from error
        if not lost.machine_lost:
            self._replaced.append(time.monotonic())
        self._trained.discard(lost.pack)
        self._updates.pop(lost.pack, None)
        self.count += 1
        self._recorder.pack_lost(lost, losses)
        self._population.learner_began(str(lost.pack))
        self._comparisons.note_lost(lost.pack)
        self.scatter(fleet)

    def _start_again(self, pack: int) -> Start:
        """Return where the learner of a pack begins: with its members as they should be now."""
        packs = range(len(self._comparisons.slots.packs))
        return Start(
            [self._comparisons.dispatch.first_loads(pack) if number == pack else () for number in packs],
            self._start.unheld_values,
            resumes=self._start.resumes,
        )

    def found(self, fleet: ReplacesLearners) -> None:
        """Go on after a learner has started again, which may have room for members that wait."""
        self.scatter(fleet)
        self._comparisons.change_slots()

    def scatter(self, fleet: ReplacesLearners) -> None:
        """Let packs that serve take the members of those that wait for a machine."""
        slots = self._comparisons.slots
        for pack in range(len(slots.packs)):
            if slots.of(pack) and slots.serving - {pack} and fleet.waits(pack):
                self._comparisons.scatter(pack)
                fleet.replace_learner(pack, self._start_again(pack))

    def leave(self, lost: LearnerLost) -> None:
        """Prepare for the loss of a machine that was announced: copies are made, and then its members go elsewhere."""
        self._leaving[lost.pack] = (lost, self._checkpoints.begun)
        self._checkpoints.ask_copy()

    def step(self, fleet: ReplacesLearners) -> None:
        """Leave machines whose loss was announced, once there are copies of what they hold."""
        for lost, begun in [*self._leaving.values()]:
            if self._checkpoints.whole > begun:
                self.replace(fleet, lost)

    def saved_text(self) -> str:
        """Say what a run that ends now is continued from."""
        newest = self._checkpoints.newest
        if newest is not None:
            age = time.time() - newest.time
            return f"It can be resumed from checkpoint {newest.path.name}, saved {age:.0f} s ago"
        return "It can be resumed from where it began" if self._continued else "It was never saved"

    def _refused(self, pack: int) -> str:
        """Return why a learner is not replaced; empty if it is."""
        if pack not in self._trained:
            return "this learner had not trained yet"
        now = time.monotonic()
        if sum(now - then < WITHIN_SECONDS for then in self._replaced) >= MOST_REPLACED:
            return f"{MOST_REPLACED} learners were replaced within an hour before"
        saved = self._checkpoints.newest is not None or self._continued
        if not saved and self._run_seconds() >= self._every_seconds:
            return "its members were never saved, and would have to begin with their initial weights"
        return ""
