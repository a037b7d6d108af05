"""Named arrays as the bytes of a safetensors file, and back. Reading executes nothing and trusts nothing.

The file: the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape, first and last byte;
texts under `__metadata__`), the arrays one after the other. Written here and not by the library so that the bytes
are copied once, outside of the interpreter's lock, and hashed and written from that copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
CODES = {dtype: code for code, dtype in DTYPES.items()}
LENGTH_BYTES = 8
MAX_DIMENSIONS = 32


class Packer:
    """Makes files in one block of memory that it keeps, so that files of one size cost no new memory."""

    def __init__(self) -> None:
        self._block: NDArray[np.uint8] = np.empty(0, np.uint8)

    def pack(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> memoryview:
        """Return the bytes of a file, valid until the next call. Raises MemoryError."""
        # The widest first: then every array lies at a multiple of its item's size.
        ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
        header = _header(ordered, metadata)
        size = len(header) + sum(array.nbytes for array in ordered.values())
        if self._block.size < size:
            self._block = np.empty(size, np.uint8)
        block = self._block[:size]
        block[: len(header)] = np.frombuffer(header, np.uint8)
        offset = len(header)
        for array in ordered.values():
            target = np.ndarray(array.shape, array.dtype, buffer=block.data, offset=offset)
            np.copyto(target, array)
            offset += array.nbytes
        return block.data


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a file, as read-only views of `data`, and its metadata.

    Raises ValueError, saying what is wrong, for anything that is not such a file.
    """
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < max(start, LENGTH_BYTES):
        raise ValueError("it is shorter than its header says")
    try:
        header = json.loads(data[LENGTH_BYTES:start])
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")  # noqa: TRY004 - the file is wrong, not an argument
    metadata = header.pop(METADATA, {})
    if not (isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())):
        raise ValueError("its metadata are not texts")
    body = len(data) - start
    ends = [_check(name, entry, body) for name, entry in header.items()]
    if max(ends, default=0) != body:
        raise ValueError("bytes follow its last array")
    return {name: _view(entry, data, start) for name, entry in header.items()}, metadata


def _header(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        entries[name] = {
            "dtype": CODES[array.dtype.str],
            "shape": array.shape,
            "data_offsets": (offset, offset + array.nbytes),
        }
        offset += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _check(name: str, entry: Any, body: int) -> int:
    """Check the header's entry of one array; return where the array ends in the body."""
    if not (isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}):
        raise ValueError(f"{name} has no dtype, shape and place")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and dtype in DTYPES):
        raise ValueError(f"{name} has the dtype {dtype}, which cannot be read; known are {', '.join(DTYPES)}")
    if not (_whole_numbers(shape, body) and _whole_numbers(place, body) and len(place) == 2):
        raise ValueError(f"{name} has an impossible shape or place")
    if place[1] - place[0] != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise ValueError(f"{name} has another size than its shape")
    return int(place[1])


def _whole_numbers(value: Any, at_most: int) -> bool:
    """Return whether this is a list of a few whole numbers from 0 to `at_most`; True is none."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(number) is int and 0 <= number <= at_most for number in value)
    )


def _view(entry: Mapping[str, Any], data: bytes, start: int) -> NDArray[Any]:
    return np.ndarray(
        tuple(entry["shape"]), DTYPES[entry["dtype"]], buffer=data, offset=start + entry["data_offsets"][0]
    )
