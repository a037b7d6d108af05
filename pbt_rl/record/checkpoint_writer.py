"""The thread that writes checkpoints, so that neither learning nor the supervisor waits for a disk.

    who               consumes                    produces                waits for    is woken by
    the thread        jobs: begin, add, abandon   files, ended            jobs         the supervisor
    the supervisor    ended (`poll`)              jobs                    nothing

While it copies, hashes and writes, the thread does not hold the interpreter's lock.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pbt_rl.errors import CheckpointBroken, RunFailed
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.journal import as_json_types
from pbt_rl.record.net_names import NetNames
from pbt_rl.record.unfinished import UnfinishedCheckpoint, remove_oldest
from pbt_rl.wire.snapshot import MemberSnapshot

NICENESS = 5


@dataclass(frozen=True)
class Written:
    """A checkpoint is whole and on the disk."""

    path: Path
    number: int
    frames: int
    members: int
    bytes: int
    seconds: float
    """Since it was begun."""
    kept: bool


@dataclass(frozen=True)
class WriteFailed:
    """A checkpoint could not be written; those before it are untouched."""

    frames: int
    reason: str


@dataclass(frozen=True)
class _Begin:
    frames: int
    state: bytes
    expected: int
    kept: bool


@dataclass(frozen=True)
class _Add:
    snapshot: MemberSnapshot
    done: Callable[[], None]


@dataclass(frozen=True)
class _Abandon:
    reason: str


class CheckpointWriter:
    """Writes one checkpoint after the other into a folder. All methods are for one thread, the one that made it.

    keep: how many checkpoints stay, at least 1, besides those that are begun with `kept`.
    warn: called by `poll` about what does not cost a checkpoint.
    """

    def __init__(self, folder: Path, names: NetNames, keep: int, warn: Callable[[str], None]) -> None:
        assert keep >= 1, f"keep {keep}: the last checkpoint always stays"
        self._warn = warn
        self._busy = False
        self._jobs: SimpleQueue[_Begin | _Add | _Abandon | None] = SimpleQueue()
        self._worker = _Worker(folder, names, keep, self._jobs)
        self._thread = threading.Thread(target=self._worker.run, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun whose end `poll` has not returned."""
        return self._busy

    def begin(self, frames: int, state: Mapping[str, Any], expected: int, kept: bool) -> None:
        """Begin a checkpoint of `expected` snapshots, remembered ones included.

        state: turned into JSON here, so it may change afterwards. Raises TypeError for what JSON cannot represent.
        """
        assert not self._busy, "a checkpoint is in progress"
        assert expected > 0, "a checkpoint without members"
        text = json.dumps(as_json_types(state), allow_nan=False)
        self._busy = True
        self._jobs.put(_Begin(frames, text.encode(), expected, kept))

    def add(self, snapshot: MemberSnapshot, done: Callable[[], None]) -> None:
        """Add one of the expected snapshots; the last of them completes the checkpoint.

        done: called from the thread when the arrays may be reused, also if the checkpoint has failed; must not raise.
        """
        assert self._busy, "no checkpoint is in progress"
        self._jobs.put(_Add(snapshot, done))

    def abandon(self, reason: str) -> None:
        """Give up the checkpoint in progress, if it is not complete.

        What is added until `poll` has returned its end is only released (`done`); nothing of it may be added later.
        """
        self._jobs.put(_Abandon(reason))

    def poll(self) -> list[Written | WriteFailed]:
        """Return what has ended since. A checkpoint that fails ends when all its snapshots were added.

        Raises RunFailed if the thread came upon an error of ours.
        """
        ended = []
        with suppress(Empty):
            while True:
                item = self._worker.ended.get_nowait()
                if isinstance(item, str):
                    self._warn(item)
                else:
                    ended.append(item)
                    self._busy = False
        if self._worker.error:
            raise RunFailed(f"the thread that writes checkpoints failed:\n{self._worker.error}")
        return ended

    def close(self, patience_seconds: float) -> bool:
        """Write what was added, give up what is incomplete, end the thread. Return whether it ended in time.

        If not, it ends with the process; what it leaves unfinished is removed at the run's next checkpoint. `poll`
        returns the last results.
        """
        self._jobs.put(None)
        self._thread.join(patience_seconds)
        return not self._thread.is_alive()


class _Worker:
    """What the thread does. Only `ended`, `error` and `keep` are for others."""

    def __init__(
        self, folder: Path, names: NetNames, keep: int, jobs: SimpleQueue[_Begin | _Add | _Abandon | None]
    ) -> None:
        self.ended: SimpleQueue[Written | WriteFailed | str] = SimpleQueue()
        self.error = ""
        self._folder, self._names, self._jobs = folder, names, jobs
        self.keep = keep
        """May be set from another thread."""
        self._begun: _Begin | None = None
        self._began_at = 0.0
        self._missing = 0
        """Snapshots that the checkpoint in progress still lacks."""
        self._files: UnfinishedCheckpoint | None = None
        """None: nothing is in progress, or it has failed."""
        self._failure = ""

    def run(self) -> None:
        """Work until None comes."""
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            while (job := self._jobs.get()) is not None:
                match job:
                    case _Begin():
                        self._begin(job)
                    case _Add():
                        self._add(job)
                    case _Abandon():
                        self._abandon(job.reason)
            self._abandon("the run ended before every member had been saved")
        except Exception:  # noqa: BLE001 - `poll` raises it in the thread of the owner
            self.error = traceback.format_exc()

    def _begin(self, job: _Begin) -> None:
        self._begun, self._began_at, self._missing = job, time.monotonic(), job.expected
        self._files = UnfinishedCheckpoint(self._folder, job.frames, self._names, job.kept)
        with self._failures():
            self._files.begin(job.state)

    def _add(self, job: _Add) -> None:
        try:
            with self._failures():
                if self._files is not None:
                    self._files.pack(job.snapshot)
        finally:
            job.done()
        with self._failures():
            if self._files is not None:
                self._files.write(job.snapshot.header)
        if self._begun is not None:
            self._missing -= 1
            if self._missing == 0:
                self._end()

    def _abandon(self, reason: str) -> None:
        if self._begun is not None:
            self._fail(reason)
            self._end()

    def _end(self) -> None:
        assert self._begun is not None
        with self._failures():
            if self._files is not None:
                written = self._written(self._files.finish())
                self._remove_oldest()
                self.ended.put(written)
        if self._files is None:
            self.ended.put(WriteFailed(self._begun.frames, self._failure))
        self._begun = self._files = None

    def _written(self, checkpoint: Checkpoint) -> Written:
        files = checkpoint.manifest.files
        return Written(
            checkpoint.path,
            checkpoint.number,
            checkpoint.frames,
            len(checkpoint.manifest.members),
            sum(saved.bytes for saved in files),
            time.monotonic() - self._began_at,
            checkpoint.kept,
        )

    def _remove_oldest(self) -> None:
        try:
            remove_oldest(self._folder, self.keep)
        except (OSError, CheckpointBroken) as error:
            why = reason(error) if isinstance(error, OSError) else error
            self.ended.put(f"an old checkpoint in {self._folder} could not be removed: {why}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Give up the checkpoint in progress for what the machine, not our code, makes impossible."""
        try:
            yield
        except OSError as error:
            self._fail(error.strerror or str(error))
        except MemoryError:
            self._fail("the memory does not suffice to copy a member")
        except CheckpointBroken as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """Give up the checkpoint in progress; the first reason counts."""
        if self._files is not None:
            self._failure = reason
            self._files.discard()
            self._files = None
