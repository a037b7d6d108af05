"""Timeouts of code that may hang, on idle machines, busy machines and in stopped processes."""

import os
import subprocess
import sys
import time

import pytest

from pbt_rl.envs import time_limits as limits
from pbt_rl.envs.time_limits import ProcessTimeout, time_limit
from pbt_rl.errors import EnvSetupError

BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def lasts(monkeypatch, waited_share, stopped_at=()):
    """Return the seconds after which a timeout of 100 s ends. stopped_at: indices of checks that are 1000 s late."""
    now, timeout, looks = 0.0, None, 0
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    monkeypatch.setattr(limits, "waited_seconds", lambda _pid: now * waited_share)
    timeout = ProcessTimeout(100, 0)
    pause = timeout.pause
    while pause:
        now += pause + 1000 * (looks in stopped_at)
        looks += 1
        pause = timeout.next_look()
    return now


@pytest.mark.parametrize(
    ("waited_share", "seconds"), [(0, 100), (0.5, 25 + 150), (0.99, 25 + 300), (40, 25 + 300)]
)
def test_the_time_for_which_a_processor_was_waited_for_counts_a_quarter_at_least(
    monkeypatch, waited_share, seconds
):
    assert lasts(monkeypatch, waited_share) == pytest.approx(seconds, rel=0.02)


def test_the_time_for_which_a_process_is_stopped_does_not_count(monkeypatch):
    assert lasts(monkeypatch, 0, stopped_at=(0, 2)) == pytest.approx(2000 + 100)


def spin():
    while True:
        pass


@pytest.mark.parametrize("hang", [spin, lambda: time.sleep(60)])
def test_what_hangs_is_ended_whether_it_computes_or_sleeps(hang):
    with pytest.raises(EnvSetupError, match="hangs"), time_limit(0.1, "it hangs"):
        hang()


def test_a_starved_process_has_longer():
    cores = os.sched_getaffinity(0)
    core = min(cores)
    others = [subprocess.Popen([sys.executable, "-c", BUSY, str(core)]) for _ in range(3)]
    try:
        os.sched_setaffinity(0, {core})
        time.sleep(0.3)
        with time_limit(0.5, "it hangs"):
            began, computed = time.monotonic(), time.process_time()
            while time.process_time() - computed < 0.2:
                pass
        assert time.monotonic() - began > 0.5, "it was not starved"
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()
