"""Checkpoint writer thread. Training does not wait until the files of members are on the disk.

    who               consumes                    produces                waits for    is woken by
    the thread        jobs: begin, add, abandon   files, results          jobs         the supervisor
    the supervisor    results (`poll`)            jobs                    nothing

The thread releases the GIL while it hashes and writes, but not while it serialises a member. A checkpoint has a
temporary name until it is complete: the thread writes and syncs its files, writes the manifest, and renames the folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pbt_rl.actors.state_pool import MemberSnapshot, SnapshotHeader
from pbt_rl.errors import CheckpointBroken, RunFailed
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoints import (
    FILE,
    PARTIAL,
    STATE,
    Checkpoints,
    Manifest,
    NetNames,
    SavedFile,
    SavedMember,
    header_to_metadata,
    member_file,
    pack,
    to_tensors,
)
from pbt_rl.record.journal import as_json_types

NICENESS = 5


@dataclass(frozen=True)
class Written:
    """Result of a successful write: a complete checkpoint on disk.

    number, frames, kept: see `Manifest`. members: number of saved members, without remembered states.
    bytes: size of all files except the manifest.
    """

    path: Path
    number: int
    frames: int
    members: int
    bytes: int
    seconds: float
    """Seconds that the thread spent on the checkpoint, including waits for snapshots."""
    kept: bool


@dataclass(frozen=True)
class WriteFailed:
    """Result of a failed write. Earlier checkpoints are unchanged. frames: those of `begin_checkpoint`."""

    frames: int
    reason: str


class UnfinishedCheckpoint:
    """Files of one checkpoint, written in the order in which snapshots arrive.

    `make_folder`, `write` and `finish` may raise OSError. `make_folder` raises CheckpointBroken if the folder of
    checkpoints cannot be read.
    folder: folder of all checkpoints of the run. frames, kept: see `CheckpointWriter.begin_checkpoint`.

    1. Call `make_folder`.
    2. For each snapshot, call `pack` and `write`.
    3. Call `finish`, or at any time `discard`.
    """

    def __init__(self, folder: Path, frames: int, names: NetNames, kept: bool) -> None:
        self._folder, self._frames, self._names, self._kept = folder, frames, names, kept
        self._path = self._partial = folder
        self._packed = b""
        self._members: list[SavedMember] = []
        self._remembered: list[SavedMember] = []

    def make_folder(self, state: bytes) -> None:
        """Make the folder and write state.json. state: content of this file."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(self._folder.parent)
        remove_unfinished(self._folder)
        self._number = max((one.manifest.number for one in Checkpoints(self._folder).all()), default=0) + 1
        self._path, partial = _free_names(self._folder, self._frames)
        partial.mkdir()
        self._partial = partial
        self._state = self._write(STATE, state)

    def pack(self, snapshot: MemberSnapshot) -> None:
        """Serialise a snapshot. Its arrays may be modified afterwards.

        Raises MemoryError if the memory does not suffice.
        """
        tensors = to_tensors(snapshot.arrays, self._names)
        self._packed = pack(tensors, header_to_metadata(snapshot.header))

    def write(self, header: SnapshotHeader) -> None:
        """Write the file that `pack` has serialised."""
        generation = header.generation if header.remembered else None
        saved = self._write(member_file(header.member, generation), self._packed)
        entries = self._remembered if header.remembered else self._members
        entries.append(
            SavedMember(
                saved.file, saved.bytes, saved.sha256, header.member, header.generation, header.frames
            )
        )

    def finish(self) -> None:
        """Write the manifest and rename the folder.

        The name of an ordinary checkpoint contains the frames of the least trained saved member. This number may exceed
        the `frames` of the constructor, because members train until they are saved. Members with fewer frames than
        `frames` do not count, because they have stopped.
        The name of a permanent checkpoint contains the frames at which it was due.
        """
        if not self._kept:
            ahead = [saved.frames for saved in self._members if saved.frames >= self._frames]
            self._frames = min(ahead, default=self._frames)
            self._path, _ = _free_names(self._folder, self._frames, self._partial)
        self._manifest = Manifest(
            self._number,
            self._frames,
            time.time(),
            self._kept,
            tuple(self._members),
            tuple(self._remembered),
            self._state,
        )
        _sync_folder(self._partial)
        self._write(FILE, self._manifest.to_text().encode())
        _sync_folder(self._partial)
        self._partial.rename(self._path)
        _sync_folder(self._folder)

    def written(self, seconds: float) -> Written:
        """Return the result, after `finish`. seconds: duration of the write."""
        size = sum(saved.bytes for saved in self._manifest.files)
        return Written(self._path, self._number, self._frames, len(self._members), size, seconds, self._kept)

    def discard(self) -> None:
        """Remove the written files as far as possible."""
        if self._partial != self._folder:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> SavedFile:
        with (self._partial / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return SavedFile(name, len(data), hashlib.sha256(data).hexdigest())


def remove_oldest(folder: Path, keep: int) -> None:
    """Remove old ordinary checkpoints. Raises OSError, or CheckpointBroken if `folder` cannot be read.

    An ordinary checkpoint is removed if at least `keep` newer ordinary checkpoints have all their files. Permanent
    checkpoints are kept. Folders without a readable manifest are kept, too, because their content is unknown.
    """
    whole = 0
    for checkpoint in reversed(Checkpoints(folder).all()):
        if checkpoint.manifest.kept:
            continue
        if whole < keep:
            whole += checkpoint.has_all_files()
        else:
            # Rename first. Otherwise a process killed during the deletion would leave an incomplete checkpoint.
            partial = checkpoint.path.with_name(f"{checkpoint.path.name}.partial")
            checkpoint.path.rename(partial)
            shutil.rmtree(partial)


def remove_unfinished(folder: Path) -> None:
    """Remove half-written and half-deleted checkpoints of a killed run. Errors are ignored."""
    for path in folder.glob("*.partial"):
        if PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _free_names(folder: Path, frames: int, own: Path | None = None) -> tuple[Path, Path]:
    """Return an unused path for a checkpoint, and its temporary path.

    own: temporary path of this checkpoint, which may already exist.
    """
    for count in itertools.count(1):
        path = folder / (f"at_{frames}" if count == 1 else f"at_{frames}_{count}")
        partial = path.with_name(f"{path.name}.partial")
        if not os.path.lexists(path) and (partial == own or not os.path.lexists(partial)):
            return path, partial
    raise AssertionError


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class _Begun:
    frames: int
    state: bytes
    expected: int
    kept: bool


@dataclass(frozen=True)
class _Added:
    snapshot: MemberSnapshot
    done: Callable[[], None]


class CheckpointWriter:
    """Writer of checkpoints into a folder, one at a time. Call all methods from the thread that created the writer.

    keep: number of ordinary checkpoints to retain, at least 1. Permanent checkpoints are always retained.
    warn: function that `poll` calls with a warning if an old checkpoint could not be removed.
    """

    def __init__(self, folder: Path, names: NetNames, keep: int, warn: Callable[[str], None]) -> None:
        assert keep >= 1, f"keep {keep}: the last checkpoint is always retained"
        self._folder, self._names, self._keep, self._warn = folder, names, keep, warn
        self.busy = False
        """True from `begin_checkpoint` until `poll` takes the result."""
        self._jobs: SimpleQueue[_Begun | _Added | str | None] = SimpleQueue()
        """Jobs of the thread. A text is the reason to abandon the checkpoint. None ends the thread."""
        self._ended: SimpleQueue[Written | WriteFailed | str] = SimpleQueue()
        self._error = ""
        self._abandoned = threading.Event()
        """Set if the checkpoint in progress was abandoned. Older checkpoints are then not removed."""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def begin_checkpoint(self, frames: int, state: Mapping[str, Any], expected: int, kept: bool) -> None:
        """Begin a checkpoint.

        frames: population clock. For a permanent checkpoint: the frames at which it was due.
        state: content of state.json. The state is encoded here, and may be modified afterwards.
        expected: number of snapshots, including snapshots of remembered states.
        kept: True for a permanent checkpoint.

        Raises TypeError if JSON cannot represent the state.
        """
        assert not self.busy, "a checkpoint is in progress"
        assert expected > 0, "a checkpoint without members"
        text = json.dumps(as_json_types(state), allow_nan=False).encode()
        self.busy = True
        self._abandoned.clear()
        self._jobs.put(_Begun(frames, text, expected, kept))

    def add(self, snapshot: MemberSnapshot, done: Callable[[], None]) -> None:
        """Add one of the expected snapshots. The last snapshot completes the checkpoint.

        done: function that the thread calls when the arrays may be reused, even after a failure. `done` must not raise.
        """
        assert self.busy, "no checkpoint is in progress"
        self._jobs.put(_Added(snapshot, done))

    def abandon(self, reason: str) -> None:
        """Abandon the checkpoint in progress, unless all its snapshots have been added.

        reason: text for the result.
        Until `poll` returns the result, more snapshots may be added. For these, only `done` is called.
        If the checkpoint is completed nevertheless, older ones are kept until the next one, because members may be
        restored from them.
        """
        self._abandoned.set()
        self._jobs.put(reason)

    def poll(self) -> list[Written | WriteFailed]:
        """Return the results since the last call.

        A failed checkpoint gets its result only when all expected snapshots are added, or `abandon` was called.
        Raises RunFailed if the thread failed because of a bug.
        """
        ended = []
        with suppress(Empty):
            while True:
                item = self._ended.get_nowait()
                if isinstance(item, str):
                    self._warn(item)
                else:
                    ended.append(item)
                    self.busy = False
        if self._error:
            raise RunFailed(f"the thread that writes checkpoints failed:\n{self._error}")
        return ended

    def close(self, timeout_seconds: float) -> bool:
        """Finish the checkpoint in progress, and end the thread. Return True if the thread ends before the timeout.

        If snapshots are missing, the checkpoint is abandoned instead. `poll` returns the result.
        A thread that does not end in time ends with the process. The run's next checkpoint removes unfinished files.
        """
        self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            while (job := self._jobs.get()) is not None:
                if isinstance(job, _Begun):
                    self._ended.put(self._write(job))
                elif isinstance(job, _Added):  # the checkpoint was abandoned
                    job.done()
        except Exception:  # noqa: BLE001 - `poll` raises it in the owner's thread
            self._error = traceback.format_exc()

    def _write(self, begun: _Begun) -> Written | WriteFailed:
        """Write a checkpoint: each member as soon as its snapshot arrives."""
        began = time.monotonic()
        files = UnfinishedCheckpoint(self._folder, begun.frames, self._names, begun.kept)
        failure = _failure(files.make_folder, begun.state)
        for _ in range(begun.expected):
            job = self._jobs.get()
            if not isinstance(job, _Added):
                if job is None:
                    self._jobs.put(None)
                failure = failure or str(job or "the run ended before all members were saved")
                break
            try:
                failure = failure or _failure(files.pack, job.snapshot)
            finally:
                job.done()
            failure = failure or _failure(files.write, job.snapshot.header)
            if failure:
                files.discard()  # immediately, because the disk may be full
        failure = failure or _failure(files.finish)
        if failure:
            files.discard()
            return WriteFailed(begun.frames, failure)
        written = files.written(time.monotonic() - began)
        try:
            if not self._abandoned.is_set():
                remove_oldest(self._folder, self._keep)
        except (OSError, CheckpointBroken) as error:
            self._ended.put(f"an old checkpoint in {self._folder} could not be removed: {reason(error)}")
        return written


def _failure(act: Callable[..., object], *arguments: object) -> str:
    """Call a function. Return the reason of an OSError, MemoryError or CheckpointBroken, or an empty text."""
    try:
        act(*arguments)
    except OSError as error:
        return error.strerror or str(error)
    except MemoryError:
        return "not enough memory to copy a member"
    except CheckpointBroken as error:
        return str(error)
    return ""
