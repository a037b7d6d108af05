"""Replaces learners that have died or hang: their members go on from the last checkpoint, while other packs train on.

    LearnerLost -> fence: it and its actors are killed   nothing that it has sent is read any more
                -> a checkpoint in progress is given up
                -> each member's state                   `population.origins` says which saved or drawn weights it has;
                                                         values, generation and frames are the population's
                -> a new learner and new actors          begin with these
                -> Dispatch.lost                         edits on their way are settled

The clock never steps back: what a member had trained since it was saved is lost, and journaled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.pbt.decisions import StateKey
from pbt_rl.population.origins import Drawn, Saved
from pbt_rl.population.population import Population
from pbt_rl.record.net_names import NetNames
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import LearnerLost, ReplacesLearners
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.start import Load, Start
from pbt_rl.wire.messages import LearnerReport
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader

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
        self._packs, self._every_seconds = resolved.plan.packs, resolved.config.save_every_seconds
        self._population, self._comparisons, self._checkpoints = population, comparisons, checkpoints
        self._recorder, self._run_seconds = recorder, run_seconds
        self._start: Start
        self._continued = False
        self.count = 0
        self._replaced: deque[float] = deque(maxlen=MOST_REPLACED)
        """time.monotonic() of the last times."""
        self._updates: dict[int, int] = {}
        """Pack -> updates of its members at the first report of its learner."""
        self._trained: set[int] = set()
        """Packs whose learner has learned."""

    def begin(self, start: Start, *, continued: bool) -> None:
        """Note where the processes of the run begin. continued: from a checkpoint."""
        self._start, self._continued = start, continued

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
        if lost.user_error and lost.pack not in self._trained:
            raise ConfigError(lost.text)
        self._checkpoints.abandon("a learner was lost")
        refused = self._refused(lost.pack)
        if refused:
            raise RunFailed(f"{lost.text}\nThe run ends: {refused}. {self.saved_text()}")
        try:
            start = self._present(fleet, lost.pack)
            fleet.replace_learner(lost.pack, start)
        except (ConfigError, OSError) as error:
            raise RunFailed(
                f"{lost.text}\nThe run ends: its members could not be restored: {error}. {self.saved_text()}"
            ) from error
        self._replaced.append(time.monotonic())
        self._trained.discard(lost.pack)
        self._updates.pop(lost.pack, None)
        self.count += 1
        self._recorder.pack_lost(lost, [self._account(m) for m in self._packs[lost.pack].members])
        self._population.learner_began(str(lost.pack))
        self._comparisons.origins.restored(self._packs[lost.pack].members)
        self._comparisons.note_lost(lost.pack, partial(self._fill, fleet))

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

    # -- the members ------------------------------------------------------------------------------------------

    def _present(self, fleet: ReplacesLearners, pack: int) -> Start:
        """Return where the learner of a pack begins: with its members as they should be now."""
        members, slots = self._population.members, self._comparisons.slots
        sources: list[tuple[int, Load]] = [
            (member, partial(self._member, fleet, member)) for member in self._packs[pack].members
        ]
        sources += [
            (key[0], partial(self._remembered, fleet, key))
            for key in sorted(self._comparisons.origins.kept)
            if key[0] in self._packs[pack].members
        ]
        return Start(
            [member.values for member in members],
            [member.generation for member in members],
            [tuple(slots.members_of(number)) for number in range(len(self._packs))],
            sources,
            resumes=self._start.resumes,
        )

    def _member(self, fleet: ReplacesLearners, number: int, names: NetNames) -> MemberSnapshot:
        """Return a member: weights of its origin, and else what the population knows of it."""
        member, origins = self._population.members[number], self._comparisons.origins
        own = self._saved(Saved(number), names)
        origin = origins.of(number).origin
        taken = own if origin == Saved(number) else self._weights(fleet, origin, names)
        known = None if own is None else own.header
        drawn_at = origins.drawn_at(number)
        header = SnapshotHeader(
            member=number,
            generation=member.generation,
            values=dict(member.values),
            frames=max(member.frames, known.frames if known else 0),
            steps=known.steps if known else 0,
            updates=known.updates if known else 0,
            fresh_frames=drawn_at if drawn_at is not None else known.fresh_frames if known else 0,
        )
        arrays = fleet.drawn(number, 0) if taken is None else taken.arrays
        return MemberSnapshot(header, arrays)

    def _remembered(self, fleet: ReplacesLearners, key: StateKey, names: NetNames) -> MemberSnapshot:
        kept = self._comparisons.origins.kept[key]
        snapshot = self._weights(fleet, kept.weights.origin, names)
        member, generation = key
        header = replace(snapshot.header, member=member, generation=generation, remembered=True)
        if kept.values is not None:
            header = replace(header, values=kept.values, frames=kept.own_frames)
        return replace(snapshot, header=header)

    def _weights(self, fleet: ReplacesLearners, origin: Saved | Drawn, names: NetNames) -> MemberSnapshot:
        """Return the snapshot of an origin; for drawn weights, one of a member that has done nothing."""
        if isinstance(origin, Saved):
            found = self._saved(origin, names)
            if found is not None:
                return found
            origin = Drawn(origin.member, 0)  # it had never held a slot
        header = SnapshotHeader(origin.member, origin.generation, {}, 0, 0, 0, 0)
        return MemberSnapshot(header, fleet.drawn(origin.member, origin.generation))

    def _saved(self, origin: Saved, names: NetNames) -> MemberSnapshot | None:
        """Return a saved state; None for a member that had none yet."""
        member, generation = origin.member, origin.generation
        newest = self._checkpoints.newest
        if newest is None:
            found = (load(names) for load in self._start.of([member]))
            wanted = (member, None) if generation is None else (member, generation)
            return next((one for one in found if _key(one.header) == wanted), None)
        if generation is not None:
            return newest.load_remembered(member, generation, names)
        there = any(saved.member == member for saved in newest.members())
        return newest.load(member, names) if there else None

    def _fill(self, fleet: ReplacesLearners, member: int) -> None:
        """Write the weights that a member of another pack was to get from the lost one into the exchange memory."""
        try:
            weights = self._weights(fleet, self._comparisons.origins.of(member).origin, fleet.names)
        except ConfigError as error:
            raise RunFailed(f"the weights for member {member} could not be restored: {error}") from error
        fleet.write_exchange(weights.arrays)

    def _account(self, member: int) -> dict[str, Any]:
        """Return what the journal notes of a member: frames of training that are lost, and what it goes on from."""
        weights, newest = self._comparisons.origins.of(member), self._checkpoints.newest
        origin = weights.origin
        if isinstance(origin, Drawn):
            source: dict[str, Any] = {"drawn": [origin.member, origin.generation]}
        else:
            source = {"checkpoint": newest.path.name if newest else None, "member": origin.member}
            if origin.generation is not None:
                source["generation"] = origin.generation
        return {"member": member, "frames_lost": weights.frames, "from": source}


def _key(header: SnapshotHeader) -> tuple[int, int | None]:
    return header.member, header.generation if header.remembered else None
