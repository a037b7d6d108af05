"""Two presses of Ctrl-C end a process whose main thread hangs."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from pbt_rl.run.insist import Presses, Watchdog
from tests.helpers.runs import ENVIRONMENT

HANGS = """
import fcntl, signal, sys
from pbt_rl.run.insist import Watchdog
signal.signal(signal.SIGINT, lambda *_: None)
with Watchdog(0.2):
    print("ready", flush=True)
    file = open(sys.argv[1])
    fcntl.flock(file, fcntl.LOCK_EX)  # for ever: as a write to a dead disk, a signal does not end it
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
            assert child.wait(2) == code
            assert "something hung for 0 s after Ctrl-C" in child.stderr.read()
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
    assert counts == [1, 1, 1, 2]


def test_nothing_happens_to_a_process_that_goes_on():
    before = signal.set_wakeup_fd(-1)
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with Watchdog(0.1):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(before)
