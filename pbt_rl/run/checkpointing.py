"""Checkpoints of the whole run: periodic, on request, and at its end. In async mode training continues meanwhile.

    due -> state of the run           captured between two comparisons, while no decision is in flight
        -> every state is referenced  those that learners hold will be saved (`Dispatch.begin_checkpoint`)
        -> Save, repeated             members go one by one into a few pool entries, between two optimiser steps
        -> CheckpointWriter           a thread writes them, the manifest last
        -> references are dropped     from then on these are the restore points if a learner is lost

Packs without a learner save nothing: their members' restore points are written.

A decision is not delayed by a checkpoint: a member that it changes is saved first, if it was not saved yet.

On a cluster, members are also copied into the pool between checkpoints, as restore points, because nodes can be lost.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pbt_rl.actors.messages import LearnerSaved, SaveLearner
from pbt_rl.actors.store import MemberSnapshot, SnapshotHeader
from pbt_rl.errors import CheckpointBroken
from pbt_rl.play.games.run import Evaluations
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.store import Elsewhere, Key, Pin, State
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoint_writer import CheckpointWriter, WriteFailed, Written
from pbt_rl.record.checkpoints import FILE, Checkpoint, NetNames, read_manifest
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.fleet import Fleet, log_folder
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun

CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.01
AGAIN_SECONDS = 60.0
"""Delay before the retry of a failed checkpoint that is kept. Others are not retried before the next one is due."""
COPY_SECONDS = 1.0
"""Allowance for copies that wait for decisions in flight, or that take longer than the last ones."""

STAGING_BYTES = 1 << 26
"""Memory per pack for members on the way to disk; at least one member."""


@dataclass(eq=False)
class Due:
    """Schedule of checkpoints and of copies of members. 0 seconds or frames: only on request."""

    every_seconds: float
    every_frames: int
    copy_seconds: float
    """Maximum age of copies."""
    next_frames: int = field(default=0, init=False)
    """Population frames of the next checkpoint that is kept."""
    next_seconds: float = field(default=math.inf, init=False)
    next_copies: float = field(default=math.inf, init=False)
    not_before: float = field(default=0.0, init=False)
    """Earliest retry of a checkpoint that is kept (`time.monotonic`)."""
    asked: bool = field(default=False, init=False)
    copies_asked: bool = field(default=False, init=False)
    took: float = field(default=0.0, init=False)
    """Duration of the last copies in seconds."""

    def start(self, frames: int) -> None:
        """Start the schedule; copies are due immediately. frames: the population's."""
        self._wait()
        self.next_frames = self._following(frames)
        if self.copy_seconds:
            self.next_copies = time.monotonic()

    def _following(self, frames: int) -> int:
        return (frames // self.every_frames + 1) * self.every_frames if self.every_frames else 0

    def saving(self, frames: int) -> bool:
        """True if a checkpoint is due."""
        now = time.monotonic()
        return self.asked or (self.reached(frames) and now >= self.not_before) or now >= self.next_seconds

    def reached(self, frames: int) -> bool:
        """True if a checkpoint that is kept is due by frames."""
        return 0 < self.next_frames <= frames

    @property
    def copying(self) -> bool:
        """True if copies are due."""
        return self.copies_asked or time.monotonic() >= self.next_copies

    def begun(self) -> None:
        """Record that a checkpoint has begun."""
        self.asked = False
        self._wait()

    def _wait(self) -> None:
        self.next_seconds = time.monotonic() + self.every_seconds if self.every_seconds else math.inf

    def kept(self, frames: int) -> int:
        """Schedule the next checkpoint that is kept. Return the frames that name this one."""
        self.next_frames = self._following(frames)
        return self.next_frames - self.every_frames

    def not_kept(self, frames: int) -> None:
        """Schedule a retry after AGAIN_SECONDS, unless the option has changed. frames: from `kept`."""
        if self.every_frames and self.next_frames == frames + self.every_frames:
            self.next_frames, self.not_before = frames, time.monotonic() + AGAIN_SECONDS

    def copies_begun(self) -> None:
        """Schedule the next copies, after copies or a checkpoint have begun."""
        self.copies_asked = False
        if self.copy_seconds:
            least = self.copy_seconds / 2
            period = max(least, self.copy_seconds - 2 * self.took - COPY_SECONDS)
            self.next_copies = time.monotonic() + period

    def ask_last(self) -> None:
        """Request a last checkpoint and stop the schedule. Otherwise another could fall due while it is written."""
        self.every_seconds = self.copy_seconds = 0.0
        self.next_seconds = self.next_copies = math.inf
        self.asked, self.copies_asked = True, False


@dataclass(eq=False)
class Round:
    """One checkpoint, or one set of copies. number: its index in this process. packs: those with a learner."""

    number: int
    packs: frozenset[int]
    frames: int
    to_disk: bool
    kept: bool = False
    """True if it is never deleted in favour of newer ones."""
    evaluates: bool = False
    """True if the best member is evaluated from it."""
    all_frames: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """State of the run besides members and learners."""
    learners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Pack -> saved state of its learner."""
    wanted: list[tuple[Pin, SnapshotHeader | None]] = field(default_factory=list)
    """States for the writer, until all learners have sent their own state. Header None: not saved yet."""
    to_come: dict[Key, Pin] = field(default_factory=dict)
    """States that learners have not saved yet."""
    new: list[State] = field(default_factory=list)
    """States that were created for it."""
    written: list[tuple[State, SnapshotHeader]] = field(default_factory=list)
    """States that were passed to the writer."""
    began: float = field(default_factory=time.monotonic)


class Checkpointing:
    """Scheduler of checkpoints, which passes members from learners to the writer. Use it from one thread."""

    def __init__(
        self, resolved: ResolvedRun, folder: RunFolder, dispatch: Dispatch, recorder: Recorder
    ) -> None:
        config = resolved.config
        copy_seconds = config.copy_seconds if resolved.spread else 0.0
        self.when = Due(config.save_every_seconds, config.save_every_frames, copy_seconds)
        self._at_once = config.mode == "serial"
        """True if training waits until all members are saved, so that the checkpoint has one point in time."""
        self._dispatch, self._recorder = dispatch, recorder
        self.games = Evaluations(
            config, log_folder(resolved), lambda: recorder.evaluated_frames, recorder.evaluated, recorder.note
        )
        """Evaluation episodes of saved members."""
        self.names: NetNames
        """Positions of the parameters in a member's flat vector. Set before the first checkpoint."""
        self.newest: Checkpoint | None = None
        """Last complete checkpoint of this process."""
        self.begun = self.whole = 0
        """Rounds so far, and the number of the last complete one."""
        self._round: Round | None = None
        self._new_writer = partial(CheckpointWriter, folder.checkpoints, keep=config.keep_checkpoints)
        self._writer: CheckpointWriter | None = None
        self._writing: deque[tuple[int, Pin]] = deque()
        """(pack or -1, reference) of the states that the writer holds, in order."""
        self._done: deque[None] = deque()
        """One element per state that the writer has finished, appended by its thread."""
        self.failure = ""
        """Reason why the last checkpoint failed, or empty."""
        self.moved = 0
        """Progress counter: rises when a member is saved or written."""

    # -- when -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the schedule."""
        self.when.start(self._frames)

    @property
    def _frames(self) -> int:
        return self._dispatch.population.least_frames

    @property
    def due(self) -> bool:
        """True if a round should begin as soon as possible."""
        return not self._in_progress and (self._saves or self.when.copying)

    @property
    def _saves(self) -> bool:
        """True if the next round is a checkpoint, not copies."""
        return self.games.due(self._frames) or self.when.saving(self._frames)

    @property
    def _in_progress(self) -> bool:
        """True also while the writer ends an abandoned checkpoint."""
        return self._round is not None or (self._writer is not None and self._writer.busy)

    @property
    def busy(self) -> bool:
        """True if a checkpoint is requested or in progress."""
        return self.when.asked or self._in_progress

    @property
    def waits_for_learners(self) -> bool:
        """True if a learner has not sent its own state yet."""
        current = self._round
        return current is not None and current.to_disk and len(current.learners) < len(current.packs)

    # -- how ------------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin a checkpoint, or copies of the members if no checkpoint is due.

        packs: those that have a learner. make_state: returns the state of the run without the learners', as JSON types.
        It is called immediately and raises OSError if the run's record cannot be written. No decision may be in flight,
        and the fleet must be settled.
        """
        to_disk = self._saves or not self.when.copying
        self.begun += 1
        self.when.copies_begun()
        current = self._round = Round(self.begun, frozenset(packs), self._frames, to_disk)
        if to_disk and not self._note_state(current, make_state):
            return
        wanted = self._dispatch.begin_checkpoint(packs, to_disk=to_disk)
        current.to_come = {pin.state.key: pin for pin, header in wanted if header is None}
        current.new = [pin.state for pin in current.to_come.values()]
        if not to_disk:
            for pack in sorted(packs):
                while self._dispatch.save_next(pack):
                    pass
            self._end_copies(current)
            return
        current.wanted = wanted
        if not wanted:
            self._ended(WriteFailed(current.frames, "no member has trained yet"), current)
            return
        for pack in sorted(packs):
            fleet.send(pack, SaveLearner(current.number))
        if not packs:
            self._begin_members(current)

    def _note_state(self, current: Round, make_state: Callable[[], dict[str, Any]]) -> bool:
        """Capture the state of the run besides its members. Return False if that failed."""
        frames = current.frames
        current.kept = self.when.reached(frames)
        if current.kept:
            current.frames = self.when.kept(frames)
        current.evaluates = self.games.due(frames) and self.games.take(frames)
        current.all_frames = self._dispatch.population.frames
        self.when.begun()
        try:
            current.state = make_state()
        except OSError as error:
            self._ended(WriteFailed(current.frames, reason(error)), current)
            return False
        return True

    def note_learner_saved(self, pack: int, message: LearnerSaved) -> None:
        """Record the state of a learner. After the last one, begin to save the members."""
        current = self._round
        if current is None or message.number != current.number:
            return  # of an abandoned checkpoint
        current.learners[pack] = message.learner
        if len(current.learners) == len(current.packs):
            self._begin_members(current)

    def _begin_members(self, current: Round) -> None:
        if self._writer is None:
            self._writer = self._new_writer(names=self.names, warn=self._recorder.note)
        learners = [current.learners.get(pack, {}) for pack in range(len(self._dispatch.slots.packs))]
        state = current.state | {"learners": learners}
        wanted, current.wanted = current.wanted, []
        self._writer.begin_checkpoint(current.frames, state, len(wanted), current.kept)
        for pin, header in wanted:
            if header is not None:
                self._add(current, -1, pin, _counted(header, pin.state.header))
            elif pin.state.key not in current.to_come:  # saved already, because a decision has changed it
                self._add(current, -1, pin, pin.state.header)
        # In serial mode training waits until all are saved.
        few = max(1, STAGING_BYTES // self._dispatch.store.pool.entry_bytes)
        for pack in sorted(current.packs):
            for _ in range(len(wanted) if self._at_once else few):
                self._dispatch.save_next(pack)

    def note_saved(self, pack: int, state: State) -> None:
        """Record that a state is in the pool. Pass it to the writer if it belongs to the round."""
        current = self._round
        pin = None if current is None else current.to_come.pop(state.key, None)
        if current is None or pin is None:
            return
        self.moved += 1
        if not current.to_disk:
            self._end_copies(current)
        elif not current.wanted:
            self._add(current, pack, pin, state.header)

    def _end_copies(self, current: Round) -> None:
        if not current.to_come:
            self.when.took = time.monotonic() - current.began
            self._whole(current)

    def _add(self, current: Round, pack: int, pin: Pin, header: SnapshotHeader) -> None:
        """Pass a state to the writer."""
        assert self._writer is not None
        current.written.append((pin.state, header))
        self._writing.append((pack, pin))
        arrays = pin.state.read().arrays
        self._writer.add(MemberSnapshot(header, arrays), partial(self._done.append, None))

    def step(self) -> None:
        """Continue a checkpoint in progress."""
        self._let_go()
        if self._writer is not None:
            self._take_results(self._writer)
        self.games.step()

    def _let_go(self) -> None:
        """Drop the states that the writer has finished, and request the next ones."""
        while self._done:
            self._done.popleft()
            pack, pin = self._writing.popleft()
            self.moved += 1
            if self._round is not None and pack >= 0:
                # Its bytes will be in the checkpoint; it is not read before the checkpoint is complete.
                pin.state.put_elsewhere(Elsewhere(_unread))
                self._dispatch.save_next(pack)

    def _take_results(self, writer: CheckpointWriter) -> None:
        for result in writer.poll():
            self._let_go()
            self._ended(result, self._round)

    def _ended(self, result: Written | WriteFailed, current: Round | None) -> None:
        """Record the result of a checkpoint. current: None if it was abandoned."""
        if isinstance(result, Written):
            try:
                self.newest = Checkpoint(result.path, read_manifest(result.path / FILE))
            except CheckpointBroken as error:  # it was deleted right after it was written
                result = WriteFailed(result.frames, str(error))
        if isinstance(result, WriteFailed):
            if current is not None:
                self._give_up(current)
            if not self.failure:  # one warning for repeated failures; the next one is tried when due
                self._recorder.remark(f"the run could not be saved: {result.reason}; training goes on")
            self.failure = result.reason
            return
        self._recorder.checkpoint(result)
        if current is None:  # abandoned, but completed before the writer stopped
            return
        assert self.newest is not None
        for state, header in current.written:
            state.put_elsewhere(_in_checkpoint(self.newest, header, self.names))
        self._whole(current)
        self.failure = ""
        if current.evaluates:
            self.games.begin_games(self.newest, current.state["best_member"], current.all_frames)

    def _whole(self, current: Round) -> None:
        """End a complete round: its states become the restore points."""
        self._round, self.whole = None, current.number
        self._dispatch.end_checkpoint(whole=True)

    def _give_up(self, current: Round) -> None:
        """Drop an abandoned round, except the states that the writer still holds."""
        self._round = None
        for state in current.new:
            state.put_elsewhere(None)  # there is no other copy
        self._dispatch.end_checkpoint(whole=False)
        if current.kept:
            self.when.not_kept(current.frames)

    def abandon(self, reason: str) -> None:
        """Abandon the round in progress, because a learner is lost, and request another one.

        Waits until the writer has stopped, CLOSE_SECONDS at most.
        """
        current = self._round
        if current is None:
            return
        if current.to_disk:
            self.when.asked = True
        else:
            self.when.copies_asked = True
        if current.to_disk and self._writer is not None and self._writer.busy:
            self._writer.abandon(reason)
            deadline = time.monotonic() + CLOSE_SECONDS
            while self._round is current and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                self._take_results(self._writer)
        if self._round is current:
            self._give_up(current)

    def close(self, *, at_once: bool = False) -> None:
        """Stop the writer. at_once: abandon the checkpoint in progress."""
        if self._writer is not None:
            self._writer.close(0.0 if at_once else CLOSE_SECONDS)
            self._take_results(self._writer)


def _counted(header: SnapshotHeader, saved: SnapshotHeader) -> SnapshotHeader:
    """Return the header with newer counts. The learner may have saved the state since the checkpoint began."""
    own = saved if saved.member == header.member else header
    frames, steps = max(header.frames, own.frames), max(header.steps, own.steps)
    updates = max(header.updates, own.updates)
    return replace(header, frames=frames, steps=steps, updates=updates, fresh_frames=saved.fresh_frames)


def _in_checkpoint(checkpoint: Checkpoint, header: SnapshotHeader, names: NetNames) -> Elsewhere:
    """Return the location of a state in a checkpoint."""
    source: dict[str, Any] = {"checkpoint": checkpoint.path.name, "member": header.member}
    if header.remembered:
        source["generation"] = header.generation
    return Elsewhere(partial(checkpoint.load, header.member, names, source.get("generation")), source)


def _unread() -> MemberSnapshot:
    raise AssertionError("the checkpoint is not whole")
