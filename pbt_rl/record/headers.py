"""What a checkpoint says of its files: the manifest, and each member's header as a text of its file's metadata.

The manifest tells which files there are, how long each is, and the checksum of each. It is written last, so a folder
with a manifest that reads well was finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import msgspec.json

from pbt_rl.errors import CheckpointBroken
from pbt_rl.pbt.records import MOST, Whole, decoder
from pbt_rl.record.journal import as_json_types
from pbt_rl.wire.store import SnapshotHeader

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
