"""Our safetensors files: the library reads them, we read the library's, and nothing but ValueError comes of others."""

import json
import struct
from random import Random

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save

from pbt_rl.record.checkpoints import DTYPES, pack, unpack

ARRAYS = {
    "small": np.array(3, np.uint8),
    "weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "steps": np.array(12.0, np.float64),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([True, False]),
}
METADATA = {"key": 'a "text", ünïcode'}


def packed():
    return pack(ARRAYS, METADATA)


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_the_library_reads_what_we_write(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(packed())
    same(load_file(path), ARRAYS)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == METADATA


def test_we_read_what_the_library_writes():
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in ARRAYS.items()}
    found, metadata = unpack(save(contiguous, METADATA))
    same(found, ARRAYS)
    assert metadata == METADATA


def test_every_array_begins_at_a_multiple_of_its_item():
    for length in range(8):
        data = bytes(pack(ARRAYS, {"key": "x" * length}))
        start = np.frombuffer(data, np.uint8).ctypes.data
        found, _ = unpack(data)
        assert all((array.ctypes.data - start) % array.itemsize == 0 for array in found.values())


def test_every_dtype_comes_back():
    arrays = {code: np.ones(3, dtype) for code, dtype in DTYPES.items()}
    same(unpack(bytes(pack(arrays, {})))[0], arrays)


def file_of(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype="F32", shape=(1,), place=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 2**63),
        file_of(b"{"),
        file_of(b"[" * 100_000),
        file_of({"__metadata__": {"a": 1}}),
        file_of({"x": {"dtype": "F32"}}),
        file_of({"x": entry("BF16", shape=(2,))}, bytes(4)),
        file_of({"x": entry(["F32"])}, bytes(4)),
        file_of({"x": entry(shape=(2,))}, bytes(4)),
        file_of({"x": entry(place=(-4, 0))}, bytes(4)),
        file_of({"x": entry(place=(0, 8), shape=(2,))}, bytes(4)),
        file_of({"x": entry(shape=(True,))}, bytes(4)),
        file_of({"x": entry(shape=(0, 10**30), place=(0, 0))}, b""),
        file_of({"x": entry(shape=(1,) * 100)}, bytes(4)),
        file_of({"x": entry()}, bytes(5)),
    ],
)
def test_what_is_no_such_file_is_one_error(data):
    with pytest.raises(
        ValueError, match=r"header|type BF16|expected|invalid|missing|not fully covered|maximum"
    ):
        unpack(data)


def test_no_flip_raises_anything_else():
    rng, data = Random(3), packed()
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(data) // rng.choice((1, 20)))] = rng.randrange(256)
        try:
            unpack(bytes(changed[: rng.choice((len(data), rng.randrange(len(data))))]))
        except ValueError:
            refused += 1
    assert refused > 150
