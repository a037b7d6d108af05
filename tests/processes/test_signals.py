"""Two presses of Ctrl-C end a process whose main thread hangs."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from pbt_rl.processes.signals import Presses
from tests.helpers.runs import ENVIRONMENT

HANGS = """
import fcntl, signal, sys
from pbt_rl.processes.signals import Presses
presses = Presses(0.2)
signal.signal(signal.SIGINT, lambda *_: presses.note())
print("ready", flush=True)
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)  # blocks forever, like a write to a slow disk that no signal interrupts
"""


@pytest.mark.parametrize(("presses", "code"), [(1, None), (2, 130)])
def test_a_process_that_hangs_ends_at_the_second_press(tmp_path, presses, code):
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [sys.executable, "-c", HANGS, path],
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout.readline() == "ready\n"
        for _ in range(presses):
            time.sleep(0.3)
            child.send_signal(signal.SIGINT)
        try:
            assert child.wait(2 if code is None else 30) == code
            assert "0 s after Ctrl-C" in child.stderr.read()
        except subprocess.TimeoutExpired:
            assert code is None
        finally:
            child.kill()
            child.communicate()


def test_a_signal_that_a_wrapper_forwards_is_the_same_press(monkeypatch):
    times = iter((10.0, 10.05, 10.1, 10.5))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    presses = Presses()
    counts = [presses.note() or presses.count for _ in range(4)]
    presses.close()
    assert counts == [1, 1, 1, 2]


def test_nothing_happens_to_a_process_that_goes_on():
    Presses(0.1).close()  # the second press never comes
    presses = Presses(0.2)
    presses.note()
    time.sleep(0.11)
    presses.note()
    assert presses.count == 2
    presses.close()
    time.sleep(0.3)  # this process is still there
