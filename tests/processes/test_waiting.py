"""A child that starts before its setup is available."""

import importlib
import os
import time
from pathlib import Path

from pbt_rl.processes.child import MOST_FDS, STACKS_SIGNAL, Waiting
from tests.processes.test_child import received

LATE = """
import os
from dataclasses import dataclass

@dataclass(frozen=True)
class Setup:
    own_fds: tuple

    @property
    def fds(self):
        return self.own_fds

if __name__ == "__main__":
    print("imported", flush=True)
    from pbt_rl.processes.child import begin_child

    connection, setup = begin_child()
    print("begun", flush=True)
    for number, fd in enumerate(setup.fds):
        os.write(fd, b"%d" % number)
    connection.send([os.get_inheritable(fd) for fd in setup.fds])
    connection.recv()
"""


def test_a_child_that_waits_is_told_late_what_it_is(tmp_path, monkeypatch):
    """Its log has its earlier output. It gets more descriptors than fit a message, with other numbers."""
    (tmp_path / "late_child_of_the_test.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    waiting = Waiting("late_child_of_the_test")
    pipes = [os.pipe() for _ in range(MOST_FDS + 50)]
    log = tmp_path / "logs" / "late.log"
    try:
        setup = importlib.import_module("late_child_of_the_test").Setup(tuple(w for _, w in pipes))
        waiting.set_up("the late one", setup, setup.fds, log)
        assert received(waiting, 1) == [[False] * len(pipes)]
        assert [os.read(r, 10) for r, _ in pipes] == [b"%d" % i for i in range(len(pipes))]
        os.kill(waiting.pid, STACKS_SIGNAL)
        deadline = time.monotonic() + 30
        while " in <module>" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert " in <module>" in log.read_text(), "its stacks go where it was told late"
        waiting.discard()
        assert waiting.exit_code() is None, "it has begun"
    finally:
        waiting.end(0)
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)
    assert log.read_text().startswith("--- the late one, ")
    assert log.read_text().splitlines()[1:3] == ["imported", "begun"]


def test_a_child_that_waits_and_is_not_used_is_ended():
    waiting = Waiting("pbt_rl.learner.learner")
    pid = waiting.pid
    waiting.discard()
    waiting.discard()
    assert not Path(f"/proc/{pid}").exists()
