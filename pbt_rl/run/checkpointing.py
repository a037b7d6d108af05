"""Has the whole run saved: when it is due, when it is asked for, and at its end. Nothing waits for it.

    due -> state of the run        taken between two comparisons, while no decision is on its way
        -> BeginSnapshot           every learner notes its members as they are
        -> StageMember, again      members come one by one through the staging memory, between two optimiser steps
        -> CheckpointWriter        a thread writes them; the manifest comes last

With --nodes there are rounds between checkpoints that bring all members into the memory of this process (`copies`)
instead of onto the disk. Packs without a learner take no part: the caller gives the states of their members.

An edit that comes meanwhile is not delayed: the learner copies the member that it changes, if that is still to come.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from pbt_rl.errors import CheckpointBroken
from pbt_rl.population.population import Population
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoint_writer import CheckpointWriter, WriteFailed, Written
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.manifest import FILE, read_manifest
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.copies import CopyKeeper, CopySet
from pbt_rl.run.evaluations import Evaluations
from pbt_rl.run.fleet import Fleet, log_folder
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.wire.messages import BeginSnapshot, MemberStaged, SnapshotBegun, StageMember
from pbt_rl.wire.snapshot import MemberSnapshot

CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.01
AGAIN_SECONDS = 60.0
"""After which one that was to be kept is tried again; others are made when the next one is due."""
ROUND_SECONDS = 1.0
"""What a round of copies may wait for decisions on their way, or take longer than the one before."""


class Checkpointing:
    """Orders checkpoints and brings the members from the learners to the writer. Use it from one thread.

    state: returns all that is saved besides the learners', as JSON types. Raises OSError if the record of the run
    cannot be written. comparisons: their origins are told what members can be restored from.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        folder: RunFolder,
        population: Population,
        recorder: Recorder,
        state: Callable[[Fleet], dict[str, Any]],
        comparisons: Comparisons,
    ) -> None:
        config = resolved.config
        self._packs: list[int] = []
        """Those that take part in the present round, and..."""
        self._absent: Collection[MemberSnapshot] = ()
        """...the states of the members of all others."""
        self._every_seconds, self._every_frames = config.save_every_seconds, config.save_every_frames
        self._copy_seconds = config.copy_seconds if config.nodes else 0.0
        self._keep, self._folder = config.keep_checkpoints, folder
        self._population, self._recorder, self._state = population, recorder, state
        self._comparisons = comparisons
        self._evaluations = Evaluations(
            config,
            log_folder(resolved),
            lambda: recorder.evaluated_frames,
            recorder.evaluated,
            recorder.note,
        )
        self._evaluates = False
        """The checkpoint in progress is one that the best member plays from."""
        self._all_frames = 0
        self.newest: Checkpoint | None = None
        """The last one that is whole, of those that this process has written."""
        self.latest: Checkpoint | CopySet | None = None
        """The last states that are whole: `newest`, or copies that were made since."""
        self.begun = self.whole = 0
        """Rounds begun so far, and the number of the last one that is whole."""
        self._writer: CheckpointWriter | None = None
        self._copies = CopyKeeper()
        self._copying = self._copy_asked = False
        self._next_copy = math.inf
        self._next_seconds = math.inf
        self._next_frames = self._following(population.least_frames)
        self._not_before = 0.0
        """When one that is to be kept may be tried again."""
        self._asked = self._in_progress = False
        self._number = 0
        self._saved: dict[str, Any] = {}
        self._frames, self._kept = 0, False
        self._begun: dict[int, SnapshotBegun] = {}
        self._unasked: dict[int, int] = {}
        """Pack -> members that no StageMember was sent for yet."""
        self._free: deque[tuple[int, int]] = deque()
        """(pack, entry of its staging memory) that the writer has done with; it appends from its thread."""
        self._failed = False
        self.failure = ""
        """Why the last one was not written; empty if it was."""
        self.moved = 0
        """Rises with every member that was brought to the writer or written."""

    def _following(self, frames: int) -> int:
        """Return the next frames at which a checkpoint is kept; 0 for never."""
        return (frames // self._every_frames + 1) * self._every_frames if self._every_frames else 0

    # -- when -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Count the time from now on."""
        if self._every_seconds:
            self._next_seconds = time.monotonic() + self._every_seconds
        if self._copy_seconds and self.latest is None:
            self._next_copy = time.monotonic()

    def ask(self) -> None:
        """Have the run saved soon, due or not."""
        self._asked = True

    def ask_copy(self) -> None:
        """Have members copied soon, due or not."""
        self._copy_asked = True

    def ask_last(self) -> None:
        """Have the run saved once more, and never again: by the clock the next one may be due when one is written."""
        self._every_seconds, self._next_seconds = 0.0, math.inf
        self._copy_seconds, self._next_copy, self._copy_asked = 0.0, math.inf, False
        self.ask()

    @property
    def due(self) -> bool:
        """Whether a checkpoint or a round of copies should begin as soon as it can."""
        if self._in_progress:
            return False
        return self._due_on_disk or self._copy_asked or time.monotonic() >= self._next_copy

    @property
    def _due_on_disk(self) -> bool:
        evaluates = self._evaluations.due(self._population.least_frames)
        now = time.monotonic()
        reached = self._reached and now >= self._not_before
        return self._asked or reached or evaluates or now >= self._next_seconds

    @property
    def _reached(self) -> bool:
        return 0 < self._next_frames <= self._population.least_frames

    @property
    def busy(self) -> bool:
        """A checkpoint is asked for or in progress."""
        return self._asked or self._in_progress

    # -- how ------------------------------------------------------------------------------------------------

    def begin(self, fleet: Fleet, packs: Collection[int], absent: Collection[MemberSnapshot] = ()) -> None:
        """Begin to save the run, or to copy its members if no checkpoint is due.

        packs: those that take part. absent: the states of the members of all others. No decision may be on its way, and
        the fleet must be settled.
        """
        self._copying, self._copy_asked = not self._due_on_disk, False
        self._packs, self._absent = sorted(packs), absent
        if self._copy_seconds:
            self._next_copy = time.monotonic() + self._copy_period
        self._in_progress = True
        self._number += 1
        self.begun = self._number
        self._begun = {}
        self._free.clear()  # entries of the round before, released last of all: the new one asks for every entry itself
        self._comparisons.origins.begin()
        if not self._copying and not self._begin_on_disk(fleet):
            return
        for pack in self._packs:
            fleet.send(pack, BeginSnapshot(self._number))
        if not self._packs:
            self._all_begun(fleet)

    def _begin_on_disk(self, fleet: Fleet) -> bool:
        """Note what a checkpoint holds besides members; return whether that was possible."""
        self._frames, self._kept = self._population.least_frames, self._reached
        if self._kept:
            self._frames = self._frames // self._every_frames * self._every_frames
            self._next_frames = self._frames + self._every_frames
        self._evaluates = self._evaluations.take(self._population.least_frames)
        self._all_frames = self._population.frames
        self._asked = False
        self.start()
        try:
            self._saved = self._state(fleet)
        except OSError as error:
            self._ended(WriteFailed(self._frames, reason(error)))
            return False
        return True

    @property
    def _copy_period(self) -> float:
        """Seconds from one round of copies to the next, so that no copy becomes older than --copy-seconds."""
        took = 0.0 if not isinstance(self.latest, CopySet) else self.latest.ended - self.latest.begun
        return max(self._copy_seconds / 2, self._copy_seconds - 2 * took - ROUND_SECONDS)

    def note_begun(self, fleet: Fleet, pack: int, message: SnapshotBegun) -> None:
        """A learner has noted its members; when all have, they are staged."""
        if message.number != self._number or not self._in_progress:
            return  # of a checkpoint that was given up
        self._begun[pack] = message
        if len(self._begun) == len(self._packs):
            self._all_begun(fleet)

    def _all_begun(self, fleet: Fleet) -> None:
        self._unasked = {number: begun.members for number, begun in self._begun.items()}
        expected = sum(self._unasked.values()) + len(self._absent)
        if self._copying:
            self._copies.begin(expected)
        else:
            if self._writer is None:
                self._writer = CheckpointWriter(
                    self._folder.checkpoints, fleet.names, self._keep, self._recorder.note
                )
            self._writer.begin(self._frames, self._saved | {"learners": self._learners}, expected, self._kept)
        for snapshot in self._absent:
            self._add(snapshot, lambda: None)
        for number in self._packs:
            for entry in range(fleet.staging(number).entries):
                self._stage(fleet, number, entry)

    @property
    def _learners(self) -> list[dict[str, Any]]:
        """What the learner of each pack continues from; nothing for a pack that has none now."""
        packs = range(len(self._comparisons.slots.packs))
        return [self._begun[pack].learner if pack in self._begun else {} for pack in packs]

    def _stage(self, fleet: Fleet, pack: int, entry: int) -> None:
        if self._unasked.get(pack, 0):
            self._unasked[pack] -= 1
            fleet.send(pack, StageMember(entry))

    def note_staged(self, fleet: Fleet, pack: int, message: MemberStaged) -> None:
        """A member lies in the staging memory; its entry is used again once the member is written."""
        if pack not in self._begun:
            return  # of a checkpoint that was given up
        self.moved += 1
        arrays = fleet.staging(pack).views(message.entry)
        self._add(MemberSnapshot(message.header, arrays), lambda: self._free.append((pack, message.entry)))

    def _add(self, snapshot: MemberSnapshot, done: Callable[[], None]) -> None:
        if self._copying:
            self._copies.add(snapshot, done)
        else:
            assert self._writer is not None
            self._writer.add(snapshot, done)

    def step(self, fleet: Fleet) -> None:
        """Go on with a checkpoint in progress."""
        while self._free:
            self.moved += 1
            self._stage(fleet, *self._free.popleft())
        for copies in self._copies.poll():
            self._in_progress = False
            self._whole(copies)
        if self._writer is not None:
            self._take_results(self._writer)
        self._evaluations.step()

    def _take_results(self, writer: CheckpointWriter) -> None:
        for result in writer.poll():
            self._ended(result)

    def _ended(self, result: Written | WriteFailed) -> None:
        self._in_progress = False
        if isinstance(result, Written):
            try:
                self.newest = Checkpoint(result.path, read_manifest(result.path / FILE))
            except CheckpointBroken as error:  # somebody has removed it at once
                result = WriteFailed(result.frames, str(error))
        if isinstance(result, Written):
            self._whole(self.newest)
            self._recorder.checkpoint(result)
            self._failed, self.failure = False, ""
            if self._evaluates and self.newest is not None:
                self._evaluations.begin(self.newest, self._saved["best_member"], self._all_frames)
            return
        self._comparisons.origins.end(whole=False)
        self._make_up()
        self.failure = result.reason
        if not self._failed:
            self._failed = True  # said once; the next one is tried when it is due
            self._recorder.note(f"the run could not be saved: {result.reason}; training goes on")

    def _make_up(self) -> None:
        """Have another one kept instead, if the one that came to nothing was to be, by the option as it is now."""
        wanted = self._every_frames > 0 and self._next_frames == self._frames + self._every_frames
        if self._kept and wanted:
            self._next_frames, self._kept = self._frames, False
            self._not_before = time.monotonic() + AGAIN_SECONDS

    def _whole(self, states: Checkpoint | CopySet | None) -> None:
        """Note that members can be restored from these states from now on."""
        self.latest, self.whole = states, self._number
        self._comparisons.origins.end(whole=True)

    def abandon(self, reason: str) -> None:
        """Give up the checkpoint in progress, since a learner is lost, and ask for another one.

        Waits until nothing of it is written any more, CLOSE_SECONDS at most.
        """
        self._copy_asked = self._copy_asked or (self._in_progress and self._copying)
        self._asked = self._asked or (self._in_progress and not self._copying)
        self._unasked, self._begun = {}, {}
        self._free.clear()
        self._copies.abandon()
        if self._in_progress and not self._copying:
            self._make_up()
        self._number += 1
        self._in_progress = self._writer is not None and self._writer.busy
        if self._writer is None or not self._in_progress:
            self._comparisons.origins.end(whole=False)
            return
        self._writer.abandon(reason)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._in_progress and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._take_results(self._writer)

    def finish_evaluation(self, patient: Callable[[], bool]) -> None:
        """Wait for games beside training while `patient`, for seconds, and end them."""
        self._evaluations.finish(patient)

    def close(self, *, at_once: bool = False) -> None:
        """End the writer. at_once: what it is writing is given up."""
        if self._writer is not None:
            self._writer.close(0.0 if at_once else CLOSE_SECONDS)
            self._take_results(self._writer)
