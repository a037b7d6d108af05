"""Format and reader of the checkpoints of a run. Reading executes no code from the files.

checkpoints/at_FRAMES/             FRAMES: population clock; a second folder with equal frames is named at_FRAMES_2
  manifest.json                    written last: a folder with a readable manifest is complete
  state.json                       state of the run, except the members (`CheckpointWriter.begin_checkpoint`)
  policy_00.safetensors            arrays of member 0 as named tensors, and its header as metadata
  remembered_00_3.safetensors      remembered state of member 0 in generation 3
checkpoints/at_FRAMES.partial/     folder that is being written or deleted; the next checkpoint removes leftovers

    in a member's file       in MemberSnapshot.arrays
    net.NAME                 "param" [N]          NAME: name in the network's `state_dict`
    optim.MOMENT.NAME        MOMENT [N]
    optim.steps              "optimizer_steps" []
    optim.lr_factor          "lr_factor" []
    stats.NORMALISER         NORMALISER

N: length of the network's flat parameter vector.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import msgspec.json
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pbt_rl.actors.state_pool import MemberSnapshot, SavedStates, SnapshotHeader
from pbt_rl.controllers.records import MOST, NOT_JSON, Whole, decoder
from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.journal import as_json_types

METADATA = "__metadata__"
LENGTH_BYTES = 8


def pack(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file with these arrays and metadata.

    Raises MemoryError if the memory does not suffice.
    """
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    data: bytes = save(contiguous, dict(metadata))
    return data


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays (writable) and the metadata of a safetensors file.

    Raises ValueError if `data` has another format.
    """
    try:
        arrays = load(data)
        size = int.from_bytes(data[:LENGTH_BYTES], "little")
        texts: _Texts = _HEADER.decode(data[LENGTH_BYTES : LENGTH_BYTES + size])
    except (SafetensorError, msgspec.DecodeError) as error:
        raise ValueError(f"it is not a safetensors file: {error}") from error
    except KeyError as unknown:
        raise ValueError(f"it contains numbers of the unsupported dtype {unknown.args[0]}") from None
    return arrays, texts.metadata


class _Texts(msgspec.Struct, rename={"metadata": METADATA}):
    metadata: dict[str, str] = {}


_HEADER = msgspec.json.Decoder(_Texts)


Arrays = Mapping[str, NDArray[Any]]

PARAM = "param"
WEIGHTS, OPTIMIZER, NORMALISERS = "net.", "optim.", "stats."
ALL = (WEIGHTS, OPTIMIZER, NORMALISERS)
"""Prefixes of tensor names in a member's file."""
OPTIMIZER_SCALARS = {"steps": "optimizer_steps", "lr_factor": "lr_factor"}
"""Scalars of the optimiser: name of the tensor in the file, without its prefix -> name of the member's array."""
MAX_LINES = 20


@dataclass(frozen=True)
class NetNames:
    """Position of each parameter of a network in the network's flat vector.

    parts: (name in the `state_dict`, offset, shape). A shape of four numbers is the kernel of a convolution: (out, in,
    height, width). The vector contains such kernels channels-last, see algos/weights.py.
    """

    parts: tuple[tuple[str, int, tuple[int, ...]], ...]
    size: int
    """Length N of the vector, including the zero padding between the parts."""

    def views(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return a view of each parameter in a flat vector [N], by name, with the shape in the `state_dict`."""
        assert flat.shape == (self.size,), f"shape {flat.shape}, wanted ({self.size},)"
        found = {}
        for name, offset, shape in self.parts:
            part = flat[offset : offset + math.prod(shape)]
            if len(shape) == 4:
                out_channels, in_channels, height, width = shape
                part = part.reshape(out_channels, height, width, in_channels).transpose(0, 3, 1, 2)
            else:
                part = part.reshape(shape)
            found[name] = part
        return found


@dataclass(frozen=True)
class Misfit:
    """Difference between a file (`has`) and a network (`wanted`): shape or dtype of a tensor.

    `has` is "none" if the file lacks the tensor. `wanted` is "none" if the network lacks the tensor.
    """

    name: str
    has: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: has {self.has}, wanted {self.wanted}"


def to_tensors(arrays: Arrays, names: NetNames) -> dict[str, NDArray[Any]]:
    """Return views (not copies) of a member's arrays, by their tensor name in a file."""
    moments = [name for name, array in arrays.items() if name != PARAM and array.shape == (names.size,)]
    tensors = {f"{WEIGHTS}{name}": view for name, view in names.views(arrays[PARAM]).items()}
    for moment in moments:
        assert "." not in moment, f"the moment {moment} has a dot in its name"
        prefix = f"{OPTIMIZER}{moment}."
        tensors |= {f"{prefix}{name}": view for name, view in names.views(arrays[moment]).items()}
    tensors |= {f"{OPTIMIZER}{saved}": arrays[name] for saved, name in OPTIMIZER_SCALARS.items()}
    others = arrays.keys() - {PARAM, *moments, *OPTIMIZER_SCALARS.values()}
    return tensors | {f"{NORMALISERS}{name}": arrays[name] for name in sorted(others)}


def from_tensors(path: Path, tensors: Arrays, names: NetNames) -> dict[str, NDArray[Any]]:
    """Copy a member's complete state from the tensors of a file into new arrays, named as in `MemberSnapshot.arrays`.

    path: used in the error message.
    Raises ConfigError with a list of differences if the tensors do not fit the network.
    """
    # Normalisers and the names of moments are taken from the file, and cannot mismatch. Weights and moments can.
    optimizer = [name.removeprefix(OPTIMIZER) for name in tensors if name.startswith(OPTIMIZER)]
    moments = sorted({name.split(".")[0] for name in optimizer} - OPTIMIZER_SCALARS.keys())
    arrays: dict[str, NDArray[Any]] = {
        name.removeprefix(NORMALISERS): np.empty_like(array)
        for name, array in tensors.items()
        if name.startswith(NORMALISERS) and array.shape != (names.size,)  # the shape of a moment
    }
    arrays |= {name: np.zeros(names.size, np.float32) for name in (PARAM, *moments)}
    arrays |= {"optimizer_steps": np.zeros((), np.float64), "lr_factor": np.zeros((), np.float32)}
    targets = to_tensors(arrays, names)
    if found := misfits(tensors, targets, ALL):
        raise ConfigError(misfit_text(path, found))
    for name, target in targets.items():
        np.copyto(target, tensors[name])
    return arrays


def check_finite(path: Path, tensors: Arrays) -> None:
    """Raise ConfigError if a tensor contains NaN or infinity. path: file of the tensors, for the message."""
    broken = sorted(name for name, array in tensors.items() if not np.isfinite(array).all())
    if broken:
        raise ConfigError(
            f"{path} contains NaN or infinity (in {', '.join(broken)[:200]}): this member cannot be used; choose "
            "another member"
        )


def misfits(has: Arrays, wanted: Arrays, prefixes: tuple[str, ...]) -> list[Misfit]:
    """Compare the tensors of a file (`has`) with the tensors of a network (`wanted`). Return the differences.

    prefixes: only tensors whose names begin with one of these texts are compared. If the network needs tensors with a
    prefix, and the file has none of them, the result contains one entry for this prefix.
    """
    found = []
    for prefix in prefixes:
        present = {name: _described(array) for name, array in has.items() if name.startswith(prefix)}
        needed = {name: _described(array) for name, array in wanted.items() if name.startswith(prefix)}
        if needed and not present:
            found.append(Misfit(f"{prefix}*", "none", f"{len(needed)} arrays"))
            continue
        for name in {**needed, **present}:
            one = Misfit(name, present.get(name, "none"), needed.get(name, "none"))
            found += [one] if one.has != one.wanted else []
    return found


def _described(array: NDArray[Any]) -> str:
    return f"{array.shape} {array.dtype.name}"


def misfit_text(path: Path, found: Sequence[Misfit]) -> str:
    """Format the error message for a file whose tensors do not fit the network of the run."""
    lines = shortened([str(misfit) for misfit in found])
    return "\n  ".join([f"{path} does not fit the network of this run:", *lines])


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first MAX_LINES lines, and a line with the number of omitted lines, if any."""
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]


KEY = "pbt_rl.member"
COUNTS = tuple(field.name for field in fields(SnapshotHeader) if field.name not in ("values", "remembered"))
"""Fields of a header that must be non-negative integers."""
_DECODER = decoder(SnapshotHeader)


def header_to_metadata(header: SnapshotHeader) -> dict[str, str]:
    """Return a header as metadata, for a member's file."""
    return {KEY: json.dumps(as_json_types(header), allow_nan=False)}


def header_from_metadata(metadata: Mapping[str, str]) -> SnapshotHeader | None:
    """Decode the header of a member's file. None if the file has no header, for example because it is exported.

    Raises ValueError for a damaged header.
    """
    if KEY not in metadata:
        return None
    try:
        header: SnapshotHeader = _DECODER.decode(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its member's header cannot be read: {error}") from error
    if not all(0 <= getattr(header, name) < MOST for name in COUNTS):
        raise ValueError(f"its member's header has a count that is out of range: {', '.join(COUNTS)}")
    return header


FORMAT: Literal[1] = 1
FILE = "manifest.json"
STATE = "state.json"
MAX_BYTES = 2**26


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint."""

    file: str
    """Name in the checkpoint's folder."""
    bytes: Whole
    sha256: str


@dataclass(frozen=True)
class SavedMember(SavedFile):
    """File of a member's state at the checkpoint, or of a remembered state."""

    member: Whole
    generation: Whole
    frames: Whole


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json.

    number: 1 for the first checkpoint of a run, 2 for the second. frames: see `Checkpoint.frames`.
    """

    number: Whole
    frames: Whole
    time: float
    """Seconds since the epoch."""
    kept: bool
    """True for a permanent checkpoint."""
    members: tuple[SavedMember, ...]
    remembered: tuple[SavedMember, ...]
    state: SavedFile
    format: Literal[1] = FORMAT

    @property
    def files(self) -> list[SavedFile]:
        """All files except the manifest."""
        return [*self.members, *self.remembered, self.state]

    def to_text(self) -> str:
        """Return the text of manifest.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


_MANIFEST_DECODER = msgspec.json.Decoder(Manifest)


def member_file(member: int, generation: int | None = None) -> str:
    """Return the name of a member's file. generation: of a remembered state. None: the state at the checkpoint."""
    name = f"policy_{member:02d}" if generation is None else f"remembered_{member:02d}_{generation}"
    return f"{name}.safetensors"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises CheckpointBroken if the file is missing or damaged."""
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
        if saved.file != name:  # a manifest must not point outside its folder
            raise CheckpointBroken(f"{path} is damaged: its entry of {name} is {saved.file!r:.60}")
    return manifest


FOLDER = re.compile(r"at_\d+(_\d+)?")
PARTIAL = re.compile(r"at_\d+(_\d+)?\.partial")
"""Patterns of the folder names of complete checkpoints (FOLDER) and of partial checkpoints (PARTIAL)."""
_STATE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Checkpoint:
    """Complete checkpoint. Methods that read states verify the checksum of the file before they use its content."""

    path: Path
    manifest: Manifest

    @property
    def frames(self) -> int:
        """Population clock at the checkpoint. For a permanent checkpoint: the frames at which it was due."""
        return self.manifest.frames

    def members(self) -> list[SavedMember]:
        """Return the members, in order of id."""
        return sorted(self.manifest.members, key=lambda saved: saved.member)

    def remembered(self) -> list[SavedMember]:
        """Return the remembered states, in order of member and generation."""
        return sorted(self.manifest.remembered, key=lambda saved: (saved.member, saved.generation))

    def state(self) -> dict[str, Any]:
        """Read state.json. NaN and infinities are strings.

        Raises CheckpointBroken if the file is missing or damaged.
        """
        try:
            return _STATE.decode(self._verified(self.manifest.state))
        except (*NOT_JSON, RecursionError) as error:
            raise CheckpointBroken(f"{self.path / STATE} is damaged: {error}") from error

    def file(self, member: int) -> Path:
        """Return the path of a member's file. Raises ConfigError if the checkpoint does not contain the member."""
        return self.path / self._saved(member_file(member)).file

    def load(self, member: int, names: NetNames, generation: int | None = None) -> MemberSnapshot:
        """Read a member's state. With `generation`: read the member's remembered state of this generation.

        Raises CheckpointBroken if the file is missing or damaged. Raises ConfigError if the checkpoint lacks the state.
        Raises ConfigError with a list of differences if the state does not fit the network.
        """
        file = member_file(member, generation)
        tensors, header = self._read(self._saved(file))
        return MemberSnapshot(header, from_tensors(self.path / file, tensors, names))

    def states(self, names: NetNames) -> SavedStates:
        """Return (member, generation) -> function that reads this state. The function raises the errors of `load`.

        generation: None for the member's state at the checkpoint, else the generation of a remembered state.
        """
        keys = [(saved.member, None) for saved in self.members()]
        remembered = [(saved.member, saved.generation) for saved in self.remembered()]
        return {
            (m, generation): partial(self.load, m, names, generation) for m, generation in keys + remembered
        }

    def tensors(self, member: int) -> tuple[dict[str, NDArray[Any]], SnapshotHeader]:
        """Read a member's tensors (by name) and header, for any network.

        Raises CheckpointBroken if the file is missing or damaged, and ConfigError if the checkpoint lacks the member.
        """
        return self._read(self._saved(member_file(member)))

    def verify(self) -> None:
        """Read all files of the checkpoint, to compare them with their checksums.

        Raises CheckpointBroken if a file is missing or differs from its checksum.
        """
        for saved in self.manifest.files:
            self._verified(saved)

    def has_all_files(self) -> bool:
        """Check whether all files exist with their recorded sizes, without reading them."""
        try:
            return all(
                (self.path / saved.file).stat().st_size == saved.bytes for saved in self.manifest.files
            )
        except OSError:
            return False

    def _read(self, saved: SavedMember) -> tuple[dict[str, NDArray[Any]], SnapshotHeader]:
        path, data = self.path / saved.file, self._verified(saved)
        try:
            tensors, metadata = unpack(data)
            header = header_from_metadata(metadata)
        except ValueError as error:
            raise CheckpointBroken(f"{path} is damaged: {error}") from error
        if header is None or (header.member, header.generation) != (saved.member, saved.generation):
            raise CheckpointBroken(f"{path} is damaged: it does not contain the member named in the manifest")
        return tensors, header

    def _saved(self, name: str) -> SavedMember:
        for saved in (*self.manifest.members, *self.manifest.remembered):
            if saved.file == name:
                return saved
        there = ", ".join(str(saved.member) for saved in self.members())
        raise ConfigError(f"{self.path} has no {name}: choose one of its members, {there}")

    def _verified(self, saved: SavedFile) -> bytes:
        """Read a file. Raises CheckpointBroken if the file is missing or differs from its checksum."""
        path = self.path / saved.file
        try:
            if not path.is_file():
                raise CheckpointBroken(f"{path} is missing")
            if (size := path.stat().st_size) != saved.bytes:
                raise CheckpointBroken(f"{path} is damaged: it has {size} bytes instead of {saved.bytes}")
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointBroken(f"{path} cannot be read: {error.strerror}") from error
        except MemoryError as error:
            raise CheckpointBroken(
                f"{path} cannot be read: it needs {saved.bytes} bytes of memory"
            ) from error
        if hashlib.sha256(data).hexdigest() != saved.sha256:
            raise CheckpointBroken(f"{path} is damaged: its checksum differs from the recorded one")
        return data


class Checkpoints:
    """Checkpoints in a folder `runs/NAME/checkpoints`. The folder may be missing.

    All methods raise CheckpointBroken if an existing folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints with a readable manifest, oldest first. Only the manifests are read."""
        return self._read()[0]

    def newest(self, note: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint whose files are all undamaged. None if there is no such checkpoint.

        note: function that prints a line about each newer checkpoint that is skipped because it is damaged.
        """
        whole = None
        readable, unreadable = self._read()
        while readable and whole is None:
            checkpoint = readable.pop()
            try:
                checkpoint.verify()
                whole = checkpoint
            except CheckpointBroken as error:
                note(f"checkpoint {checkpoint.path.name} is skipped: {error}")
        for path, reason in unreadable:
            # Without a manifest there is no number. Compare the frames in the folder's name instead.
            if whole is None or int(path.name.split("_")[1]) > whole.frames:
                note(f"checkpoint {path.name} is skipped: {reason}")
        return whole

    def at(self, frames: int) -> Checkpoint:
        """Return the last checkpoint with exactly these frames (`Checkpoint.frames`).

        Raise ConfigError with a list of the available frames if it does not exist.
        """
        found = self.all()
        for checkpoint in reversed(found):
            if checkpoint.frames == frames:
                return checkpoint
        there = ", ".join(str(frames) for frames in sorted({one.frames for one in found})) or "none"
        raise ConfigError(f"{self.folder} has no checkpoint at {frames} frames; available: {there}")

    def _read(self) -> tuple[list[Checkpoint], list[tuple[Path, CheckpointBroken]]]:
        """Return the readable checkpoints, oldest first, and the unreadable folders with their errors."""
        readable: list[Checkpoint] = []
        unreadable: list[tuple[Path, CheckpointBroken]] = []
        try:
            folders = sorted(path for path in self.folder.iterdir() if FOLDER.fullmatch(path.name))
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise CheckpointBroken(f"{self.folder} cannot be read: {error.strerror}") from error
        for path in folders:
            try:
                readable.append(Checkpoint(path, read_manifest(path / FILE)))
            except CheckpointBroken as error:
                unreadable.append((path, error))
        return sorted(readable, key=lambda one: one.manifest.number), unreadable
