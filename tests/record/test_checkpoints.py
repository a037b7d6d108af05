"""Reading checkpoints: what was written comes back, and whatever is torn, flipped or missing is passed over, said."""

import contextlib
import json
import os
import shutil
from random import Random

import pytest

from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints, NetNames, read_manifest
from tests.helpers.checkpoints import write_all
from tests.helpers.mangle import mangled
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
    assert (found.frames, found.number, found.kept) == (2000, 2, False)
    assert found.state() == {"controller": {"seed": 3, "best": "nan"}, "text": "é"}
    assert [(s.member, s.generation, s.frames) for s in found.members()] == [(0, 1, 2000), (1, 1, 2000)]
    assert [(s.member, s.generation) for s in found.remembered()] == [(0, 0), (1, 4)]
    for member in (0, 1):
        assert_same(found.load(member, NAMES), snapshot(member, 1, 2000))
    assert_same(found.load_remembered(1, 4, NAMES), snapshot(1, 4, 2000, remembered=True))
    names = ("policy_00", "policy_01", "remembered_00_0", "remembered_01_4")
    arrays = {f"{name}.safetensors" for name in names}
    assert {p.name for p in (folder / "at_1000").iterdir()} == arrays | {"manifest.json", "state.json"}
    found.load(0, NAMES).arrays["param"].fill(0)
    assert_same(found.load(0, NAMES), snapshot(0, 1, 2000))


def test_order_is_by_number_not_by_frames(tmp_path):
    write_all(tmp_path, 2000, 1000, 2000)
    assert [one.path.name for one in Checkpoints(tmp_path).all()] == ["at_2000", "at_1000", "at_2000_2"]
    assert newest(tmp_path)[0].path.name == "at_2000_2"
    assert Checkpoints(tmp_path).at(2000).number == 3
    (tmp_path / "empty").mkdir()
    assert newest(tmp_path / "none") == newest(tmp_path / "empty") == (None, [])
    assert Checkpoints(tmp_path / "none").all() == []


def test_what_is_not_there_or_of_another_network_is_one_error(folder):
    with pytest.raises(ConfigError, match=r"5 frames.* 1000, 2000"):
        Checkpoints(folder).at(5)
    found, _ = newest(folder)
    with pytest.raises(ConfigError, match=r"policy_07.* 0, 1"):
        found.load(7, NAMES)
    with pytest.raises(ConfigError, match=r"net.heads.policy.bias: has \(4,\) float32, wanted \(3,\)"):
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
    assert note.startswith("checkpoint at_2000 is passed over: ")
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
    with pytest.raises(CheckpointBroken, match=r"policy_00.safetensors is damaged: its checksum"):
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
    with pytest.raises(CheckpointBroken, match="is damaged"):
        read_manifest(path)
    assert newest(folder)[0].frames == 1000


def test_a_strangers_pipe_is_not_waited_for(folder):
    at = folder / "at_2000"
    edit(at / "manifest.json", lambda c: c["state"].update(bytes=0))
    SPOILS["a pipe"](at / "state.json")
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


def test_a_mangled_manifest_is_broken_or_names_the_same_files(folder):
    rng, path = Random(7), folder / "at_2000" / "manifest.json"
    original, wanted = path.read_bytes(), read_everything(newest(folder)[0])
    for _ in range(300):
        path.write_bytes(mangled(original, rng))
        with contextlib.suppress(CheckpointBroken):
            found = Checkpoint(path.parent, read_manifest(path))
            found.verify()
            assert read_everything(found)[1:] == wanted[1:]


def broken(folder):
    try:
        Checkpoint(folder, read_manifest(folder / "manifest.json")).verify()
    except CheckpointBroken as error:
        return str(error)


def read_everything(checkpoint):
    members = [checkpoint.load(saved.member, NAMES) for saved in checkpoint.members()]
    members += [checkpoint.load_remembered(s.member, s.generation, NAMES) for s in checkpoint.remembered()]
    arrays = [{name: array.tobytes() for name, array in one.arrays.items()} for one in members]
    return checkpoint.manifest, checkpoint.state(), [one.header for one in members], arrays
