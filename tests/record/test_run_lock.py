"""Who may write a run's folder, and what becomes of the run that was there before."""

import errno
import fcntl
import json
import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import config_from_json
from pbt_rl.record.run_lock import REPLACED, FolderLock, Held, is_held, lock_run_folder

CONFIG = Config("toy/identity", num_policies=3, name="demo")


def locked_run(out, **changes):
    return lock_run_folder(replace(CONFIG, out=out, **changes))


def old_run(out):
    """A run that has ended, with weights."""
    locked = locked_run(out)
    locked.started()
    weights = locked.folder.checkpoints / "policy_00.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"old")
    assert locked.release(failed=False) == ""
    return weights


def names(out):
    return sorted(path.name for path in out.iterdir())


def left_aside(out):
    return list(out.glob(f".*.{REPLACED}.*"))


@contextmanager
def another_process(action):
    """A process that acts and waits; yields its id once it has acted."""
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            held = action()
            os.write(done, b"1" if held is not None else b"0")
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    try:
        assert os.read(ready, 1) == b"1"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def killed(action):
    """Have a process act and die of SIGKILL at once."""
    with another_process(action):
        pass


def test_a_new_folder_holds_the_config_that_made_it(tmp_path):
    locked = locked_run(tmp_path / "new" / "runs")
    assert locked.folder.path == tmp_path / "new" / "runs" / "demo"
    assert locked.config == replace(CONFIG, out=tmp_path / "new" / "runs")
    assert config_from_json(json.loads(locked.folder.config.read_text())) == locked.config
    assert (locked.existing, locked.notes) == (False, [])
    assert is_held(locked.folder.path)
    locked.started()
    assert locked.release(failed=False) == ""
    assert locked.release(failed=True) == "", "may be called twice"
    assert not is_held(locked.folder.path)
    assert locked.folder.config.is_file()
    locked_run(tmp_path / "runs").release(failed=True)
    assert names(tmp_path) == ["new"], "what fails before its first report leaves nothing"
    locked = locked_run(tmp_path / "runs")
    locked.started()
    locked.release(failed=True)
    assert names(tmp_path / "runs") == ["demo"]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("module:Class/x", "module-Class-x-2"),
        ("toy/memory?delay=2&length=5", "toy-memory-delay-2-length-5-2"),
    ],
)
def test_a_run_without_a_name_is_named_after_its_environment_and_the_time(tmp_path, env, name):
    locked = locked_run(tmp_path, name=None, env=env)
    assert locked.folder.path.name == locked.config.name
    assert locked.config.name.startswith(name)


def test_runs_without_a_name_that_begin_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _format: "20261122-103000")
    all_locked = [locked_run(tmp_path, name=None) for _ in range(3)]
    assert [locked.existing for locked in all_locked] == [False] * 3
    made = "toy-identity-20261122-103000"
    assert (
        [locked.config.name for locked in all_locked] == [made, f"{made}-2", f"{made}-3"] == names(tmp_path)
    )


def test_an_existing_run_is_locked_and_left_as_it_is(tmp_path):
    weights = old_run(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    locked = locked_run(tmp_path, num_policies=5)
    assert locked.existing
    assert is_held(locked.folder.path)
    assert json.loads(locked.folder.config.read_text())["num_policies"] == 3
    locked.release(failed=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert weights.read_bytes() == b"old"


def test_a_replaced_run_is_kept_until_the_new_one_reports(tmp_path):
    old_run(tmp_path)
    locked = locked_run(tmp_path, overwrite=True)
    assert not locked.existing
    [aside] = left_aside(tmp_path)
    assert (aside / "checkpoints" / "policy_00.safetensors").read_bytes() == b"old"
    assert not json.loads(locked.folder.config.read_text())["overwrite"], "the file may be given as --config"
    locked.started()
    locked.started()
    locked.release(failed=True)
    assert names(tmp_path) == ["demo"]
    assert not locked.folder.checkpoints.exists()


@pytest.mark.parametrize("failed", [True, False])
def test_a_replaced_run_is_put_back_if_the_new_one_never_reports(tmp_path, failed):
    weights = old_run(tmp_path)
    locked = locked_run(tmp_path, overwrite=True, num_policies=7)
    assert locked.release(failed=failed) == ""
    assert names(tmp_path) == ["demo"]
    assert weights.read_bytes() == b"old"
    assert json.loads(locked.folder.config.read_text())["num_policies"] == 3
    assert not is_held(locked.folder.path)


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_replaced_run_is_named_and_kept_after_the_new_one_was_killed(tmp_path, overwrite):
    old_run(tmp_path)
    killed(lambda: locked_run(tmp_path, overwrite=True, num_policies=7))
    [aside] = left_aside(tmp_path)
    locked = locked_run(tmp_path, overwrite=overwrite)
    assert locked.existing is not overwrite
    (note,) = locked.notes
    assert str(aside) in note
    locked.started()
    locked.release(failed=False)
    assert names(tmp_path) == [aside.name, "demo"]
    assert (aside / "checkpoints" / "policy_00.safetensors").read_bytes() == b"old"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_run_that_another_process_writes_is_refused_by_its_process_id(tmp_path, overwrite):
    weights = old_run(tmp_path)
    with another_process(lambda: locked_run(tmp_path)) as pid:
        with pytest.raises(ConfigError, match=rf"\b{pid}\b"):
            locked_run(tmp_path, overwrite=overwrite)
        assert weights.read_bytes() == b"old"
    locked = locked_run(tmp_path, overwrite=overwrite)  # the kernel released it
    assert locked.release(failed=True) == ""
    assert weights.read_bytes() == b"old"


def test_of_many_processes_that_start_one_name_at_once_one_wins(tmp_path):
    go_read, go = os.pipe()
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                os.close(go)
                os.read(go_read, 1)  # until the parent closes its side
                locked = locked_run(tmp_path)
                code = 2 if locked.existing else signal.pause()
            except ConfigError as error:
                code = 1 if "process" in str(error) else 3
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(go_read)
    os.close(go)
    losers = [os.wait() for _ in range(7)]
    [winner] = set(pids) - {pid for pid, _ in losers}
    os.kill(winner, signal.SIGKILL)
    os.waitpid(winner, 0)
    assert [os.waitstatus_to_exitcode(status) for _, status in losers] == [1] * 7
    assert names(tmp_path) == ["demo"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_start_whose_new_folder_another_start_deletes_is_refused_by_the_winner(
    tmp_path, monkeypatch, overwrite
):
    flock, winners = fcntl.flock, []

    def overtaken(file, kind):  # another start finds the new folder before its lock is held
        monkeypatch.setattr("fcntl.flock", flock)
        winners.append(locked_run(tmp_path))
        flock(file, kind)

    monkeypatch.setattr("fcntl.flock", overtaken)
    with pytest.raises(ConfigError, match=rf"process {os.getpid()}\b"):
        locked_run(tmp_path, overwrite=overwrite)
    assert names(tmp_path) == ["demo"]
    winners[0].release(failed=False)


def test_a_folder_that_is_no_run_is_never_touched(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").touch()
    for overwrite in (True, False):
        with pytest.raises(ConfigError, match=r"demo .*config\.json"):
            locked_run(tmp_path, overwrite=overwrite)
    assert names(tmp_path / "demo") == ["thesis.tex"]


def test_a_symbolic_link_is_not_replaced(tmp_path):
    weights = old_run(tmp_path / "far")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(tmp_path / "far" / "demo")
    with pytest.raises(ConfigError, match="symbolic"):
        locked_run(tmp_path / "runs", overwrite=True)
    assert weights.exists()


@pytest.mark.parametrize("failing", ["os.fsync", "os.pwrite"], ids=["config", "lock"])
def test_a_full_disk_at_the_start_leaves_everything_as_it_was(tmp_path, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    weights = old_run(tmp_path)
    monkeypatch.setattr(failing, full)
    for out in (tmp_path, tmp_path / "runs"):
        with pytest.raises(ConfigError, match="No space"):
            locked_run(out, overwrite=True)
    assert names(tmp_path) == ["demo"]
    assert weights.read_bytes() == b"old"


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.EBADF, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTTY, errno.ESTALE]
)
def test_a_file_system_without_locks_is_said_and_used(number, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(number, os.strerror(number))

    weights = old_run(tmp_path)
    (tmp_path / ".demo.replaced.1234").mkdir()
    (tmp_path / ".demo.replaced.1234" / ".lock").touch()
    monkeypatch.setattr("fcntl.flock", unsupported)
    locked = locked_run(tmp_path)
    assert any("locks" in note for note in locked.notes)
    assert is_held(locked.folder.path) is None
    assert (tmp_path / ".demo.replaced.1234").exists(), "it may be in use"
    assert locked.release(failed=False) == ""
    assert weights.exists()


def test_a_lock_that_is_only_looked_at_does_not_stop_a_start(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    FolderLock(tmp_path / "x").release()
    looking = os.open(tmp_path / "x" / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    with monkeypatch.context() as patch:  # other threads sleep, too
        patch.setattr("time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        lock = FolderLock(tmp_path / "x")
    with pytest.raises(Held, match=rf"\b{os.getpid()}\b"):
        FolderLock(tmp_path / "x")
    os.close(looking)
    lock.release()


def test_a_run_that_is_just_being_replaced_is_left_to_that_process(tmp_path):
    weights = old_run(tmp_path)
    with another_process(lambda: locked_run(tmp_path, overwrite=True)) as pid:
        with pytest.raises(ConfigError, match=rf"\b{pid}\b"):
            locked_run(tmp_path)
        assert len(left_aside(tmp_path)) == 1
        assert is_held(tmp_path / "demo")
    assert not weights.exists()
    assert len(left_aside(tmp_path)) == 1


def test_a_start_that_was_killed_before_it_had_its_name_is_no_hindrance(tmp_path):
    left = tmp_path / ".demo.new.1234"
    left.mkdir()
    (left / ".lock").write_text("process 1 of here")
    starting = tmp_path / ".demo.new.5678"
    starting.mkdir()  # another process locks it at this moment
    locked = locked_run(tmp_path)
    assert not locked.existing
    locked.release(failed=True)
    assert names(tmp_path) == [starting.name]
