"""Contention is what a thread waits for a core, and nothing where there is no account of it."""

import os
import subprocess
import sys
import threading
import time

import pytest

from pbt_rl.learner.contention import WINDOW_SECONDS, Contention, seconds_waited


class Machine:
    """A clock and an account that the test moves."""

    def __init__(self) -> None:
        self.now, self.waited = 0.0, 0.0

    def contention(self) -> Contention:
        return Contention(lambda _thread: self.waited, lambda: self.now)


def test_a_window_in_which_a_tenth_was_waited_makes_the_next_one_contended():
    machine = Machine()
    contended = machine.contention()
    machine.waited += 0.5
    machine.now += 0.5 * WINDOW_SECONDS
    assert not contended()  # the first window is not whole
    machine.now += 0.5 * WINDOW_SECONDS
    assert contended()
    machine.now += 0.9 * WINDOW_SECONDS
    assert contended()
    machine.now += 0.1 * WINDOW_SECONDS
    machine.waited += 0.15 * WINDOW_SECONDS
    assert contended()
    machine.now += WINDOW_SECONDS
    machine.waited += 0.09 * WINDOW_SECONDS
    assert not contended()


def test_without_an_account_nothing_is_contended():
    now = iter(range(100))
    contended = Contention(lambda _thread: None, lambda: float(next(now)))
    assert not any(contended() for _ in range(5))
    assert seconds_waited(2**30) is None  # no thread of this process


def test_threads_that_want_one_core_wait_for_it():
    """Two processes' worth of work on one core: this thread's account grows, whatever else the machine does."""
    cores = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(0, {min(cores)})
        os.sched_setaffinity(busy.pid, {min(cores)})
        mine = threading.get_native_id()
        before, end = seconds_waited(mine), time.monotonic() + 1.0
        if before is None:
            # Linux without CONFIG_SCHED_INFO: nothing is contended there, which the test above shows.
            pytest.skip("this kernel keeps no account of waiting")
        while time.monotonic() < end:
            pass
        assert seconds_waited(mine) - before > 0.2
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()
