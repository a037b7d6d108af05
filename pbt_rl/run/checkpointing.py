"""Checkpoints of the whole run: periodic, on request, and at its end. In async mode training continues meanwhile.

    due -> state of the run           captured between two comparisons, while no decision is in flight
        -> every state is kept        those that learners have will be saved (`Dispatch.begin_checkpoint`)
        -> Save, repeated             members go one by one into a few pool entries, between two optimiser steps
        -> CheckpointWriter           a thread writes them, the manifest last
        -> every state is released    from then on the files are the restore points if a learner is lost

Packs without a learner save nothing: their members' restore points are written.

A decision is not delayed by a checkpoint: a member that it changes is saved first, if it was not saved yet.
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
from pbt_rl.population.store import State
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
STAGING_BYTES = 1 << 26
"""Memory per pack for members on the way to disk; at least one member."""


@dataclass(eq=False)
class Due:
    """Schedule of checkpoints. 0 seconds or frames: only on request."""

    every_seconds: float
    every_frames: int
    next_frames: int = field(default=0, init=False)
    """Population frames of the next checkpoint that is kept."""
    next_seconds: float = field(default=math.inf, init=False)
    not_before: float = field(default=0.0, init=False)
    """Earliest retry of a checkpoint that is kept (`time.monotonic`)."""
    asked: bool = field(default=False, init=False)

    def start(self, frames: int) -> None:
        """Start the schedule. frames: the population's."""
        self._wait()
        self.next_frames = self._following(frames)

    def _following(self, frames: int) -> int:
        return (frames // self.every_frames + 1) * self.every_frames if self.every_frames else 0

    def saving(self, frames: int) -> bool:
        """True if a checkpoint is due."""
        now = time.monotonic()
        return self.asked or (self.reached(frames) and now >= self.not_before) or now >= self.next_seconds

    def reached(self, frames: int) -> bool:
        """True if a checkpoint that is kept is due by frames."""
        return 0 < self.next_frames <= frames

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

    def ask_last(self) -> None:
        """Request a last checkpoint and stop the schedule. Otherwise another could fall due while it is written."""
        self.every_seconds, self.next_seconds = 0.0, math.inf
        self.asked = True


@dataclass(eq=False)
class Round:
    """One checkpoint. number: its index in this process. packs: those with a learner."""

    number: int
    packs: frozenset[int]
    frames: int
    kept: bool = False
    """True if it is never deleted in favour of newer ones."""
    evaluates: bool = False
    """True if the best member is evaluated from it."""
    all_frames: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """State of the run besides members and learners."""
    learners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Pack -> saved state of its learner."""
    wanted: list[tuple[State, SnapshotHeader]] = field(default_factory=list)
    """States for the writer, until all learners have sent their own state."""
    to_come: dict[State, SnapshotHeader] = field(default_factory=dict)
    """States for the writer that learners have not saved yet."""


class Checkpointing:
    """Scheduler of checkpoints, which passes members from learners to the writer. Use it from one thread."""

    def __init__(
        self, resolved: ResolvedRun, folder: RunFolder, dispatch: Dispatch, recorder: Recorder
    ) -> None:
        config = resolved.config
        self.when = Due(config.save_every_seconds, config.save_every_frames)
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
        """Checkpoints so far, and the number of the last complete one."""
        self._round: Round | None = None
        self._new_writer = partial(CheckpointWriter, folder.checkpoints, keep=config.keep_checkpoints)
        self._writer: CheckpointWriter | None = None
        self._writing: deque[tuple[int, State]] = deque()
        """(pack or -1, state) of the states that the writer has, in order."""
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
        """True if a checkpoint should begin as soon as possible."""
        frames = self._frames
        return not self._in_progress and (self.games.due(frames) or self.when.saving(frames))

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
        return current is not None and len(current.learners) < len(current.packs)

    # -- how ------------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin a checkpoint.

        packs: those that have a learner. make_state: returns the state of the run without the learners', as JSON types.
        It is called immediately and raises OSError if the run's record cannot be written. No decision may be in flight,
        and the fleet must be settled.
        """
        self.begun += 1
        current = self._round = Round(self.begun, frozenset(packs), self._frames)
        if not self._note_state(current, make_state):
            return
        current.wanted = self._dispatch.begin_checkpoint(packs)
        if not current.wanted:
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
        wanted, current.wanted = current.wanted, []
        run = current.state | {"learners": learners}
        self._writer.begin_checkpoint(current.frames, run, len(wanted), current.kept)
        for state, header in wanted:
            if state.ready:
                self._add(-1, state, header)
            else:
                current.to_come[state] = header
        # In serial mode training waits until all are saved.
        few = max(1, STAGING_BYTES // self._dispatch.store.pool.entry_bytes)
        for pack in sorted(current.packs):
            for _ in range(len(wanted) if self._at_once else few):
                self._dispatch.save_next(pack)

    def note_saved(self, pack: int, state: State) -> None:
        """Record that a state is in the pool. Pass it to the writer if it belongs to the round."""
        header = None if self._round is None else self._round.to_come.pop(state, None)
        if header is not None:
            self.moved += 1
            self._add(pack, state, header)

    def _add(self, pack: int, state: State, header: SnapshotHeader) -> None:
        """Pass a state to the writer. pack: of its learner, or -1."""
        assert self._writer is not None
        self._writing.append((pack, state))
        snapshot = MemberSnapshot(_counted(header, state), state.read())
        self._writer.add(snapshot, partial(self._done.append, None))

    def step(self) -> None:
        """Continue a checkpoint in progress."""
        self._let_go()
        if self._writer is not None:
            self._take_results(self._writer)
        self.games.step()

    def _let_go(self) -> None:
        """Release the states that the writer has finished, and request the next ones."""
        while self._done:
            self._done.popleft()
            pack, state = self._writing.popleft()
            state.release()
            self.moved += 1
            if self._round is not None and pack >= 0:
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
        self._round, self.whole = None, current.number
        self._dispatch.end_checkpoint(self.newest.states(self.names), self.newest.path.name)
        self.failure = ""
        if current.evaluates:
            self.games.begin_games(self.newest, current.state["best_member"], current.all_frames)

    def _give_up(self, current: Round) -> None:
        """Drop an abandoned checkpoint, except the states that the writer still has."""
        self._round = None
        for state in [*(state for state, _ in current.wanted), *current.to_come]:
            state.release()
        self._dispatch.end_checkpoint(None)
        if current.kept:
            self.when.not_kept(current.frames)

    def abandon(self, reason: str) -> None:
        """Abandon the checkpoint in progress, because a learner is lost, and request another one.

        Waits until the writer has stopped, CLOSE_SECONDS at most.
        """
        current = self._round
        if current is None:
            return
        self.when.asked = True
        if self._writer is not None and self._writer.busy:
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


def _counted(header: SnapshotHeader, state: State) -> SnapshotHeader:
    """Return the header with the counts of the state. Its learner may have trained since the checkpoint began."""
    frames, steps, updates, fresh_frames = state.counts
    if state.member != header.member:
        return replace(header, fresh_frames=fresh_frames)
    return replace(
        header,
        frames=max(header.frames, frames),
        steps=max(header.steps, steps),
        updates=max(header.updates, updates),
        fresh_frames=fresh_frames,
    )
