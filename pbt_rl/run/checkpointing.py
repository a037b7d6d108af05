"""Has the whole run saved: when it is due, when it is asked for, and at its end. Nothing waits for it.

    due -> state of the run        taken between two comparisons, while no decision is on its way
        -> every state is pinned   those that learners hold are to be saved (`Dispatch.begin_checkpoint`)
        -> Save, again             members come one by one into few entries of the pool, between two optimiser steps
        -> CheckpointWriter        a thread writes them; the manifest comes last
        -> pins are dropped        from then on members go on from these if their learner is lost

Packs without a learner save nothing: their members are what they will go on from.

A decision that comes meanwhile is not delayed: a member that it changes is saved before, if that is still to come.

Where machines come and go there are copies in between: members that learners hold are saved into the pool, and go on
from there if their learner is lost.
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
"""After which one that was to be kept is tried again; others are made when the next one is due."""
COPY_SECONDS = 1.0
"""What copies may wait for decisions on their way, or take longer than those before."""

STAGING_BYTES = 1 << 26
"""Memory for members of a pack on their way to the disk, unless one is larger."""


@dataclass(eq=False)
class Due:
    """When the run is to be saved, and when its members are to be copied; 0 seconds or frames: not by themselves."""

    every_seconds: float
    every_frames: int
    copy_seconds: float
    """Copies are at most so old."""
    next_frames: int = field(default=0, init=False)
    """At which one is kept."""
    next_seconds: float = field(default=math.inf, init=False)
    next_copies: float = field(default=math.inf, init=False)
    not_before: float = field(default=0.0, init=False)
    """When one that is to be kept may be tried again."""
    asked: bool = field(default=False, init=False)
    copies_asked: bool = field(default=False, init=False)
    took: float = field(default=0.0, init=False)
    """Seconds that the last copies took."""

    def start(self, frames: int) -> None:
        """Count from now on. frames: the population's clock. The first copies are due."""
        self._wait()
        self.next_frames = self._following(frames)
        if self.copy_seconds:
            self.next_copies = time.monotonic()

    def _following(self, frames: int) -> int:
        return (frames // self.every_frames + 1) * self.every_frames if self.every_frames else 0

    def saving(self, frames: int) -> bool:
        """Whether the run is to be saved."""
        now = time.monotonic()
        return self.asked or (self.reached(frames) and now >= self.not_before) or now >= self.next_seconds

    def reached(self, frames: int) -> bool:
        """Whether one is to be kept."""
        return 0 < self.next_frames <= frames

    @property
    def copying(self) -> bool:
        """Whether members are to be copied."""
        return self.copies_asked or time.monotonic() >= self.next_copies

    def begun(self) -> None:
        """Note that the run is being saved."""
        self.asked = False
        self._wait()

    def _wait(self) -> None:
        self.next_seconds = time.monotonic() + self.every_seconds if self.every_seconds else math.inf

    def kept(self, frames: int) -> int:
        """Note that one is being kept; return the frames that it is named after."""
        self.next_frames = self._following(frames)
        return self.next_frames - self.every_frames

    def not_kept(self, frames: int) -> None:
        """Have another one kept instead, by the option as it is now. frames: as `kept` returned them."""
        if self.every_frames and self.next_frames == frames + self.every_frames:
            self.next_frames, self.not_before = frames, time.monotonic() + AGAIN_SECONDS

    def copies_begun(self) -> None:
        """Note that members are being copied, or saved."""
        self.copies_asked = False
        if self.copy_seconds:
            least = self.copy_seconds / 2
            period = max(least, self.copy_seconds - 2 * self.took - COPY_SECONDS)
            self.next_copies = time.monotonic() + period

    def ask_last(self) -> None:
        """Have the run saved once more, and never again: by the clock the next one may be due when one is written."""
        self.every_seconds = self.copy_seconds = 0.0
        self.next_seconds = self.next_copies = math.inf
        self.asked, self.copies_asked = True, False


@dataclass(eq=False)
class Round:
    """One checkpoint, or copies. number: among those of the process. packs: those that take part."""

    number: int
    packs: frozenset[int]
    frames: int
    to_disk: bool
    kept: bool = False
    """It is never deleted to make room for newer ones."""
    evaluates: bool = False
    """The best member plays from it."""
    all_frames: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """What a checkpoint holds besides members and learners."""
    learners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the learner of each pack continues from."""
    wanted: list[tuple[Pin, SnapshotHeader | None]] = field(default_factory=list)
    """What the writer is to be given, until all learners have said what they continue from."""
    to_come: dict[Key, Pin] = field(default_factory=dict)
    """States that their learner is still to save."""
    new: list[State] = field(default_factory=list)
    """States that are made for it."""
    written: list[tuple[State, SnapshotHeader]] = field(default_factory=list)
    """What the writer was given."""
    began: float = field(default_factory=time.monotonic)


class Checkpointing:
    """Orders checkpoints and brings the members from the learners to the writer. Use it from one thread."""

    def __init__(
        self, resolved: ResolvedRun, folder: RunFolder, dispatch: Dispatch, recorder: Recorder
    ) -> None:
        config = resolved.config
        copy_seconds = config.copy_seconds if resolved.spread else 0.0
        self.when = Due(config.save_every_seconds, config.save_every_frames, copy_seconds)
        self._at_once = config.mode == "serial"
        """Nothing goes on until all members are saved, so that the checkpoint is of one moment."""
        self._dispatch, self._recorder = dispatch, recorder
        self.games = Evaluations(
            config, log_folder(resolved), lambda: recorder.evaluated_frames, recorder.evaluated, recorder.note
        )
        """Fresh games of members that are saved."""
        self.names: NetNames
        """Where each parameter lies in a member's flat vector; given before the first checkpoint."""
        self.newest: Checkpoint | None = None
        """The last one that is whole, of those that this process has written."""
        self.begun = self.whole = 0
        """Rounds so far, and the number of the last one that is whole."""
        self._round: Round | None = None
        self._new_writer = partial(CheckpointWriter, folder.checkpoints, keep=config.keep_checkpoints)
        self._writer: CheckpointWriter | None = None
        self._writing: deque[tuple[int, Pin]] = deque()
        """What the writer has, in order: pack or -1, and the state."""
        self._done: deque[None] = deque()
        """As many as it has done with; it appends from its thread."""
        self.failure = ""
        """Why the last one was not written; empty if it was."""
        self.moved = 0
        """Rises with every member that was brought to the writer or written."""

    # -- when -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Count the time from now on."""
        self.when.start(self._frames)

    @property
    def _frames(self) -> int:
        return self._dispatch.population.least_frames

    @property
    def due(self) -> bool:
        """Whether a round should begin as soon as it can."""
        return not self._in_progress and (self._saves or self.when.copying)

    @property
    def _saves(self) -> bool:
        """The next round is a checkpoint, if any is due."""
        return self.games.due(self._frames) or self.when.saving(self._frames)

    @property
    def _in_progress(self) -> bool:
        """The writer may have still to end a checkpoint that was given up."""
        return self._round is not None or (self._writer is not None and self._writer.busy)

    @property
    def busy(self) -> bool:
        """A checkpoint is asked for or in progress."""
        return self.when.asked or self._in_progress

    @property
    def waits_for_learners(self) -> bool:
        """Whether a learner has yet to say what it continues from."""
        current = self._round
        return current is not None and current.to_disk and len(current.learners) < len(current.packs)

    # -- how ------------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin to save the run, or to copy its members if no checkpoint is due.

        packs: those that have a learner. make_state: returns all that a checkpoint holds besides the learners', as JSON
        types; called at once. It raises OSError if the record of the run cannot be written. No decision may be on its
        way, and the fleet must be settled.
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
        """Note what a checkpoint holds besides members; return whether that was possible."""
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
        """A learner has said what it continues from; when all have, their members are saved."""
        current = self._round
        if current is None or message.number != current.number:
            return  # of a checkpoint that was given up
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
            elif pin.state.key not in current.to_come:  # saved already, since it has changed
                self._add(current, -1, pin, pin.state.header)
        # Nothing goes on in serial mode until all are saved.
        few = max(1, STAGING_BYTES // self._dispatch.store.pool.entry_bytes)
        for pack in sorted(current.packs):
            for _ in range(len(wanted) if self._at_once else few):
                self._dispatch.save_next(pack)

    def note_saved(self, pack: int, state: State) -> None:
        """A state lies in the pool, perhaps of the round."""
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
        """Write a state."""
        assert self._writer is not None
        current.written.append((pin.state, header))
        self._writing.append((pack, pin))
        arrays = pin.state.read().arrays
        self._writer.add(MemberSnapshot(header, arrays), partial(self._done.append, None))

    def step(self) -> None:
        """Go on with a checkpoint in progress."""
        self._let_go()
        if self._writer is not None:
            self._take_results(self._writer)
        self.games.step()

    def _let_go(self) -> None:
        """Drop the states that the writer has done with, and have the next ones saved."""
        while self._done:
            self._done.popleft()
            pack, pin = self._writing.popleft()
            self.moved += 1
            if self._round is not None and pack >= 0:
                # Its bytes will be in the checkpoint; nobody reads it before that is whole.
                pin.state.put_elsewhere(Elsewhere(_unread))
                self._dispatch.save_next(pack)

    def _take_results(self, writer: CheckpointWriter) -> None:
        for result in writer.poll():
            self._let_go()
            self._ended(result, self._round)

    def _ended(self, result: Written | WriteFailed, current: Round | None) -> None:
        """Note what became of a checkpoint. current: None if it was given up before."""
        if isinstance(result, Written):
            try:
                self.newest = Checkpoint(result.path, read_manifest(result.path / FILE))
            except CheckpointBroken as error:  # somebody has removed it at once
                result = WriteFailed(result.frames, str(error))
        if isinstance(result, WriteFailed):
            if current is not None:
                self._give_up(current)
            if not self.failure:  # said once; the next one is tried when it is due
                self._recorder.remark(f"the run could not be saved: {result.reason}; training goes on")
            self.failure = result.reason
            return
        self._recorder.checkpoint(result)
        if current is None:  # too late: it is whole
            return
        assert self.newest is not None
        for state, header in current.written:
            state.put_elsewhere(_in_checkpoint(self.newest, header, self.names))
        self._whole(current)
        self.failure = ""
        if current.evaluates:
            self.games.begin_games(self.newest, current.state["best_member"], current.all_frames)

    def _whole(self, current: Round) -> None:
        """Note that members go on from these states from now on."""
        self._round, self.whole = None, current.number
        self._dispatch.end_checkpoint(whole=True)

    def _give_up(self, current: Round) -> None:
        """Let go of a round that comes to nothing, but for the states that the writer has still."""
        self._round = None
        for state in current.new:
            state.put_elsewhere(None)  # it is nowhere else
        self._dispatch.end_checkpoint(whole=False)
        if current.kept:
            self.when.not_kept(current.frames)

    def abandon(self, reason: str) -> None:
        """Give up the round in progress, since a learner is lost, and ask for another one.

        Waits until nothing of it is written any more, CLOSE_SECONDS at most.
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
    if header.remembered:
        source["generation"] = header.generation
    return Elsewhere(partial(checkpoint.load, header.member, names, source.get("generation")), source)


def _unread() -> MemberSnapshot:
    raise AssertionError("the checkpoint is not whole")
