"""Checkpoints of a run: finding the newest whole one, and reading it. Reading executes nothing.

checkpoints/at_FRAMES/             FRAMES: the population's clock; the second one at the same frames is at_FRAMES_2
  manifest.json                    written last, so a folder where it reads well was finished
  state.json                       everything but the members: what `CheckpointWriter.begin` was given
  policy_00.safetensors            each member, by the names of record/net_names.py
  remembered_00_3.safetensors      a state that is remembered: member 0 of generation 3
checkpoints/at_FRAMES.partial/     being written or deleted; what a killed run leaves goes at its next checkpoint
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import msgspec.json
from numpy.typing import NDArray

from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.pbt.records import MOST, NOT_JSON, Whole, decoder
from pbt_rl.record.journal import as_json_types
from pbt_rl.record.net_names import NetNames, from_tensors, unpack
from pbt_rl.wire.store import MemberSnapshot, SnapshotHeader

KEY = "pbt_rl.member"
COUNTS = tuple(field.name for field in fields(SnapshotHeader) if field.name not in ("values", "remembered"))
"""Whole numbers, at least 0."""
_DECODER = decoder(SnapshotHeader)


def header_to_metadata(header: SnapshotHeader) -> dict[str, str]:
    """Return the metadata of a member's file."""
    return {KEY: json.dumps(as_json_types(header), allow_nan=False)}


def header_from_metadata(metadata: Mapping[str, str]) -> SnapshotHeader | None:
    """Return the header of a member's file; None if it has none, as weights alone do.

    Raises ValueError, saying what is wrong.
    """
    if KEY not in metadata:
        return None
    try:
        header: SnapshotHeader = _DECODER.decode(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its member's header cannot be read: {error}") from error
    if not all(0 <= getattr(header, name) < MOST for name in COUNTS):
        raise ValueError(f"its member's header has a count that none can be: {', '.join(COUNTS)}")
    return header


FORMAT: Literal[1] = 1
FILE = "manifest.json"
STATE = "state.json"
MAX_BYTES = 2**26


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint."""

    file: str
    """Name inside the checkpoint's folder."""
    bytes: Whole
    sha256: str


@dataclass(frozen=True)
class SavedMember(SavedFile):
    """The file of a member's state, present or remembered."""

    member: Whole
    generation: Whole
    frames: Whole


@dataclass(frozen=True)
class Manifest:
    """What manifest.json holds. number: rises with every checkpoint of a run; frames: the population's clock."""

    number: Whole
    frames: Whole
    time: float
    """Seconds since the epoch."""
    kept: bool
    """It is never deleted to make room for newer ones."""
    members: tuple[SavedMember, ...]
    remembered: tuple[SavedMember, ...]
    state: SavedFile
    format: Literal[1] = FORMAT

    @property
    def files(self) -> list[SavedFile]:
        """All files but the manifest."""
        return [*self.members, *self.remembered, self.state]

    def to_text(self) -> str:
        """Return the content of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


_MANIFEST_DECODER = msgspec.json.Decoder(Manifest)


def member_file(member: int, generation: int | None = None) -> str:
    """Return the name of a member's file; with a generation, of a state that is remembered."""
    name = f"policy_{member:02d}" if generation is None else f"remembered_{member:02d}_{generation}"
    return f"{name}.safetensors"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises CheckpointBroken."""
    try:
        is_one = path.is_file() and path.stat().st_size <= MAX_BYTES
        manifest: Manifest = _MANIFEST_DECODER.decode(path.read_bytes() if is_one else b"")
    except OSError as error:
        raise CheckpointBroken(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointBroken(f"{path} is damaged, or of another version: {error}") from error
    named = [
        (manifest.state, STATE),
        *((saved, member_file(saved.member)) for saved in manifest.members),
        *((saved, member_file(saved.member, saved.generation)) for saved in manifest.remembered),
    ]
    for saved, name in named:
        if saved.file != name:  # a manifest never leads out of its folder
            raise CheckpointBroken(f"{path} is damaged: its entry of {name} is {saved.file!r:.60}")
    return manifest


FOLDER = re.compile(r"at_(\d+)(_\d+)?")
PARTIAL = re.compile(r"at_\d+(_\d+)?\.partial")
"""Names of whole checkpoints, and of others."""
_STATE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint. Whatever is read is verified first."""

    path: Path
    manifest: Manifest

    @property
    def number(self) -> int:
        """Rises with every checkpoint of the run, whatever its frames."""
        return self.manifest.number

    @property
    def frames(self) -> int:
        """The population's clock."""
        return self.manifest.frames

    @property
    def time(self) -> float:
        """When it was written: seconds since the epoch."""
        return self.manifest.time

    @property
    def kept(self) -> bool:
        """Whether it is never deleted to make room for newer ones."""
        return self.manifest.kept

    def members(self) -> list[SavedMember]:
        """Return the members, in order of id."""
        return sorted(self.manifest.members, key=lambda saved: saved.member)

    def remembered(self) -> list[SavedMember]:
        """Return the states that are remembered, in order of member and generation."""
        return sorted(self.manifest.remembered, key=lambda saved: (saved.member, saved.generation))

    def state(self) -> dict[str, Any]:
        """Return everything but the members. NaN and infinities are strings. Raises CheckpointBroken."""
        try:
            return _STATE.decode(self._verified(self.manifest.state))
        except (*NOT_JSON, RecursionError) as error:
            raise CheckpointBroken(f"{self.path / STATE} is damaged: {error}") from error

    def file(self, member: int) -> Path:
        """Return the file of a member. Raises ConfigError if there is none."""
        return self.path / self._saved(member_file(member)).file

    def load(self, member: int, names: NetNames) -> MemberSnapshot:
        """Read a member. Raises CheckpointBroken; ConfigError if it is of another network, naming the layers."""
        return self._load(member_file(member), names)

    def tensors(self, member: int) -> tuple[dict[str, NDArray[Any]], SnapshotHeader]:
        """Read a member by the names of its file, whatever its network. Raises as `load` does."""
        return self._read(self._saved(member_file(member)))

    def load_remembered(self, member: int, generation: int, names: NetNames) -> MemberSnapshot:
        """Read a state that is remembered. Raises as `load` does."""
        return self._load(member_file(member, generation), names)

    def verify(self) -> None:
        """Read every file. Raises CheckpointBroken for one that is missing or differs from its checksum."""
        for saved in self.manifest.files:
            self._verified(saved)

    def has_all_files(self) -> bool:
        """Return whether every file is there and as long as it was, without reading any."""
        try:
            return all(
                (self.path / saved.file).stat().st_size == saved.bytes for saved in self.manifest.files
            )
        except OSError:
            return False

    def _load(self, name: str, names: NetNames) -> MemberSnapshot:
        tensors, header = self._read(self._saved(name))
        return MemberSnapshot(header, from_tensors(self.path / name, tensors, names))

    def _read(self, saved: SavedMember) -> tuple[dict[str, NDArray[Any]], SnapshotHeader]:
        path, data = self.path / saved.file, self._verified(saved)
        try:
            tensors, metadata = unpack(data)
            header = header_from_metadata(metadata)
        except ValueError as error:
            raise CheckpointBroken(f"{path} is damaged: {error}") from error
        if header is None or (header.member, header.generation) != (saved.member, saved.generation):
            raise CheckpointBroken(f"{path} is damaged: it does not hold the member that the manifest names")
        return tensors, header

    def _saved(self, name: str) -> SavedMember:
        for saved in (*self.manifest.members, *self.manifest.remembered):
            if saved.file == name:
                return saved
        there = ", ".join(str(saved.member) for saved in self.members())
        raise ConfigError(f"{self.path} has no {name}; it holds the members {there}")

    def _verified(self, saved: SavedFile) -> bytes:
        """Read a file. Raises CheckpointBroken unless it is the one that was written."""
        path = self.path / saved.file
        try:
            if not path.is_file():
                raise CheckpointBroken(f"{path} is missing")
            if (size := path.stat().st_size) != saved.bytes:
                raise CheckpointBroken(f"{path} is damaged: it has {size} bytes, {saved.bytes} were written")
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointBroken(f"{path} cannot be read: {error.strerror}") from error
        except MemoryError as error:
            raise CheckpointBroken(
                f"{path} cannot be read: it needs {saved.bytes} bytes of memory"
            ) from error
        if hashlib.sha256(data).hexdigest() != saved.sha256:
            raise CheckpointBroken(f"{path} is damaged: its checksum is not the one that was written")
        return data


class Checkpoints:
    """The checkpoints in a folder, which need not exist: `runs/NAME/checkpoints`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Checkpoint]:
        """Return those whose manifest reads well, by number. Only manifests are read."""
        return self._read()[0]

    def newest(self, note: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest whole one, every file verified; None if there is none.

        note: called once for every newer one that is not whole, with the file and the reason.
        """
        whole = None
        readable, unreadable = self._read()
        for checkpoint in reversed(readable):
            try:
                checkpoint.verify()
            except CheckpointBroken as error:
                note(f"checkpoint {checkpoint.path.name} is passed over: {error}")
                continue
            whole = checkpoint
            break
        for path, reason in unreadable:
            # Without its number, its frames say whether it may have been newer.
            if whole is None or _frames(path) > whole.frames:
                note(f"checkpoint {path.name} is passed over: {reason}")
        return whole

    def at(self, frames: int) -> Checkpoint:
        """Return the last one at these frames. Raises ConfigError with those that there are."""
        found = self.all()
        for checkpoint in reversed(found):
            if checkpoint.frames == frames:
                return checkpoint
        there = ", ".join(str(frames) for frames in sorted({one.frames for one in found})) or "none"
        raise ConfigError(f"{self.folder} has no checkpoint at {frames} frames; there are: {there}")

    def _read(self) -> tuple[list[Checkpoint], list[tuple[Path, CheckpointBroken]]]:
        """Return those whose manifest reads well, by number, and the folders of the others with the reason."""
        readable: list[Checkpoint] = []
        unreadable: list[tuple[Path, CheckpointBroken]] = []
        for path in self._folders():
            try:
                readable.append(Checkpoint(path, read_manifest(path / FILE)))
            except CheckpointBroken as error:
                unreadable.append((path, error))
        return sorted(readable, key=lambda one: one.number), unreadable

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if FOLDER.fullmatch(path.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointBroken(f"{self.folder} cannot be read: {error.strerror}") from error


def _frames(folder: Path) -> int:
    match = FOLDER.fullmatch(folder.name)
    assert match
    return int(match[1])
