"""Replaces learners that have died or hang: their members go on as they were last saved, while other packs train on.

    LearnerLost -> fence: it and its actors are killed   nothing that it has sent is read any more
                -> a checkpoint in progress is given up
                -> each member's state                   see `run.last_states`
                -> a new learner and new actors          begin with these
                -> Dispatch.lost                         edits on their way are settled

If a machine is lost and no other one is free, the members go to the packs that serve, and wait there for a slot. The
pack stays without members until there is a machine for it; then members that wait move to its slots (`Slots.journeys`).

The clock never steps back: what a member had trained since it was saved is lost, and journaled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.population.population import Population
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import LearnerLost, ReplacesLearners
from pbt_rl.run.last_states import LastStates
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.start import Start
from pbt_rl.wire.messages import LearnerReport
from pbt_rl.wire.snapshot import MemberSnapshot

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
        self._moments = resolved.config.algorithm.optimizer.moments
        self._population, self._comparisons, self._checkpoints = population, comparisons, checkpoints
        self._recorder, self._run_seconds = recorder, run_seconds
        self._states: LastStates
        self._continued = False
        self.count = 0
        self._replaced: deque[float] = deque(maxlen=MOST_REPLACED)
        """time.monotonic() of the last times."""
        self._updates: dict[int, int] = {}
        """Pack -> updates of its members at the first report of its learner."""
        self._trained: set[int] = set()
        """Packs whose learner has learned."""
        self._leaving: dict[int, tuple[LearnerLost, int]] = {}
        """Packs whose machine is about to be taken away -> (why, rounds of copies that were begun before)."""

    def begin(self, start: Start, *, continued: bool) -> None:
        """Note where the processes of the run begin. continued: from a checkpoint."""
        self._states = LastStates(
            self._population, self._comparisons, self._checkpoints, start, self._moments
        )
        self._continued = continued

    def note_report(self, pack: int, report: LearnerReport) -> None:
        """Note that a learner trains: one that is lost before is not replaced."""
        updates = sum(stats.updates for stats in report.members)
        if updates > self._updates.setdefault(pack, updates):
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
            fleet.replace_learner(lost.pack, self._states.start(fleet, lost.pack))
        except (ConfigError, OSError) as error:
            raise RunFailed(
                f"{lost.text}\nThe run ends: its members could not be restored: {error}. {self.saved_text()}"
            ) from error
        if not lost.machine_lost:
            self._replaced.append(time.monotonic())
        self._trained.discard(lost.pack)
        self._updates.pop(lost.pack, None)
        self.count += 1
        members = self._comparisons.slots.membership.of(lost.pack)
        self._recorder.pack_lost(lost, [self._states.account(m) for m in members])
        self._population.learner_began(str(lost.pack))
        self._comparisons.origins.restored(members)
        self._comparisons.note_lost(lost.pack, partial(self._fill, fleet))
        self.scatter(fleet)

    def found(self, fleet: ReplacesLearners) -> None:
        """Go on after a learner has started again, which may have room for members that wait."""
        self.scatter(fleet)
        self._comparisons.change_slots()

    def scatter(self, fleet: ReplacesLearners) -> None:
        """Let packs that serve admit the members of those that wait for a machine."""
        slots = self._comparisons.slots
        for pack in range(len(slots.packs)):
            members = slots.membership.of(pack)
            if not members or not slots.serving - {pack} or not fleet.waits(pack):
                continue
            admissions = [self._states.admission(fleet, fleet.names, member) for member in members]
            self._comparisons.dispatch.lost(pack, partial(self._fill, fleet))
            slots.scatter(pack)
            fleet.replace_learner(pack, self._states.start(fleet, pack))
            self._comparisons.admit_all(admissions)

    def leave(self, lost: LearnerLost) -> None:
        """Prepare for the loss of a machine that was announced: copies are made, and then its members go elsewhere."""
        self._leaving[lost.pack] = (lost, self._checkpoints.begun)
        self._checkpoints.ask_copy()

    def step(self, fleet: ReplacesLearners) -> None:
        """Leave machines whose loss was announced, once there are copies of what they hold."""
        for lost, begun in [*self._leaving.values()]:
            if self._checkpoints.whole > begun:
                self.replace(fleet, lost)

    def absent_states(self, fleet: ReplacesLearners, packs: Iterable[int]) -> list[MemberSnapshot]:
        """Return the members of packs that do not serve, as they will go on."""
        return [state for pack in packs for state in self._states.of_pack(fleet, fleet.names, pack)]

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

    def _fill(self, fleet: ReplacesLearners, member: int) -> int:
        """Write the weights that a member of another pack was to get from the lost one into the exchange memory.

        Return the donor's frames when they were drawn.
        """
        origins = self._comparisons.origins
        try:
            weights = self._states.weights(fleet, origins.of(member).origin, fleet.names)
        except ConfigError as error:
            raise RunFailed(f"the weights for member {member} could not be restored: {error}") from error
        fleet.write_exchange(weights.arrays)
        drawn_at = origins.drawn_at(member)
        return weights.header.fresh_frames if drawn_at is None else drawn_at
