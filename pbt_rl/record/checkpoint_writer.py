"""The thread that writes checkpoints, so that neither learning nor the supervisor waits for a disk.

    who               consumes                    produces                waits for    is woken by
    the thread        jobs: begin, add, abandon   files, ended            jobs         the supervisor
    the supervisor    ended (`poll`)              jobs                    nothing

While it copies, hashes and writes, the thread does not hold the interpreter's lock. A checkpoint is written under a
temporary name: its files, the manifest when all are on the disk, then one rename.
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

from pbt_rl.actors.store import MemberSnapshot, SnapshotHeader
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


class UnfinishedCheckpoint:
    """Files of one checkpoint in the order in which they come. Every method but `discard` raises OSError.

    Use: `make_folder`, then `pack` and `write` for each member, then `finish`; or `discard` at any time.
    """

    def __init__(self, folder: Path, frames: int, names: NetNames, kept: bool) -> None:
        self._folder, self._frames, self._names, self._kept = folder, frames, names, kept
        self._path = self._partial = folder
        self._packed = b""
        self._members: list[SavedMember] = []
        self._remembered: list[SavedMember] = []

    def make_folder(self, state: bytes) -> None:
        """Make the folder and write the state, JSON."""
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
        """Copy a member's arrays into the bytes of its file; afterwards they may be written to. Raises MemoryError."""
        tensors = to_tensors(snapshot.arrays, self._names)
        self._packed = pack(tensors, header_to_metadata(snapshot.header))

    def write(self, header: SnapshotHeader) -> None:
        """Write the file that `pack` has made."""
        generation = header.generation if header.remembered else None
        saved = self._write(member_file(header.member, generation), self._packed)
        entries = self._remembered if header.remembered else self._members
        entries.append(
            SavedMember(
                saved.file, saved.bytes, saved.sha256, header.member, header.generation, header.frames
            )
        )

    def finish(self) -> None:
        """Write the manifest and give the checkpoint its name.

        Learners may have gone on since it was ordered: it is named by the frames that its members have. One that is to
        be kept has the name of the frames at which it was due, by which people ask for it.
        """
        if not self._kept:
            ahead = [saved.frames for saved in self._members if saved.frames >= self._frames]
            self._frames = min(ahead, default=self._frames)  # the others do not train any more
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
        """Return what was written, after `finish`. seconds: since it was begun."""
        size = sum(saved.bytes for saved in self._manifest.files)
        return Written(self._path, self._number, self._frames, len(self._members), size, seconds, self._kept)

    def discard(self) -> None:
        """Remove what was written, as far as that is possible."""
        if self._partial != self._folder:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> SavedFile:
        with (self._partial / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return SavedFile(name, len(data), hashlib.sha256(data).hexdigest())


def remove_oldest(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` whole checkpoints, and those that are to be kept. Raises OSError.

    Folders without a readable manifest stay: what they are is unknown.
    """
    whole = 0
    for checkpoint in reversed(Checkpoints(folder).all()):
        if checkpoint.manifest.kept:
            continue
        if whole < keep:
            whole += checkpoint.has_all_files()
        else:
            # Under another name first, so that a kill in between leaves no checkpoint without its files.
            partial = checkpoint.path.with_name(f"{checkpoint.path.name}.partial")
            checkpoint.path.rename(partial)
            shutil.rmtree(partial)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed run left half written or half deleted. What cannot be removed is no reason to end."""
    for path in folder.glob("*.partial"):
        if PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _free_names(folder: Path, frames: int, own: Path | None = None) -> tuple[Path, Path]:
    """Return the name of a new checkpoint, and its name while it is written. own: a name that it has already."""
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
    """Writes one checkpoint after the other into a folder. All methods are for one thread, the one that made it.

    keep: how many checkpoints stay, at least 1, besides those that are begun with `kept`.
    warn: called by `poll` about what does not cost a checkpoint.
    """

    def __init__(self, folder: Path, names: NetNames, keep: int, warn: Callable[[str], None]) -> None:
        assert keep >= 1, f"keep {keep}: the last checkpoint always stays"
        self._folder, self._names, self._keep, self._warn = folder, names, keep, warn
        self.busy = False
        """A checkpoint was begun whose end `poll` has not returned."""
        self._jobs: SimpleQueue[_Begun | _Added | str | None] = SimpleQueue()
        """What to write; a text: give up, for this reason; None: end."""
        self._ended: SimpleQueue[Written | WriteFailed | str] = SimpleQueue()
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def begin_checkpoint(self, frames: int, state: Mapping[str, Any], expected: int, kept: bool) -> None:
        """Begin a checkpoint of `expected` snapshots, remembered ones included.

        state: turned into JSON here, so it may change afterwards. Raises TypeError for what JSON cannot represent.
        """
        assert not self.busy, "a checkpoint is in progress"
        assert expected > 0, "a checkpoint without members"
        text = json.dumps(as_json_types(state), allow_nan=False).encode()
        self.busy = True
        self._jobs.put(_Begun(frames, text, expected, kept))

    def add(self, snapshot: MemberSnapshot, done: Callable[[], None]) -> None:
        """Add one of the expected snapshots; the last of them completes the checkpoint.

        done: called from the thread when the arrays may be reused, also if the checkpoint has failed; must not raise.
        """
        assert self.busy, "no checkpoint is in progress"
        self._jobs.put(_Added(snapshot, done))

    def abandon(self, reason: str) -> None:
        """Give up the checkpoint in progress, if it is not complete.

        What is added until `poll` has returned its end is only released (`done`); nothing of it may be added later.
        """
        self._jobs.put(reason)

    def poll(self) -> list[Written | WriteFailed]:
        """Return what has ended since. A checkpoint that fails ends when all its snapshots were added.

        Raises RunFailed if the thread came upon an error of ours.
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

    def close(self, patience_seconds: float) -> bool:
        """Write what was added, give up what is incomplete, end the thread. Return whether it ended in time.

        If not, it ends with the process; what it leaves unfinished is removed at the run's next checkpoint. `poll`
        returns the last results.
        """
        self._jobs.put(None)
        self._thread.join(patience_seconds)
        return not self._thread.is_alive()

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            while (job := self._jobs.get()) is not None:
                if isinstance(job, _Begun):
                    self._ended.put(self._write(job))
                elif isinstance(job, _Added):  # of a checkpoint that was given up
                    job.done()
        except Exception:  # noqa: BLE001 - `poll` raises it in the thread of the owner
            self._error = traceback.format_exc()

    def _write(self, begun: _Begun) -> Written | WriteFailed:
        """Write a checkpoint, as its members come."""
        began = time.monotonic()
        files = UnfinishedCheckpoint(self._folder, begun.frames, self._names, begun.kept)
        failure = _failure(files.make_folder, begun.state)
        for _ in range(begun.expected):
            job = self._jobs.get()
            if not isinstance(job, _Added):
                if job is None:
                    self._jobs.put(None)
                failure = failure or str(job or "the run ended before every member had been saved")
                break
            try:
                failure = failure or _failure(files.pack, job.snapshot)
            finally:
                job.done()
            failure = failure or _failure(files.write, job.snapshot.header)
            if failure:
                files.discard()  # at once: the disk may be full
        failure = failure or _failure(files.finish)
        if failure:
            files.discard()
            return WriteFailed(begun.frames, failure)
        written = files.written(time.monotonic() - began)
        try:
            remove_oldest(self._folder, self._keep)
        except (OSError, CheckpointBroken) as error:
            self._ended.put(f"an old checkpoint in {self._folder} could not be removed: {reason(error)}")
        return written


def _failure(act: Callable[..., object], *arguments: object) -> str:
    """Do it; return why the machine, not our code, made that impossible, or nothing."""
    try:
        act(*arguments)
    except OSError as error:
        return error.strerror or str(error)
    except MemoryError:
        return "the memory does not suffice to copy a member"
    except CheckpointBroken as error:
        return str(error)
    return ""
