"""Writing checkpoints: nothing is lost to a kill, to a full disk or to reused memory, and nothing stays behind."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pbt_rl.errors import RunFailed
from pbt_rl.record.checkpoint_writer import CheckpointWriter, UnfinishedCheckpoint, WriteFailed, Written
from pbt_rl.record.checkpoints import Checkpoints
from tests.helpers.checkpoints import TIMEOUT_SECONDS, ended, write_all, write_one
from tests.helpers.runs import HANG_SECONDS
from tests.helpers.snapshots import NAMES, assert_same, snapshot

ROOT = Path(__file__).parents[2]
FULL = "No space left on device"


@pytest.fixture
def writer(tmp_path):
    made = CheckpointWriter(tmp_path / "checkpoints", NAMES, 2, warn=lambda text: None)
    yield made
    assert made.close(TIMEOUT_SECONDS)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def nothing():
    pass


def test_what_is_reported(writer, tmp_path):
    found = write_one(writer, 700, members=3, remembered=[(0, 4)], kept=True)
    assert (found.number, found.frames, found.members, found.kept) == (1, 700, 3, True)
    assert found.path == tmp_path / "checkpoints" / "at_700"
    assert found.bytes == sum(p.stat().st_size for p in found.path.iterdir() if p.name != "manifest.json")
    assert found.seconds > 0
    assert not writer.busy


@pytest.mark.parametrize(("kept", "name"), [(False, "at_130"), (True, "at_100")])
def test_it_is_named_by_the_frames_that_its_members_have(writer, tmp_path, kept, name):
    """Learners go on between the order and their save; member 2 does not train any more."""
    writer.begin_checkpoint(100, {}, 3, kept=kept)
    for member, frames in enumerate((140, 130, 60)):
        writer.add(snapshot(member, 1, frames), nothing)
    written = ended(writer)
    assert (written.path.name, names(tmp_path / "checkpoints")) == (name, [name])
    assert Checkpoints(tmp_path / "checkpoints").all()[0].frames == written.frames == int(name[3:])


def test_memory_may_be_reused_when_done_is_called(writer, tmp_path):
    """Each `done` fills the arrays with the next member's, as one entry of shared memory would be."""
    arrays = {name: array.copy() for name, array in snapshot(0, 1, 100).arrays.items()}
    members = iter(range(1, 4))

    def reuse():
        for name, array in snapshot(next(members, 9), 1, 100).arrays.items():
            np.copyto(arrays[name], array)

    writer.begin_checkpoint(100, {}, 3, kept=False)
    for member in range(3):
        writer.add(type(snapshot())(snapshot(member, 1, 100).header, arrays), reuse)
    assert isinstance(ended(writer), Written)
    found = Checkpoints(tmp_path / "checkpoints").at(100)
    for member in range(3):
        assert_same(found.load(member, NAMES), snapshot(member, 1, 100))


def test_the_state_is_that_of_the_beginning(writer, tmp_path):
    state = {"list": [1]}
    writer.begin_checkpoint(100, state, 1, kept=False)
    state["list"].append(2)
    writer.add(snapshot(0, 1, 100), nothing)
    assert ended(writer).frames == 100
    assert Checkpoints(tmp_path / "checkpoints").at(100).state() == {"list": [1]}


def test_a_state_that_is_no_json_is_refused_and_changes_nothing(writer):
    with pytest.raises(TypeError):
        writer.begin_checkpoint(100, {"x": object()}, 1, kept=False)
    assert not writer.busy
    assert isinstance(write_one(writer, 100), Written)


def test_the_newest_and_the_kept_stay(tmp_path):
    for frames, kept in ((100, False), (200, True), (300, False), (400, True), (500, False)):
        write_all(tmp_path, frames, keep=2, kept=kept)
    assert names(tmp_path) == ["at_200", "at_300", "at_400", "at_500"]
    write_all(tmp_path, 600, keep=1)
    assert names(tmp_path) == ["at_200", "at_400", "at_600"]


def test_one_that_lacks_a_file_does_not_count_as_one_that_stays(tmp_path):
    write_all(tmp_path, 100, 200)
    (tmp_path / "at_200" / "state.json").unlink()
    write_all(tmp_path, 300, keep=2)
    assert names(tmp_path) == ["at_100", "at_200", "at_300"]
    write_all(tmp_path, 400, keep=2)
    assert names(tmp_path) == ["at_300", "at_400"]


def test_what_is_no_checkpoint_is_never_deleted(tmp_path):
    for name in ("at_50", "at_60_copy", "mine.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy_00.safetensors").write_bytes(b"weights")
    write_all(tmp_path, 100, 200, keep=1)
    assert names(tmp_path) == ["at_200", "at_50", "at_60_copy", "mine.partial"]


def test_the_same_frames_again_get_a_name_of_their_own_and_a_killed_runs_leftover_goes(tmp_path):
    assert [one.path.name for one in write_all(tmp_path, 100, 100, 100)] == ["at_100", "at_100_2", "at_100_3"]
    (tmp_path / "at_100.partial").mkdir()
    (tmp_path / "at_100.partial" / "policy_00.safetensors").write_bytes(b"half")
    write_all(tmp_path, 200)
    assert names(tmp_path) == ["at_100", "at_100_2", "at_100_3", "at_200"]


def test_files_have_the_mode_of_other_files(tmp_path):
    old = os.umask(0o027)
    try:
        (written,) = write_all(tmp_path, 100)
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in written.path.iterdir()} == {0o640}


def test_all_is_on_the_disk_before_the_manifest_and_the_manifest_before_the_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, Path.rename

    def recorded(fd):
        events.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "rename", lambda path, to: (events.append("rename"), rename(path, to))[1])
    write_all(tmp_path / "c", 100)
    files = ["state.json", "policy_00.safetensors", "policy_01.safetensors"]
    assert events[:4] == [tmp_path.name, *files]
    assert events[4:] == ["at_100.partial", "manifest.json", "at_100.partial", "rename", "c"]


class Disk:
    """Fails at one call of a file or folder operation, from `at` on, or never."""

    def __init__(self, monkeypatch):
        self.calls, self.at, self.once = 0, None, True
        calls = ((os, "fsync"), (Path, "mkdir"), (Path, "rename"), (Path, "open"), (Path, "iterdir"))
        for owner, name in calls:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call):
        def counted(*args, **more):
            if threading.current_thread().name == "checkpoints":
                self.calls += 1
                if self.calls == self.at or (self.at and not self.once and self.calls > self.at):
                    raise OSError(errno.ENOSPC, FULL)
            return call(*args, **more)

        return counted


def test_a_disk_that_fails_at_any_call_costs_that_checkpoint_only(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    folder, dones = tmp_path / "checkpoints", []
    warnings = []
    writer = CheckpointWriter(folder, NAMES, 2, warnings.append)
    assert isinstance(write_one(writer, 100), Written)
    calls, failed = disk.calls, 0
    for at in range(1, calls + 3):
        disk.calls, disk.at = 0, at
        writer.begin_checkpoint(100 * at, {}, 2, kept=False)
        for member in (0, 1):
            writer.add(snapshot(member, 1, 100 * at), lambda: dones.append(1))
        result = ended(writer)
        disk.at = None
        if isinstance(result, WriteFailed):
            failed += 1
            assert FULL in result.reason
            assert result.frames == 100 * at
            assert [name for name in names(folder) if name.endswith(".partial")] == []
        newest = Checkpoints(folder).newest(warnings.append)
        assert newest is not None
        assert_same(newest.load(1, NAMES), snapshot(1, 1, newest.frames))
    assert failed >= 8
    assert len(dones) == 2 * (calls + 2)
    assert all("removed" in warning for warning in warnings)
    disk.calls = 0
    assert isinstance(write_one(writer, 10**6), Written)
    assert writer.close(TIMEOUT_SECONDS)


def test_an_old_one_that_cannot_be_removed_is_a_warning_and_no_checkpoint_any_more(tmp_path, monkeypatch):
    warnings = []
    writer = CheckpointWriter(tmp_path, NAMES, 1, warnings.append)
    write_one(writer, 100)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        assert isinstance(write_one(writer, 200), Written)
    (warning,) = warnings
    assert "removed: no" in warning
    assert names(tmp_path) == ["at_100.partial", "at_200"]
    write_one(writer, 300)
    assert names(tmp_path) == ["at_300"]
    assert writer.close(TIMEOUT_SECONDS)


def refuse(path):
    raise PermissionError("no")


def test_an_abandoned_one_leaves_nothing_and_the_next_is_whole(writer, tmp_path):
    writer.begin_checkpoint(100, {}, 2, kept=False)
    writer.add(snapshot(), nothing)
    writer.abandon("learner 0 died")
    late = threading.Event()
    writer.add(snapshot(1), late.set)
    assert late.wait(TIMEOUT_SECONDS)
    assert ended(writer) == WriteFailed(100, "learner 0 died")
    assert names(tmp_path / "checkpoints") == []
    assert isinstance(write_one(writer, 200), Written)
    writer.abandon("too late")
    assert isinstance(write_one(writer, 300), Written)


def test_one_that_is_abandoned_too_late_removes_no_older_one(tmp_path, monkeypatch):
    folder, begins, goes_on = tmp_path / "checkpoints", threading.Event(), threading.Event()
    made = CheckpointWriter(folder, NAMES, 1, warn=pytest.fail)
    write_one(made, 100)

    def finish(files, real=UnfinishedCheckpoint.finish):
        begins.set()
        goes_on.wait(TIMEOUT_SECONDS)
        real(files)

    with monkeypatch.context() as patch:
        patch.setattr(UnfinishedCheckpoint, "finish", finish)
        made.begin_checkpoint(200, {}, 1, kept=False)
        made.add(snapshot(0, 1, 200), nothing)
        assert begins.wait(TIMEOUT_SECONDS)
        made.abandon("learner 0 died")
        goes_on.set()
        assert isinstance(ended(made), Written)
    assert names(folder) == ["at_100", "at_200"]
    write_one(made, 300)
    assert names(folder) == ["at_300"]
    assert made.close(TIMEOUT_SECONDS)


def test_closing_finishes_what_is_complete_and_gives_up_the_rest(tmp_path):
    writer = CheckpointWriter(tmp_path, NAMES, 2, warn=lambda text: None)
    writer.begin_checkpoint(100, {}, 1, kept=False)
    writer.add(snapshot(0, 1, 100), nothing)
    assert writer.close(TIMEOUT_SECONDS)
    assert isinstance(ended(writer), Written)

    writer = CheckpointWriter(tmp_path, NAMES, 2, warn=lambda text: None)
    writer.begin_checkpoint(200, {}, 2, kept=False)
    writer.add(snapshot(0, 1, 100), nothing)
    assert writer.close(TIMEOUT_SECONDS)
    assert "members" in ended(writer).reason
    assert names(tmp_path) == ["at_100"]


def test_closing_does_not_wait_longer_than_it_may(tmp_path, monkeypatch):
    hang = threading.Event()
    writer = CheckpointWriter(tmp_path, NAMES, 2, warn=lambda text: None)
    writer.begin_checkpoint(100, {}, 1, kept=False)
    writer.add(snapshot(), hang.wait)
    assert not writer.close(0.01)
    hang.set()
    assert writer.close(TIMEOUT_SECONDS)


def test_an_error_of_ours_reaches_the_owner(tmp_path):
    writer = CheckpointWriter(tmp_path, NAMES, 2, warn=lambda text: None)
    writer.begin_checkpoint(100, {}, 1, kept=False)
    arrays = {**snapshot().arrays, "param": np.zeros(3, np.float32)}
    writer.add(type(snapshot())(snapshot().header, arrays), nothing)
    assert writer.close(TIMEOUT_SECONDS)
    with pytest.raises(RunFailed, match=r"shape \(3,\), wanted \(64,\)"):
        writer.poll()


def test_a_process_killed_at_any_moment_costs_at_most_what_was_unfinished(tmp_path):
    """20 kills; see the helper for what is checked after each."""
    command = [sys.executable, "-m", "tests.helpers.killed_writer", str(tmp_path), "20", "5"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert result.returncode == 0, result.stderr
    written, unfinished = map(int, result.stdout.split())
    assert written > 0
    assert unfinished > 0
