"""A checkpoint while it is written: files under a temporary name, the manifest when all are on the disk, one rename."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import time
from pathlib import Path

from pbt_rl.record.checkpoints import PARTIAL, Checkpoint, Checkpoints
from pbt_rl.record.headers import header_to_metadata
from pbt_rl.record.manifest import FILE, STATE, Manifest, SavedFile, SavedMember, member_file
from pbt_rl.record.net_names import NetNames, to_tensors
from pbt_rl.record.tensors import Packer
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader


class UnfinishedCheckpoint:
    """Files of one checkpoint in the order in which they come. Every method but `discard` raises OSError.

    Use: `begin`, then `pack` and `write` for each member, then `finish`; or `discard` at any time.
    """

    def __init__(self, folder: Path, frames: int, names: NetNames, kept: bool) -> None:
        self._folder, self._frames, self._names, self._kept = folder, frames, names, kept
        self._path = self._partial = folder
        self._packer = Packer()
        self._packed = memoryview(b"")
        self._members: list[SavedMember] = []
        self._remembered: list[SavedMember] = []

    def begin(self, state: bytes) -> None:
        """Make the folder and write the state, JSON."""
        _make_folder(self._folder)
        _remove_partial(self._folder)
        self._number = max((one.number for one in Checkpoints(self._folder).all()), default=0) + 1
        self._path, partial = _free_names(self._folder, self._frames)
        partial.mkdir()
        self._partial = partial
        self._state = self._write(STATE, memoryview(state))

    def pack(self, snapshot: MemberSnapshot) -> None:
        """Copy a member's arrays into the bytes of its file; afterwards they may be written to. Raises MemoryError."""
        tensors = to_tensors(snapshot.arrays, self._names)
        self._packed = self._packer.pack(tensors, header_to_metadata(snapshot.header))

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

    def finish(self) -> Checkpoint:
        """Write the manifest and give the checkpoint its name."""
        manifest = Manifest(
            self._number,
            self._frames,
            time.time(),
            self._kept,
            tuple(self._members),
            tuple(self._remembered),
            self._state,
        )
        _sync_folder(self._partial)
        self._write(FILE, memoryview(manifest.to_text().encode()))
        _sync_folder(self._partial)
        self._partial.rename(self._path)
        _sync_folder(self._folder)
        return Checkpoint(self._path, manifest)

    def discard(self) -> None:
        """Remove what was written, as far as that is possible."""
        if self._partial != self._folder:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _write(self, name: str, data: memoryview) -> SavedFile:
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
        if checkpoint.kept:
            continue
        if whole < keep:
            whole += checkpoint.has_all_files()
        else:
            # Under another name first, so that a kill in between leaves no checkpoint without its files.
            partial = checkpoint.path.with_name(f"{checkpoint.path.name}.partial")
            checkpoint.path.rename(partial)
            shutil.rmtree(partial)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)


def _remove_partial(folder: Path) -> None:
    """Remove what a killed run left behind. What cannot be removed is no reason to save nothing."""
    for path in folder.iterdir():
        if PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _free_names(folder: Path, frames: int) -> tuple[Path, Path]:
    """Return the name of a new checkpoint, and its name while it is written."""
    for count in itertools.count(1):
        path = folder / (f"at_{frames}" if count == 1 else f"at_{frames}_{count}")
        partial = path.with_name(f"{path.name}.partial")
        if not (os.path.lexists(path) or os.path.lexists(partial)):
            return path, partial
    raise AssertionError


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
