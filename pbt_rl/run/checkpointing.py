"""Checkpoints of a run: periodic, on request, and at the end. Except in serial mode, training continues meanwhile.

    due -> state of the run           captured between two comparisons, while no decision is in flight
        -> all states stay in memory  `Dispatch.begin_checkpoint` lists the states to write
        -> SaveLearner                learners send their states, without the states of members
        -> Save, repeated             learners save their members one by one to the `StatePool`, between optimiser steps
        -> CheckpointWriter           a thread writes the state of the run, each member, and finally the manifest
        -> the last file is written   from now on the files are the restore points of members

If a pack has no learner at this time, its members with slots are written as in their restore points. These are the
states from which the members continue after a loss.

A checkpoint does not delay a decision. If a decision changes a member that the checkpoint still lacks, the member is
saved before the change.
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
from pbt_rl.actors.state_pool import MemberSnapshot, SnapshotHeader
from pbt_rl.errors import CheckpointBroken
from pbt_rl.play.evaluation.evaluations import Evaluations
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
"""Seconds until a failed permanent checkpoint is tried again. After a failed ordinary one, the next begins as usual."""
STAGING_BYTES = 1 << 26
"""Maximum bytes of a pack's members that are in the `StatePool` but not yet in files. One member is always allowed.
Serial mode has no limit."""


@dataclass(eq=False)
class Due:
    """Schedule of checkpoints. A period of 0 means no periodic checkpoints.

    every_seconds: period of ordinary checkpoints, of which only the newest are kept (--save-every-seconds).
    every_frames: period of permanent checkpoints, which are never deleted (--save-every-frames).
    """

    every_seconds: float
    every_frames: int
    next_frames: int = field(default=0, init=False)
    """Population clock at which the next permanent checkpoint is due, in frames. 0: never."""
    next_seconds: float = field(default=math.inf, init=False)
    """`time.monotonic()` at which the next ordinary checkpoint is due."""
    not_before: float = field(default=0.0, init=False)
    """Earliest `time.monotonic()` of the retry of a failed permanent checkpoint."""
    asked: bool = field(default=False, init=False)
    """True if a checkpoint is requested outside the schedule, for example by SIGUSR1."""

    def start(self, frames: int) -> None:
        """Start the schedule. frames: present population clock, in frames."""
        self._wait()
        self.next_frames = self._following(frames)

    def _following(self, frames: int) -> int:
        return (frames // self.every_frames + 1) * self.every_frames if self.every_frames else 0

    def saving(self, frames: int) -> bool:
        """Check whether a checkpoint is due. frames: population clock."""
        now = time.monotonic()
        return self.asked or (self.reached(frames) and now >= self.not_before) or now >= self.next_seconds

    def reached(self, frames: int) -> bool:
        """Check whether the next permanent checkpoint is reached. frames: population clock."""
        return 0 < self.next_frames <= frames

    def begun(self) -> None:
        """Record the start of a checkpoint: clear the request, and restart the period of ordinary checkpoints."""
        self.asked = False
        self._wait()

    def _wait(self) -> None:
        self.next_seconds = time.monotonic() + self.every_seconds if self.every_seconds else math.inf

    def kept(self, frames: int) -> int:
        """Record that a permanent checkpoint begins, and schedule the next. frames: population clock.

        Return the frames in the checkpoint's name: the last multiple of `every_frames`.
        """
        self.next_frames = self._following(frames)
        return self.next_frames - self.every_frames

    def not_kept(self, frames: int) -> None:
        """Schedule the retry of a failed permanent checkpoint after AGAIN_SECONDS.

        frames: frames in the name of this checkpoint.
        """
        if self.every_frames and self.next_frames == frames + self.every_frames:
            self.next_frames, self.not_before = frames, time.monotonic() + AGAIN_SECONDS

    def ask_last(self) -> None:
        """Request a last checkpoint, and stop the schedule of ordinary checkpoints."""
        self.every_seconds, self.next_seconds = 0.0, math.inf
        self.asked = True


@dataclass(eq=False)
class CheckpointInProgress:
    """Checkpoint in progress.

    number: 1 for the first checkpoint since the supervisor's start, 2 for the second, and so on.
    packs: numbers of the packs that have a learner.
    frames: population clock at the start. For a permanent checkpoint: the frames in its name.
    """

    number: int
    packs: frozenset[int]
    frames: int
    kept: bool = False
    """True for a permanent checkpoint."""
    evaluates: bool = False
    """True if the best member of the checkpoint is evaluated."""
    all_frames: int = 0
    """Frames of the population, summed over the members."""
    state: dict[str, Any] = field(default_factory=dict)
    """State of the run without members and learners, as JSON types."""
    learners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Pack -> saved state of its learner."""
    wanted: list[tuple[State, SnapshotHeader]] = field(default_factory=list)
    """(state, header of its file) for each state to write. Emptied when all learners have answered `SaveLearner`."""
    to_come: dict[State, SnapshotHeader] = field(default_factory=dict)
    """State of a member that a learner has not yet saved to the `StatePool` -> header of the state's file."""


class Checkpointing:
    """Schedule of checkpoints, and transfer of members from learners to the writer. Not thread-safe."""

    def __init__(
        self, resolved: ResolvedRun, folder: RunFolder, dispatch: Dispatch, recorder: Recorder
    ) -> None:
        config = resolved.config
        self.when = Due(config.save_every_seconds, config.save_every_frames)
        self._at_once = config.mode == "serial"
        """True in serial mode: training waits until all members are saved at the same point of the run."""
        self._dispatch, self._recorder = dispatch, recorder
        self.evaluations = Evaluations(
            config, log_folder(resolved), lambda: recorder.evaluated_frames, recorder.evaluated, recorder.note
        )
        self.names: NetNames
        """Positions of the parameters in a member's flat vector. Set before the first checkpoint."""
        self.newest: Checkpoint | None = None
        self._best_member: int | None = None
        """Best member at `newest`."""
        self.begun = self.whole = 0
        """Number of checkpoints begun so far, and `CheckpointInProgress.number` of the last complete checkpoint."""
        self._current: CheckpointInProgress | None = None
        self._new_writer = partial(CheckpointWriter, folder.checkpoints, keep=config.keep_checkpoints)
        self._writer: CheckpointWriter | None = None
        self._writing: deque[tuple[int, State]] = deque()
        """(pack, state) of each state that the writer has, oldest first. pack: -1 if no learner saved the state."""
        self._done: deque[None] = deque()
        """One element per state that the writer has finished. The writer's thread appends the elements."""
        self.failure = ""
        """Reason for the failure of the last checkpoint. Empty without a failure."""
        self.moved = 0
        """Progress counter: number of times that a member was saved or written."""

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
        return not self._in_progress and (self.evaluations.due(frames) or self.when.saving(frames))

    @property
    def _in_progress(self) -> bool:
        """True during a checkpoint, and while the writer stops an abandoned checkpoint."""
        return self._current is not None or (self._writer is not None and self._writer.busy)

    @property
    def busy(self) -> bool:
        """True if a checkpoint is requested or in progress."""
        return self.when.asked or self._in_progress

    @property
    def waits_for_learners(self) -> bool:
        """True if a checkpoint is in progress and a learner has not answered `SaveLearner` yet."""
        current = self._current
        return current is not None and len(current.learners) < len(current.packs)

    # -- how ------------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin a checkpoint. Requires that no decision is in flight.

        In serial mode, a run can resume bit for bit only if `Fleet.settled` was True.
        packs: packs that have a learner.
        make_state: function that returns the state of the run without members and learners, as JSON types. It is called
        immediately. If it raises OSError (the journal cannot be written), the checkpoint fails with a warning.
        """
        self.begun += 1
        current = self._current = CheckpointInProgress(self.begun, frozenset(packs), self._frames)
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

    def _note_state(self, current: CheckpointInProgress, make_state: Callable[[], dict[str, Any]]) -> bool:
        """Capture the state of the run without members and learners. Return False if this fails."""
        frames = current.frames
        current.kept = self.when.reached(frames)
        if current.kept:
            current.frames = self.when.kept(frames)
        current.evaluates = self.evaluations.due(frames) and self.evaluations.take(frames)
        current.all_frames = self._dispatch.population.frames
        self.when.begun()
        try:
            current.state = make_state()
        except OSError as error:
            self._ended(WriteFailed(current.frames, reason(error)), current)
            return False
        return True

    def note_learner_saved(self, pack: int, message: LearnerSaved) -> None:
        """Record the state of a learner. If all learners have sent their state, start to save the members."""
        current = self._current
        if current is None or message.number != current.number:
            return  # this checkpoint was abandoned
        current.learners[pack] = message.learner
        if len(current.learners) == len(current.packs):
            self._begin_members(current)

    def _begin_members(self, current: CheckpointInProgress) -> None:
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
        # In serial mode training waits until all members are saved.
        few = max(1, STAGING_BYTES // self._dispatch.store.pool.entry_bytes)
        for pack in sorted(current.packs):
            for _ in range(len(wanted) if self._at_once else few):
                self._dispatch.save_next(pack)

    def note_saved(self, pack: int, state: State) -> None:
        """Record that a state is in the `StatePool`. Pass the state to the writer if the checkpoint needs it."""
        header = None if self._current is None else self._current.to_come.pop(state, None)
        if header is not None:
            self.moved += 1
            self._add(pack, state, header)

    def _add(self, pack: int, state: State, header: SnapshotHeader) -> None:
        """Pass a state to the writer. pack: pack whose learner saved the state. -1: no learner saved it."""
        assert self._writer is not None
        self._writing.append((pack, state))
        snapshot = MemberSnapshot(_counted(header, state), state.read())
        self._writer.add(snapshot, partial(self._done.append, None))

    def step(self) -> None:
        """Continue the checkpoint in progress and the evaluation in progress."""
        self._let_go()
        if self._writer is not None:
            self._take_results(self._writer)
        self.evaluations.step()

    def finish_evaluations(self, may_wait: Callable[[], bool], *, saved_at_end: bool) -> None:
        """Wait for the evaluation in progress, and run the evaluation that has become due meanwhile.

        may_wait: see `Evaluations.finish`. saved_at_end: True if the newest checkpoint has the state at the run's end.
        """
        self.evaluations.finish(may_wait)
        newest = self.newest
        if saved_at_end and newest is not None and may_wait() and self.evaluations.take(newest.frames):
            self.evaluations.begin(newest, self._best_member, self._dispatch.population.frames)
            self.evaluations.finish(may_wait)

    def _let_go(self) -> None:
        """Release the states that the writer has finished, and request the next states."""
        while self._done:
            self._done.popleft()
            pack, state = self._writing.popleft()
            state.release()
            self.moved += 1
            if self._current is not None and pack >= 0:
                self._dispatch.save_next(pack)

    def _take_results(self, writer: CheckpointWriter) -> None:
        for result in writer.poll():
            self._let_go()
            self._ended(result, self._current)

    def _ended(self, result: Written | WriteFailed, current: CheckpointInProgress | None) -> None:
        """Record the result of a checkpoint. current: None for an abandoned checkpoint."""
        if isinstance(result, Written):
            try:
                self.newest = Checkpoint(result.path, read_manifest(result.path / FILE))
            except CheckpointBroken as error:  # the checkpoint was deleted immediately
                result = WriteFailed(result.frames, str(error))
        if isinstance(result, WriteFailed):
            if current is not None:
                self._give_up(current)
            if not self.failure:  # warn only of the first of consecutive failures
                self._recorder.warn(f"the run could not be saved: {result.reason}; training continues")
            self.failure = result.reason
            return
        self._recorder.checkpoint(result)
        if current is None:  # the abandoned checkpoint was completed before the writer stopped
            return
        assert self.newest is not None
        self._current, self.whole = None, current.number
        self._dispatch.end_checkpoint(self.newest.states(self.names), self.newest.path.name)
        self.failure = ""
        self._best_member = current.state["best_member"]
        if current.evaluates:
            self.evaluations.begin(self.newest, self._best_member, current.all_frames)

    def _give_up(self, current: CheckpointInProgress) -> None:
        """Drop a failed or abandoned checkpoint, and release the states that were not passed to the writer."""
        self._current = None
        for state in [*(state for state, _ in current.wanted), *current.to_come]:
            state.release()
        self._dispatch.end_checkpoint(None)
        if current.kept:
            self.when.not_kept(current.frames)

    def abandon(self, reason: str) -> None:
        """Abandon the checkpoint in progress, and request a new one. Without a checkpoint in progress, do nothing.

        Wait at most CLOSE_SECONDS until the writer has stopped. reason: cause, for the warning.
        """
        current = self._current
        if current is None:
            return
        self.when.asked = True
        if self._writer is not None and self._writer.busy:
            self._writer.abandon(reason)
            deadline = time.monotonic() + CLOSE_SECONDS
            while self._current is current and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                self._take_results(self._writer)
        if self._current is current:
            self._give_up(current)

    def close(self, *, at_once: bool = False) -> None:
        """Stop the writer, and wait at most CLOSE_SECONDS for its checkpoint. at_once: do not wait."""
        if self._writer is not None:
            self._writer.close(0.0 if at_once else CLOSE_SECONDS)
            self._take_results(self._writer)


def _counted(header: SnapshotHeader, state: State) -> SnapshotHeader:
    """Return the header with the newest counts of the state, because a member may train during a checkpoint.

    If the state was copied from another member, only `fresh_frames` is updated.
    """
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
