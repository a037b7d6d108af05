"""Named arrays as the bytes of a safetensors file, and back. Reading executes nothing and trusts nothing.

The file: the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape, first and last byte;
texts under `__metadata__`), the arrays one after the other. The library reads; it does not write, so that the bytes
are copied once, outside of the interpreter's lock, and hashed and written from that copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

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
