"""Has the whole run saved: when it is due, when it is asked for, and at its end. Nothing waits for it.

    due -> state of the run        taken between two comparisons, while no decision is on its way
        -> every state is pinned   those that learners hold are to be saved (`Dispatch.begin_checkpoint`)
        -> Save, again             members come one by one into few entries of the pool, between two optimiser steps
        -> CheckpointWriter        a thread writes them; the manifest comes last
        -> states are unpinned     from then on members go on from these if their learner is lost

Packs without a learner save nothing: their members are what they will go on from.

A decision that comes meanwhile is not delayed: a member that it changes is saved before, if that is still to come.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pbt_rl.actors.messages import LearnerSaved, Saved, SaveLearner
from pbt_rl.actors.store import MemberSnapshot, SnapshotHeader
from pbt_rl.errors import CheckpointBroken
from pbt_rl.play.games.run import Evaluations
from pbt_rl.population.population import Population
from pbt_rl.population.store import Elsewhere, Key
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoint_writer import CheckpointWriter, WriteFailed, Written
from pbt_rl.record.checkpoints import FILE, Checkpoint, NetNames, read_manifest
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import Fleet, log_folder
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun

CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.01
AGAIN_SECONDS = 60.0
"""After which one that was to be kept is tried again; others are made when the next one is due."""

STAGING_BYTES = 1 << 26
"""Memory for members of a pack on their way to the disk, unless one is larger."""


@dataclass(eq=False)
class Round:
    """One checkpoint. number: among those of the process. packs: those that take part."""

    number: int
    packs: frozenset[int]
    frames: int
    kept: bool = False
    """It is never deleted to make room for newer ones."""
    evaluates: bool = False
    """The best member plays from it."""
    all_frames: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """What a checkpoint holds besides members and learners."""
    learners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the learner of each pack continues from."""
    wanted: list[tuple[Key, SnapshotHeader | None]] = field(default_factory=list)
    to_come: set[Key] = field(default_factory=set)
    """States that their learner is still to save; pinned, as is all that is being written."""
    written: list[tuple[Key, SnapshotHeader]] = field(default_factory=list)
    """What the writer was given."""
    began_members: bool = False
    """All learners have said what they continue from."""


class Checkpointing:
    """Orders checkpoints and brings the members from the learners to the writer. Use it from one thread."""

    def __init__(
        self,
        resolved: ResolvedRun,
        folder: RunFolder,
        population: Population,
        recorder: Recorder,
        comparisons: Comparisons,
    ) -> None:
        config = resolved.config
        self._every_seconds, self._every_frames = config.save_every_seconds, config.save_every_frames
        self._at_once = config.mode == "serial"
        """Nothing goes on until all members are saved, so that the checkpoint is of one moment."""
        self._keep, self._folder = config.keep_checkpoints, folder
        self._population, self._recorder = population, recorder
        self._dispatch = comparisons.dispatch
        self._packs = len(resolved.plan.packs)
        self.games = Evaluations(
            config, log_folder(resolved), lambda: recorder.evaluated_frames, recorder.evaluated, recorder.note
        )
        """Fresh games of members that are saved."""
        self._names: NetNames
        self.newest: Checkpoint | None = None
        """The last one that is whole, of those that this process has written."""
        self.begun = 0
        """Rounds so far."""
        self._round: Round | None = None
        self._given_up = False
        """The writer has still to end a checkpoint that was given up."""
        self._writer: CheckpointWriter | None = None
        self._next_seconds = math.inf
        self._next_frames = self._following(population.least_frames)
        self._not_before = 0.0
        """When one that is to be kept may be tried again."""
        self._asked = False
        self._done: deque[tuple[int, Key]] = deque()
        """(pack or -1, state) that the writer has done with; it appends from its thread."""
        self.failure = ""
        """Why the last one was not written; empty if it was."""
        self.moved = 0
        """Rises with every member that was brought to the writer or written."""

    def set_names(self, names: NetNames) -> None:
        """Say where each parameter lies in a member's flat vector. Before the first checkpoint."""
        self._names = names

    def _following(self, frames: int) -> int:
        """Return the next frames at which a checkpoint is kept; 0 for never."""
        return (frames // self._every_frames + 1) * self._every_frames if self._every_frames else 0

    # -- when -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Count the time from now on."""
        if self._every_seconds:
            self._next_seconds = time.monotonic() + self._every_seconds

    def ask(self) -> None:
        """Have the run saved soon, due or not."""
        self._asked = True

    def ask_last(self) -> None:
        """Have the run saved once more, and never again: by the clock the next one may be due when one is written."""
        self._every_seconds, self._next_seconds = 0.0, math.inf
        self.ask()

    @property
    def due(self) -> bool:
        """Whether a checkpoint should begin as soon as it can."""
        if self._in_progress:
            return False
        evaluates = self.games.due(self._population.least_frames)
        now = time.monotonic()
        reached = self._reached and now >= self._not_before
        return self._asked or reached or evaluates or now >= self._next_seconds

    @property
    def _reached(self) -> bool:
        return 0 < self._next_frames <= self._population.least_frames

    @property
    def _in_progress(self) -> bool:
        return self._round is not None or self._given_up

    @property
    def busy(self) -> bool:
        """A checkpoint is asked for or in progress."""
        return self._asked or self._in_progress

    @property
    def waits_for_learners(self) -> bool:
        """Whether a learner has yet to say what it continues from."""
        return self._round is not None and len(self._round.learners) < len(self._round.packs)

    # -- how ------------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin to save the run.

        packs: those that have a learner. make_state: returns all that a checkpoint holds besides the learners', as JSON
        types; called at once. It raises OSError if the record of the run cannot be written. No decision may be on its
        way, and the fleet must be settled.
        """
        self.begun += 1
        current = self._round = Round(self.begun, frozenset(packs), self._population.least_frames)
        if not self._note_state(current, make_state):
            return
        current.wanted = self._dispatch.begin_checkpoint(packs, to_disk=True)
        current.to_come = {key for key, header in current.wanted if header is None}
        for pack in sorted(packs):
            fleet.send(pack, SaveLearner(current.number))
        if not packs:
            self._begin_members(current)

    def _note_state(self, current: Round, make_state: Callable[[], dict[str, Any]]) -> bool:
        """Note what a checkpoint holds besides members; return whether that was possible."""
        current.kept = self._reached
        if current.kept:
            current.frames = current.frames // self._every_frames * self._every_frames
            self._next_frames = current.frames + self._every_frames
        frames = self._population.least_frames
        current.evaluates = self.games.due(frames) and self.games.take(frames)
        current.all_frames = self._population.frames
        self._asked = False
        self.start()
        try:
            current.state = make_state()
        except OSError as error:
            self._ended(WriteFailed(current.frames, reason(error)), current)
            return False
        return True

    def note_learner_saved(self, pack: int, message: LearnerSaved) -> None:
        """A learner has said what it continues from; when all have, their members are saved."""
        current = self._round
        if current is None or message.number != current.number:
            return  # of a checkpoint that was given up
        current.learners[pack] = message.learner
        if len(current.learners) == len(current.packs):
            self._begin_members(current)

    def _begin_members(self, current: Round) -> None:
        current.began_members = True
        if self._writer is None:
            self._writer = CheckpointWriter(
                self._folder.checkpoints, self._names, self._keep, self._recorder.note
            )
        learners = [current.learners.get(pack, {}) for pack in range(self._packs)]
        state = current.state | {"learners": learners}
        self._writer.begin_checkpoint(current.frames, state, len(current.wanted), current.kept)
        for key, header in current.wanted:
            if header is not None:
                self._add(current, -1, key, _counted(header, self._dispatch.store.header(key)))
            elif key not in current.to_come:  # saved already, since it has changed
                self._add(current, -1, key, self._dispatch.store.header(key))
        for pack in sorted(current.packs):
            for _ in range(self._entries(current)):
                self._dispatch.save_next(pack)

    def _entries(self, current: Round) -> int:
        """Return how many members of a pack may be on their way at the same time."""
        if self._at_once:
            return len(current.wanted)
        return max(1, STAGING_BYTES // self._dispatch.store.pool.entry_bytes)

    def note_saved(self, pack: int, message: Saved) -> None:
        """A state lies in the pool, perhaps of the checkpoint."""
        current = self._round
        if current is None or message.key not in current.to_come:
            return
        self.moved += 1
        current.to_come.remove(message.key)
        if current.began_members:
            self._add(current, pack, message.key, self._dispatch.store.header(message.key))

    def _add(self, current: Round, pack: int, key: Key, header: SnapshotHeader) -> None:
        """Write a state."""
        assert self._writer is not None
        current.written.append((key, header))
        arrays = self._dispatch.store.read(key).arrays
        self._writer.add(MemberSnapshot(header, arrays), lambda: self._done.append((pack, key)))

    def step(self) -> None:
        """Go on with a checkpoint in progress."""
        self._let_go()
        if self._writer is not None:
            self._take_results(self._writer)
        self.games.step()

    def _let_go(self) -> None:
        """Release the states that the writer has done with, and have the next ones saved."""
        while self._done:
            pack, key = self._done.popleft()
            self.moved += 1
            current = self._round
            if current is not None and pack >= 0:
                # Its bytes will be in the checkpoint; nobody reads it before that is whole.
                self._dispatch.store.put_elsewhere(key, Elsewhere(_unread))
                self._dispatch.save_next(pack)
            self._dispatch.store.unpin(key)

    def _take_results(self, writer: CheckpointWriter) -> None:
        for result in writer.poll():
            self._let_go()
            if self._round is not None:
                self._ended(result, self._round)
            elif isinstance(result, WriteFailed):
                self._note_failure(result)
            self._given_up = False

    def _ended(self, result: Written | WriteFailed, current: Round) -> None:
        if isinstance(result, Written):
            try:
                self.newest = Checkpoint(result.path, read_manifest(result.path / FILE))
            except CheckpointBroken as error:  # somebody has removed it at once
                result = WriteFailed(result.frames, str(error))
        if isinstance(result, WriteFailed):
            self._give_up(current)
            self._note_failure(result)
            return
        assert self.newest is not None
        for key, header in current.written:
            self._dispatch.store.put_elsewhere(key, _in_checkpoint(self.newest, header, self._names))
        self._whole(current.number)
        self._recorder.checkpoint(result)
        self.failure = ""
        if current.evaluates:
            self.games.begin_games(self.newest, current.state["best_member"], current.all_frames)

    def _note_failure(self, result: WriteFailed) -> None:
        if not self.failure:  # said once; the next one is tried when it is due
            self._recorder.remark(f"the run could not be saved: {result.reason}; training goes on")
        self.failure = result.reason

    def _whole(self, _number: int) -> None:
        """Note that members go on from these states from now on."""
        self._round = None
        self._dispatch.end_checkpoint(whole=True)

    def _give_up(self, current: Round) -> None:
        """Let go of the states of a round that comes to nothing, but for those that the writer has still."""
        store = self._dispatch.store
        self._round = None
        written = {key for key, _ in current.written}
        for key, header in current.wanted:
            if header is None:  # new in this round: it is nowhere else
                store.put_elsewhere(key, None)
        self._dispatch.end_checkpoint(whole=False)
        for key, _ in current.wanted:
            if key not in written:
                store.unpin(key)
        # Have another one kept instead, if it was to be, by the option as it is now.
        wanted = self._every_frames > 0 and self._next_frames == current.frames + self._every_frames
        if current.kept and wanted:
            self._next_frames = current.frames
            self._not_before = time.monotonic() + AGAIN_SECONDS

    def abandon(self, reason: str) -> None:
        """Give up the checkpoint in progress, since a learner is lost, and ask for another one.

        Waits until nothing of it is written any more, CLOSE_SECONDS at most.
        """
        current = self._round
        if current is None:
            return
        self._asked = True
        if self._writer is not None and self._writer.busy:
            self._writer.abandon(reason)
            deadline = time.monotonic() + CLOSE_SECONDS
            while self._round is current and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                self._take_results(self._writer)
            self._given_up = self._round is current
        if self._round is current:
            self._give_up(current)

    def close(self, *, at_once: bool = False) -> None:
        """End the writer. at_once: what it is writing is given up."""
        if self._writer is not None:
            self._writer.close(0.0 if at_once else CLOSE_SECONDS)
            self._take_results(self._writer)


def _counted(header: SnapshotHeader, saved: SnapshotHeader) -> SnapshotHeader:
    """Return a header with the counts of its state, which its learner may have saved since the checkpoint began."""
    own = saved if saved.member == header.member else header
    frames, steps = max(header.frames, own.frames), max(header.steps, own.steps)
    updates = max(header.updates, own.updates)
    return replace(header, frames=frames, steps=steps, updates=updates, fresh_frames=saved.fresh_frames)


def _in_checkpoint(checkpoint: Checkpoint, header: SnapshotHeader, names: NetNames) -> Elsewhere:
    """Say that a state is in a checkpoint."""
    source: dict[str, Any] = {"checkpoint": checkpoint.path.name, "member": header.member}
    if not header.remembered:
        return Elsewhere(partial(checkpoint.load, header.member, names), source)
    source["generation"] = header.generation
    return Elsewhere(partial(checkpoint.load_remembered, header.member, header.generation, names), source)


def _unread() -> MemberSnapshot:
    raise AssertionError("the checkpoint is not whole")
