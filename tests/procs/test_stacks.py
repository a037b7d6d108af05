"""Where every process stands: children in Python, within C, stopped and ended."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from pbt_rl.procs.child import STACKS_SIGNAL, Child
from pbt_rl.procs.stacks import StackDumps

CODE = """
import itertools
import threading
import time
from pbt_rl.procs.child import begin_child

connection, setup = begin_child()

def within_c():
    connection.send("ready")
    sum(itertools.repeat(1))  # does not come back to the interpreter

def beside():
    time.sleep(1e6)

def churn(depth):
    return depth and churn(depth - 1) + 1  # of frames in memory that is given back

def churns():
    while True:
        churn(400)

if setup == "end":
    raise SystemExit(0)
if setup == "two":
    threading.Thread(target=beside, daemon=True).start()
if setup == "churns":
    for _ in range(2):
        threading.Thread(target=churns, daemon=True).start()
    connection.send("ready")
    while True:
        time.sleep(1e-4)
within_c()
"""


@pytest.fixture
def children(tmp_path, monkeypatch):
    (tmp_path / "child_of_the_test.py").write_text(CODE)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    started = []
    yield started
    for child in started:
        child.end(0)


@pytest.mark.parametrize("writable", [True, False])
def test_every_process_is_shown(tmp_path, capfd, children, writable):
    folder = tmp_path / "logs"
    if not writable:
        folder.write_text("a file, not a folder")
    before = signal.getsignal(STACKS_SIGNAL)
    dumps = StackDumps(folder, lambda: children)
    for name in ("busy", "stopped", "end", "two"):
        children.append(Child("child_of_the_test", name, name, (), None, dumps.fd))
    busy, stopped, end, two = children
    assert [child.connection.recv() for child in (busy, stopped, two)] == 3 * ["ready"]
    os.kill(stopped.pid, signal.SIGSTOP)
    end.how_it_ended()
    for _ in range(2):
        os.kill(os.getpid(), STACKS_SIGNAL)
        time.sleep(0.01)
    dumps.close()
    said = capfd.readouterr().err
    assert said.count("(most recent call first):\n") >= 2, "by the handler in C"
    if writable:
        *_, file = sorted(folder.iterdir())  # one per second
        assert f"where every process stands: {file}\n" in said
        said = file.read_text()
    assert f"supervisor (process {os.getpid()})\n" in said
    assert "test_every_process_is_shown" in said
    assert re.search(rf"^busy \(process {busy.pid}\)\n.*\n.*line \d+ in within_c\n", said, flags=re.MULTILINE)
    assert f"stopped (process {stopped.pid})\nit writes nothing; its state is T (stopped)" in said
    assert "end has ended\n" in said
    of_two = said[said.index(f"two (process {two.pid})\n") :]
    assert re.findall(r" in (within_c|beside)\n", of_two)[:2] == ["within_c", "beside"], (
        "no thread can run Python"
    )
    assert signal.getsignal(STACKS_SIGNAL) == before


def test_threads_that_run_are_shown_and_survive_it(tmp_path, children):
    """A handler in C that walked through their frames meanwhile crashed, once in some dozens of times."""
    dumps = StackDumps(tmp_path, lambda: children)
    children.append(Child("child_of_the_test", "churns", "churns", (), None, dumps.fd))
    child = children[0]
    assert child.connection.recv() == "ready"
    for _ in range(30):
        os.kill(os.getpid(), STACKS_SIGNAL)
        time.sleep(0.001)
    dumps.close()
    said = max(tmp_path.iterdir()).read_text()
    threads = re.findall(
        r"^((?:Current t|T)hread) 0x", said.split(f"churns (process {child.pid})\n")[1], re.MULTILINE
    )
    assert threads == ["Thread", "Thread", "Current thread"]
