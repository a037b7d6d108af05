"""Keepers: bounded logs, and the end of all descendants of a child, however it ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pbt_rl.processes import keeper
from pbt_rl.processes.child import Program, bound_to_us
from pbt_rl.processes.keeper import FILE_BYTES, BoundedLog
from tests.helpers.waiting import wait_until

CODE = """
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
from pbt_rl.processes.child import Program, begin_child

connection, setup = begin_child()

def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

def daemon(then):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            then()
        os._exit(0)
    os.wait()

match setup:
    case ("print",):
        print("by print", end=" ")
        ctypes.CDLL(None).printf(b"by C\\n")
        os.system("echo by a grandchild")
        connection.send("printed")
        time.sleep(600)
    case ("flood", seconds):
        line, end, count = b"x" * 4095 + b"\\n", time.monotonic() + seconds, 0
        while time.monotonic() < end:
            os.write(1, line)
            count += len(line)
        os.write(1, b"the last line")
        connection.send(count)
    case ("keep", scratch):
        stubborn_one = f"(trap '' TERM; touch {scratch}/a; sleep 600) & sleep 600"
        program = Program(["/bin/sh", "-c", stubborn_one], "the program", scratch=Path(scratch))
        while not Path(scratch, "a").exists():
            time.sleep(0.01)
        connection.send(program.pid)
        time.sleep(600)
    case ("breed", then):
        subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        daemon(lambda: os.execvp("sleep", ["sleep", "600"]))
        daemon(stubborn)
        if os.fork() == 0:
            time.sleep(600)
        if then == "without a mark":
            subprocess.Popen(["sleep", "600"], env={})
        time.sleep(0.1)
        connection.send(os.getpid())
        time.sleep(0 if then == "end" else 600)
    case ("daemon that ends",):
        daemon(lambda: os._exit(0))
        connection.send("ready")
        time.sleep(600)
    case ("terminate",):
        program = subprocess.Popen(["sleep", "600"])
        if (fork := os.fork()) == 0:
            connection.send("forked")
            time.sleep(600)
        connection.recv()
        program.terminate()
        os.kill(fork, signal.SIGTERM)
        connection.send((program.wait(30), os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])))
"""
PARENT = """
import sys, time
from pbt_rl.processes.child import Child
child = Child("child_of_the_test", "the child", ("breed", "stay"), ())
print(child.connection.recv(), flush=True)
time.sleep(600)
"""


class Clock:
    """Clock that a test sets."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(
            keeper, "time", SimpleNamespace(monotonic=lambda: self.now, strftime=time.strftime)
        )


def test_a_log_is_rotated_and_keeps_the_newest_output(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    path = tmp_path / "logs" / "a.log"
    log = BoundedLog(str(path), "actor 0")
    lines = [b"line %06d\n" % number for number in range(300_000)]
    for number in range(0, len(lines), 1000):
        clock.now += 1.0
        log.write(b"".join(lines[number : number + 1000]))
    files = [path.with_name("a.log.1"), path]
    assert all(file.stat().st_size <= FILE_BYTES for file in files)
    text = b"".join(file.read_bytes() for file in files)
    assert text.count(b"--- actor 0") == 2
    kept = [line for line in text.splitlines(keepends=True) if line.startswith(b"line")]
    assert kept == lines[-len(kept) :]
    assert len(list(path.parent.iterdir())) == 2


def test_a_log_that_cannot_be_written_goes_on_later(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    path = tmp_path / "run" / "logs" / "a.log"
    log = BoundedLog(str(path), "actor 0")
    log.write(b"first ")
    path.parent.parent.mkdir()
    log.write(b"second ")
    assert not path.parent.exists(), "not tried at every line"
    clock.now += keeper.RETRY_SECONDS
    log.write(b"third\n")
    assert path.read_bytes().endswith(b"---\nthird\n")
    assert log.tail == b"first second third\n"


def test_the_last_words_of_a_killed_child_are_in_its_log(child, tmp_path):
    one = child("print", log=tmp_path / "logs" / "a.log")
    assert one.connection.recv() == "printed"
    os.kill(one.pid, signal.SIGKILL)
    words = "by print by C\nby a grandchild"
    log = tmp_path / "logs" / "a.log"
    assert re.fullmatch(rf"the child .*SIGKILL; .*{log}.*:\n{words}", one.how_it_ended())
    head, *lines = log.read_text().splitlines()
    assert re.match(rf"--- the child, .*\b{one.pid}\b", head)
    assert "\n".join(lines) == words


@pytest.mark.parametrize("writable", [True, False])
def test_a_child_that_prints_without_end_is_not_held_up(child, tmp_path, writable):
    folder = tmp_path / "logs"
    if not writable:
        folder.write_text("a file, not a folder")
    one = child("flood", 1.0, log=folder / "a.log")
    assert one.connection.recv() > 5 * FILE_BYTES
    assert one.how_it_ended().endswith("the last line")
    assert one.exit_code() == 0
    if writable:
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert size <= 2 * FILE_BYTES
        assert (folder / "a.log").read_text().endswith("the last line")


def family(pid, size=7):
    """Return the process ids of a child's keeper and all its descendants."""
    head = psutil.Process(psutil.Process(pid).ppid())
    assert head.name() == "pbt_rl-keeper"
    everyone = [head, *head.children(recursive=True)]
    assert len(everyone) == size
    return everyone


def has_ended(process):
    """Check whether a process has ended. It may still be a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(processes):
    """Check whether all processes end in time."""
    return wait_until(lambda: all(map(has_ended, processes)))


@pytest.mark.parametrize("how", ["end", "killed", "ended by its parent"])
def test_nothing_that_a_child_has_started_outlives_it(child, how):
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    one = child("breed", "end" if how == "end" else "stay")
    pid = one.connection.recv()
    if how != "end":
        everyone = family(pid)
        if how == "killed":
            os.kill(pid, signal.SIGKILL)
        else:
            one.end(0)
        assert gone(everyone)
    assert one._keeper.wait(30) == (0 if how == "end" else -signal.SIGKILL)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_nothing_outlives_a_killed_keeper(child):
    one = child("breed", "stay")
    everyone = family(one.connection.recv())
    everyone[0].kill()
    assert "keeper" in one.how_it_ended()
    one.end(0)
    assert gone(everyone)


def test_a_stopped_keeper_still_ends_everything(child):
    one = child("breed", "without a mark")
    everyone = family(one.connection.recv(), 8)
    everyone[0].suspend()
    one.end(0)
    assert gone(everyone)
    assert one.exit_code() == -signal.SIGKILL


@pytest.mark.usefixtures("child")
def test_nothing_outlives_parent_and_child_that_are_killed_at_once():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    everyone = family(pid)
    os.kill(parent.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # its keeper was faster
        os.kill(pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(everyone)


def test_daemons_that_end_leave_no_zombies(child):
    one = child("daemon that ends")
    assert one.connection.recv() == "ready"
    head = psutil.Process(one._keeper.pid)
    assert wait_until(lambda: [p.pid for p in head.children()] == [one.pid], 5)


def test_what_a_child_has_started_can_be_terminated(child):
    one = child("terminate")
    assert one.connection.recv() == "forked"
    one.connection.send("go")
    assert one.connection.poll(20)
    assert one.connection.recv() == (-signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize("how", ["end", "killed", "keeper"])
def test_a_scratch_folder_goes_with_its_program(tmp_path, how):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    wait = "touch a; echo ready; sleep 600" if how != "end" else "touch a; exit 3"
    program = Program(["/bin/sh", "-c", f"cd {scratch}; {wait}"], "the program", scratch=scratch)
    if how != "end":
        assert wait_until((scratch / "a").exists)
        os.kill(program.pid if how == "killed" else psutil.Process(program.pid).ppid(), signal.SIGKILL)
    text = program.how_it_ended()
    program.end(0)
    assert not scratch.exists()
    assert re.match(r"the program .*" + (r"\b3$" if how == "end" else "SIGKILL"), text)


def test_a_keeper_beneath_a_child_that_is_killed_has_the_time_to_remove_its_folder(child, tmp_path):
    """The inner program's child ends after a second, so the inner keeper ends after the outer keeper."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    one = child("keep", str(scratch))
    assert one.connection.poll(20)
    inner = one.connection.recv()
    os.kill(one.pid, signal.SIGKILL)
    assert "SIGKILL" in one.how_it_ended()
    assert not psutil.pid_exists(inner)
    assert not scratch.exists()


BOUND = """
import subprocess, sys, time
from pbt_rl.processes.child import bound_to_us
program = subprocess.Popen(bound_to_us(["/bin/sleep", "600"], %d), pass_fds=[0, 1, 2, int(sys.argv[1])])
print(program.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_bound_program_gets_its_signal_when_its_parent_is_killed(number):
    readable, writable = os.pipe()
    command = [sys.executable, "-c", BOUND % number, str(writable)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[writable])
    os.close(writable)
    program = psutil.Process(int(parent.stdout.readline()))

    def state():
        opened = {path.name for path in Path(f"/proc/{program.pid}/fd").iterdir()}
        return program.name(), opened

    assert wait_until(lambda: state() == ("sleep", {"0", "1", "2"})), state()  # its loader opens libraries
    assert os.getsid(program.pid) == program.pid
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone([program])
    assert os.read(readable, 1) == b"", "nobody has the descriptor"
    os.close(readable)


def test_a_program_is_not_bound_to_a_parent_that_has_ended():
    command = bound_to_us(["/bin/echo", "ran"])
    command[command.index(str(os.getpid()))] = "1"
    orphan = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, b"")
