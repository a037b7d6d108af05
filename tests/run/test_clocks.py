"""Clocks that leave out the time in which the supervisor itself was stopped."""

import pytest

from pbt_rl.run import clocks
from pbt_rl.run.clocks import RunningClock, ScheduledClock, SchedulingDelay, Timeout


@pytest.fixture
def clock():
    class Clock:
        now = 100.0

        def __init__(self):
            self.scheduled = ScheduledClock(lambda: self.now)

        def run(self, seconds):
            for _ in range(round(seconds * 10)):
                self.now += 0.1
                self.scheduled.tick()

        def sleep(self, seconds):
            self.now += seconds
            self.scheduled.tick()

    return Clock()


def test_time_in_which_it_was_stopped_does_not_count(clock):
    clock.run(5)
    clock.sleep(300)
    clock.run(3)
    clock.sleep(60)
    assert clock.scheduled.of_last(368.0) == pytest.approx(8, abs=0.2)
    assert clock.scheduled.of_last(30.0) == pytest.approx(0, abs=0.2), "the second stop began before"
    clock.run(2)
    assert clock.scheduled.of_last(2.0) == pytest.approx(2)


class Stopwatch:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_timeout_ends_after_its_seconds_without_progress():
    clock = Stopwatch()
    timeout = Timeout(30.0, clock)
    for _ in range(2):
        for _ in range(295):
            clock.now += 0.1
            assert not timeout.over()
        timeout.renew()
    for _ in range(301):
        clock.now += 0.1
        over = timeout.over()
    assert over


def test_a_timeout_does_not_end_while_nobody_runs():
    """A machine that slept, or a run that was stopped by a signal, at the moment when it saved itself."""
    clock = Stopwatch()
    timeout = Timeout(30.0, clock)
    clock.now += 3600.0
    assert not timeout.over()
    for _ in range(285):
        clock.now += 0.1
        assert not timeout.over()


@pytest.mark.parametrize(("waited_share", "counted"), [(0, 60), (0.5, 30.5), (0.9, 15), (8, 15)])
def test_a_silence_in_which_a_processor_was_waited_for_counts_a_quarter_at_least(
    waited_share, counted, monkeypatch
):
    clock = Stopwatch()
    delay = SchedulingDelay(clock)
    monkeypatch.setattr(clocks, "waited_seconds", lambda _pid: clock.now * waited_share)
    for second in range(1, 61):
        clock.now = 100.0 + second
        found = delay.deduct(second, second, pid=1)
    assert found == pytest.approx(counted)


def test_what_was_waited_before_the_last_sign_does_not_shorten_a_silence(monkeypatch):
    clock = Stopwatch()
    delay = SchedulingDelay(clock)
    monkeypatch.setattr(clocks, "waited_seconds", lambda _pid: min(clock.now, 160.0))
    for second in range(1, 61):
        clock.now = 100.0 + second
        delay.deduct(second, second, pid=1)
    for second in range(1, 61):
        clock.now = 170.0 + second
        counted = delay.deduct(second, second, pid=1)
    assert counted == pytest.approx(60)


def test_threads_that_end_do_not_lengthen_a_silence(monkeypatch):
    """What they had waited is no longer counted by the kernel."""
    clock = Stopwatch()
    delay, waited = SchedulingDelay(clock), iter([50.0, 1.0])
    monkeypatch.setattr(clocks, "waited_seconds", lambda _pid: next(waited))
    for second in (10, 11):
        clock.now = 100.0 + second
        counted = delay.deduct(second, second, pid=1)
    assert counted == pytest.approx(11)


def test_the_time_in_which_the_process_was_stopped_does_not_count():
    now, cpu = [100.0], [3.0]
    clock = RunningClock(lambda: now[0], lambda: cpu[0])
    now[0] += 20.0  # SIGSTOP
    assert clock() == pytest.approx(100.0, abs=0.01)
    now[0], cpu[0] = now[0] + 20.0, cpu[0] + 19.0  # it computes, and lets no other thread run
    assert clock() == pytest.approx(120.0, abs=0.01)
    now[0] += 1.0
    assert clock() == pytest.approx(121.0, abs=0.01)
