"""Reading checkpoints: what was written comes back, and whatever is torn, flipped or missing is passed over, said."""

import dataclasses
import json
import os
import shutil
import struct
from random import Random

import numpy as np
import pytest
import safetensors
import torch
from safetensors.numpy import load_file, save

from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.checkpoints import (
    Checkpoint,
    Checkpoints,
    NetNames,
    from_tensors,
    header_to_metadata,
    pack,
    read_manifest,
    to_tensors,
    unpack,
)
from tests.helpers.checkpoints import write_all
from tests.helpers.mangle import mangled
from tests.helpers.packs import FRAMES, HYPERS, make_pack
from tests.helpers.snapshots import NAMES, assert_same, snapshot

ANOTHER = NetNames((*NAMES.parts[:3], ("heads.policy.bias", 52, (3,))), 64)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_all(folder, 1000, 2000, remembered=[(0, 0), (1, 4)])
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """Two checkpoints: at_1000 (the older) and at_2000."""
    return shutil.copytree(written, tmp_path / "checkpoints")


def newest(folder):
    notes = []
    return Checkpoints(folder).newest(notes.append), notes


def edit(path, change):
    """Change a manifest."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_everything_comes_back_from_the_files_that_are_documented(folder):
    found, notes = newest(folder)
    assert notes == []
    assert (found.frames, found.manifest.number, found.manifest.kept) == (2000, 2, False)
    assert found.state() == {"controller": {"seed": 3, "best": "nan"}, "text": "é"}
    assert [(s.member, s.generation, s.frames) for s in found.members()] == [(0, 1, 2000), (1, 1, 2000)]
    assert [(s.member, s.generation) for s in found.remembered()] == [(0, 0), (1, 4)]
    for member in (0, 1):
        assert_same(found.load(member, NAMES), snapshot(member, 1, 2000))
    assert_same(found.load(1, NAMES, 4), snapshot(1, 4, 2000, remembered=True))
    names = ("policy_00", "policy_01", "remembered_00_0", "remembered_01_4")
    arrays = {f"{name}.safetensors" for name in names}
    assert {p.name for p in (folder / "at_1000").iterdir()} == arrays | {"manifest.json", "state.json"}
    found.load(0, NAMES).arrays["param"].fill(0)
    assert_same(found.load(0, NAMES), snapshot(0, 1, 2000))


def test_order_is_by_number_not_by_frames(tmp_path):
    write_all(tmp_path, 2000, 1000, 2000)
    assert [one.path.name for one in Checkpoints(tmp_path).all()] == ["at_2000", "at_1000", "at_2000_2"]
    assert newest(tmp_path)[0].path.name == "at_2000_2"
    assert Checkpoints(tmp_path).at(2000).manifest.number == 3
    (tmp_path / "empty").mkdir()
    assert newest(tmp_path / "none") == newest(tmp_path / "empty") == (None, [])
    assert Checkpoints(tmp_path / "none").all() == []


def test_what_is_not_there_or_of_another_network_is_one_error(folder):
    with pytest.raises(ConfigError, match=r"5 frames.* 1000, 2000"):
        Checkpoints(folder).at(5)
    found, _ = newest(folder)
    with pytest.raises(ConfigError, match=r"policy_07.* 0, 1"):
        found.load(7, NAMES)
    with pytest.raises(ConfigError, match=r"net.heads.policy.bias: .*\(4,\) float32.* \(3,\)"):
        found.load(0, ANOTHER)


FILES = ["manifest.json", "state.json", "policy_01.safetensors", "remembered_00_0.safetensors"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


SPOILS = {
    "missing": lambda path: path.unlink(),
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("spoil", SPOILS)
def test_the_one_before_is_taken_and_the_broken_file_named(folder, file, spoil):
    path = folder / "at_2000" / file
    SPOILS[spoil](path)
    found, notes = newest(folder)
    assert found.frames == 1000
    (note,) = notes
    assert "at_2000" in note
    assert str(path) in note


def test_all_broken_leaves_none(folder):
    flip(folder / "at_1000" / "state.json")
    flip(folder / "at_2000" / "manifest.json")
    found, notes = newest(folder)
    assert found is None
    assert len(notes) == 2


def test_folders_without_manifest_partial_ones_and_others_are_not_worth_a_note(folder):
    (folder / "at_500").mkdir()  # weights that an earlier version kept
    shutil.copytree(folder / "at_2000", folder / "at_3000.partial")
    shutil.copytree(folder / "at_2000", folder / "at_3000.bak")
    (folder / "policy_00.safetensors").write_bytes(b"weights")
    found, notes = newest(folder)
    assert (found.path.name, notes) == ("at_2000", [])


def test_what_changes_after_the_check_is_noticed_when_it_is_loaded(folder):
    found, _ = newest(folder)
    flip(found.path / "policy_00.safetensors")
    with pytest.raises(CheckpointBroken, match=r"policy_00.safetensors .*checksum"):
        found.load(0, NAMES)


def test_members_that_were_swapped_are_noticed(folder):
    at = folder / "at_2000"
    (at / "policy_00.safetensors").rename(at / "x")
    (at / "policy_01.safetensors").rename(at / "policy_00.safetensors")
    (at / "x").rename(at / "policy_01.safetensors")
    assert newest(folder)[0].frames == 1000


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["members"][0].update(file="/etc/passwd"),
        lambda c: c["state"].update(file="../state.json"),
        lambda c: c["members"][0].update(generation=-1),
        lambda c: c["members"][0].update(frames=True),
        lambda c: c["members"][0].update(bytes=10**400),
        lambda c: c["members"][0].update(sha256=None),
        lambda c: c["members"][0].pop("bytes"),
        lambda c: c.update(members=[1]),
        lambda c: c.update(number="1"),
        lambda c: c.update(time=10**400),
        lambda c: c.update(kept=1),
        lambda c: c.update(format=2),
    ],
)
def test_a_manifest_that_a_stranger_wrote_is_read_strictly(folder, change):
    path = folder / "at_2000" / "manifest.json"
    edit(path, change)
    with pytest.raises(CheckpointBroken, match=r"manifest\.json .*damaged"):
        read_manifest(path)
    assert newest(folder)[0].frames == 1000


@pytest.mark.parametrize("file", [file for file in FILES if file != "manifest.json"])
def test_300_mangles_are_detected_or_harmless(folder, file):
    """What is still taken for whole loads as it was written; nothing but CheckpointBroken is raised."""
    rng, path = Random(file), folder / "at_2000" / file
    original, detected = path.read_bytes(), 0
    wanted = read_everything(newest(folder)[0])
    for _ in range(300):
        path.write_bytes(mangled(original, rng))
        error = broken(path.parent)
        if error is None:
            found = Checkpoint(path.parent, read_manifest(path.parent / "manifest.json"))
            assert read_everything(found) == wanted
        else:
            detected += 1
            assert str(path) in error
    assert detected > 250


def broken(folder):
    try:
        Checkpoint(folder, read_manifest(folder / "manifest.json")).verify()
    except CheckpointBroken as error:
        return str(error)


def read_everything(checkpoint):
    members = [checkpoint.load(saved.member, NAMES) for saved in checkpoint.members()]
    members += [checkpoint.load(s.member, NAMES, s.generation) for s in checkpoint.remembered()]
    arrays = [{name: array.tobytes() for name, array in one.arrays.items()} for one in members]
    return checkpoint.manifest, checkpoint.state(), [one.header for one in members], arrays


# -- safetensors files: the library reads ours, and we read the library's -----------------------------------

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
    codes = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "bool")
    arrays = {code: np.ones(3, code) for code in codes}
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


# -- names of parameters ------------------------------------------------------------------------------------


def names_of(pack):
    layout = pack._layout
    parts = [(f"body.{s.name}", s.start, s.shape) for s in layout.body]
    parts += [(f"heads.{s.name}", s.start, s.shape) for s in layout.heads]
    return NetNames(tuple(parts), layout.size)


def write(path, one, names=NAMES):
    path.write_bytes(pack(to_tensors(one.arrays, names), header_to_metadata(one.header)))
    return path


def test_names_and_shapes_are_those_of_the_network():
    pack = make_pack([HYPERS], layout=FRAMES)
    names = names_of(pack)
    state = pack.export_member(0)
    found = names.views(state["param"].numpy())
    wanted = pack.weights_of(state)
    assert any(len(weight.shape) == 4 for weight in wanted.values())
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(torch.from_numpy(found[name]), weight)


def test_a_packs_member_comes_back_bit_for_bit():
    pack = make_pack([HYPERS], layout=FRAMES)
    arrays = {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}
    one = dataclasses.replace(snapshot(), arrays=arrays)
    found = from_tensors("file", to_tensors(arrays, names_of(pack)), names_of(pack))
    assert_same(dataclasses.replace(one, arrays=found), one)


def test_names_in_the_file():
    named = to_tensors(snapshot().arrays, NAMES)
    layers = [name for name, _, _ in NAMES.parts]
    others = "optim.steps optim.lr_factor stats.return_square"
    others += " stats.obs_mean.x stats.obs_var.x stats.obs_count.x"
    of_layers = {f"{part}.{name}" for part in ("net", "optim.mean", "optim.square") for name in layers}
    assert {*named} == of_layers | {*others.split()}
    assert named["net.body.conv.weight"].shape == (2, 3, 2, 2)


@pytest.mark.parametrize("name", ["stats.param", "optim.param.w", "optim..w", "stats.flat.of_size_n"])
def test_names_of_a_stranger_are_refused_as_layers(name):
    shape = NAMES.size if name == "stats.flat.of_size_n" else 1
    tensors = to_tensors(snapshot().arrays, NAMES) | {name: np.zeros(shape, np.float32)}
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        from_tensors("file", tensors, NAMES)
