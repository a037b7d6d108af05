"""A member's arrays as named tensors of a safetensors file, and back.

    in a file                in MemberSnapshot.arrays
    net.NAME                 "param" [N]          NAME: of the network's `state_dict`
    optim.MOMENT.NAME        MOMENT [N]
    optim.steps              "optimizer_steps" []
    optim.lr_factor          "lr_factor" []
    stats.NORMALISER         NORMALISER

N numbers in the flat vector of a network's parameters.

The file: the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape, first and last byte;
texts under `__metadata__`), the arrays one after the other. Reading executes nothing and trusts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from pbt_rl.errors import ConfigError

METADATA = "__metadata__"
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
LENGTH_BYTES = 8


def pack(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file. Raises MemoryError."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    data: bytes = save(contiguous, dict(metadata))
    return data


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a file, which may be written to, and its metadata.

    Raises ValueError, saying what is wrong, for anything that is not such a file.
    """
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:LENGTH_BYTES], "little")
        texts: _Texts = _HEADER.decode(data[LENGTH_BYTES : LENGTH_BYTES + size])
    except (SafetensorError, msgspec.DecodeError) as error:
        raise ValueError(f"it is no safetensors file: {error}") from error
    unknown = sorted({entry["dtype"] for _, entry in entries} - DTYPES.keys())
    if unknown:
        raise ValueError(f"it holds numbers of the type {unknown[0]}, which cannot be read")
    arrays = {
        name: np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries
    }
    return arrays, texts.metadata


class _Texts(msgspec.Struct, rename={"metadata": METADATA}):
    metadata: dict[str, str] = {}


_HEADER = msgspec.json.Decoder(_Texts)


Arrays = Mapping[str, NDArray[Any]]

PARAM = "param"
WEIGHTS, OPTIMIZER, NORMALISERS = "net.", "optim.", "stats."
ALL = (WEIGHTS, OPTIMIZER, NORMALISERS)
"""Prefixes of the names in a file."""
OPTIMIZER_SCALARS = {"steps": "optimizer_steps", "lr_factor": "lr_factor"}
"""Name behind the prefix in a file -> name of the array."""
MAX_LINES = 20


@dataclass(frozen=True)
class NetNames:
    """Where each parameter of a network lies in its flat vector.

    parts: (name of the `state_dict`, offset, shape). A shape of four numbers is a convolution's, (out, in, height,
    width), and lies channels-last in the vector, as algos/weights.py has it.
    """

    parts: tuple[tuple[str, int, tuple[int, ...]], ...]
    size: int
    """N, with the padding between the parts, which is 0."""

    def views(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Views of a flat vector [N] by name, in the shapes of the `state_dict`."""
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
    """One name that a file has and a network does not, or the other way, or in another shape or dtype."""

    name: str
    has: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: has {self.has}, wanted {self.wanted}"


def to_tensors(arrays: Arrays, names: NetNames) -> dict[str, NDArray[Any]]:
    """Return views of a member's arrays by the names of a file. Nothing is copied."""
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
    """Return a member's arrays, new ones, from the tensors of its whole state.

    Raises ConfigError with the layers if they are another network's. path: for that message.
    """
    # The optimiser and the normalisers are those of the file, so only the network decides what fits.
    optimizer = [name.removeprefix(OPTIMIZER) for name in tensors if name.startswith(OPTIMIZER)]
    moments = sorted({name.split(".")[0] for name in optimizer} - OPTIMIZER_SCALARS.keys())
    arrays: dict[str, NDArray[Any]] = {
        name.removeprefix(NORMALISERS): np.empty_like(array)
        for name, array in tensors.items()
        if name.startswith(NORMALISERS) and array.shape != (names.size,)  # that would be a moment
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
    """Check arrays of a file. Raises ConfigError for numbers that are not finite."""
    broken = sorted(name for name, array in tensors.items() if not np.isfinite(array).all())
    if broken:
        raise ConfigError(
            f"{path} holds numbers that are not finite (in {', '.join(broken)[:200]}): the member is broken and cannot "
            "be used; choose another one"
        )


def misfits(has: Arrays, wanted: Arrays, prefixes: tuple[str, ...]) -> list[Misfit]:
    """Compare what a file has with what is wanted. One entry stands for a prefix of which the file has nothing."""
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
    """Return the message about a file that does not fit."""
    lines = [str(misfit) for misfit in found[:MAX_LINES]]
    more = [f"and {len(found) - MAX_LINES} more"] if len(found) > MAX_LINES else []
    return "\n  ".join([f"{path} does not fit the network of this run:", *lines, *more])
