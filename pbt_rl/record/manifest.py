"""The manifest of a checkpoint: which files it has, how long each is, and the checksum of each and of itself.

It is written last, so a folder with a manifest that reads well was finished.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pbt_rl.errors import CheckpointBroken
from pbt_rl.record.headers import is_count

FORMAT = 1
FILE = "manifest.json"
STATE = "state.json"
MAX_BYTES = 2**26
CHECKSUM = "checksum"


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint."""

    file: str
    """Name inside the checkpoint's folder."""
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SavedMember(SavedFile):
    """The file of a member's state, present or remembered."""

    member: int
    generation: int
    frames: int


@dataclass(frozen=True)
class Manifest:
    """What manifest.json holds. number: rises with every checkpoint of a run; frames: the population's clock."""

    number: int
    frames: int
    time: float
    """Seconds since the epoch."""
    kept: bool
    """It is never deleted to make room for newer ones."""
    members: tuple[SavedMember, ...]
    remembered: tuple[SavedMember, ...]
    state: SavedFile

    @property
    def files(self) -> list[SavedFile]:
        """All files but the manifest."""
        return [*self.members, *self.remembered, self.state]

    def to_text(self) -> str:
        """Return the content of the file."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content | {CHECKSUM: _checksum(content)}, indent=1) + "\n"


def member_file(member: int, generation: int | None = None) -> str:
    """Return the name of a member's file; with a generation, of a state that is remembered."""
    name = f"policy_{member:02d}" if generation is None else f"remembered_{member:02d}_{generation}"
    return f"{name}.safetensors"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises CheckpointBroken."""
    try:
        if path.stat().st_size > MAX_BYTES or not path.is_file():
            raise CheckpointBroken(f"{path} is not a manifest")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointBroken(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointBroken(f"{path} is damaged: it is not JSON") from error
    try:
        return _manifest(content)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointBroken(f"{path} is damaged: {error}") from error


def _manifest(content: Any) -> Manifest:
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the file is wrong, not an argument
    if content.get(CHECKSUM) != _checksum({k: v for k, v in content.items() if k != CHECKSUM}):
        raise ValueError("its checksum is wrong")
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']}; this version reads {FORMAT}")
    members = tuple(_member(entry, member_file(entry["member"])) for entry in content["members"])
    remembered = tuple(
        _member(entry, member_file(entry["member"], entry["generation"])) for entry in content["remembered"]
    )
    state = SavedFile(**content["state"])
    _check_file(state, STATE)
    number, frames, kept = content["number"], content["frames"], content["kept"]
    if not (is_count(number) and is_count(frames) and type(kept) is bool and type(content["time"]) is float):
        raise ValueError("its number, frames, time or kept has an impossible value")
    return Manifest(number, frames, content["time"], kept, members, remembered, state)


def _member(entry: Any, name: str) -> SavedMember:
    saved = SavedMember(**entry)
    _check_file(saved, name)
    if not all(map(is_count, (saved.member, saved.generation, saved.frames))):
        raise ValueError(f"{name} has an impossible member, generation or frames")
    return saved


def _check_file(saved: SavedFile, name: str) -> None:
    """Names must be those that are written here: a manifest never leads out of its folder."""
    if saved.file != name or not is_count(saved.bytes) or not isinstance(saved.sha256, str):
        raise ValueError(f"its entry of {name} is damaged")


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
