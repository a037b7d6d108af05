"""Rates and times of a run that may be resumed, without keeping all of its reports."""

import pytest

from pbt_rl.run.throughput import HISTORY_REPORTS, Spent, Throughput


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def throughput(clock):
    return Throughput(clock)


def running(frames_per_second, seconds, clock, throughput, begin=0):
    frames = begin
    for _ in range(seconds):
        clock.now += 1.0
        frames += frames_per_second
        throughput.note(frames, {"learning": 0.5})
    return frames


def test_rates_after_a_resume_are_those_since_then(clock, throughput):
    assert throughput.training_seconds == 0
    frames = running(100, 40, clock, throughput)
    assert (throughput.rate(), throughput.steady_rate()) == (100.0, 100.0)
    assert throughput.spent == Spent(40.0, 39.0, frames)
    other = Clock()
    other.now = 1e6
    resumed = Throughput(other)
    other.now += 30.0
    resumed.resume(throughput.spent)
    other.now += 5.0
    resumed.note(frames, {})
    assert (resumed.seconds, resumed.training_seconds, resumed.rate()) == (45.0, 39.0, 0.0)
    assert not resumed.trains
    running(10, 20, other, resumed, frames)
    assert (resumed.seconds, resumed.training_seconds) == (65.0, 58.0)
    assert (resumed.rate(), resumed.steady_rate()) == (10.0, 10.0)
    resumed.end()
    other.now += 7.0
    assert (resumed.seconds, resumed.training_seconds) == (72.0, 58.0), "it is being saved"


def test_a_run_that_has_sampled_nothing_for_a_while_is_not_one_that_starts(clock, throughput):
    throughput.note(0, {})
    assert not throughput.trains
    frames = running(100, 20, clock, throughput)
    running(0, 20, clock, throughput, frames)
    assert (throughput.rate(), throughput.trains) == (0.0, True)


def test_reports_that_are_rare_or_come_in_pairs_have_rates_too(clock, throughput):
    """Large batches, slow environments: the window of some seconds holds the newest report alone, or two at once."""
    for frames in (1800, 3600, 5400):
        clock.now += 17.9
        throughput.note(frames - 900, {})
        assert frames == 1800 or throughput.rate() == pytest.approx(50.0, rel=0.01)
        clock.now += 0.1
        throughput.note(frames, {})
        assert throughput.rate() == pytest.approx(100.0, rel=0.01)


def test_a_long_run_keeps_few_reports_and_its_rates(clock, throughput):
    frames = running(100, 3 * HISTORY_REPORTS, clock, throughput)
    running(300, 30, clock, throughput, frames)
    assert len(throughput._history) <= HISTORY_REPORTS
    assert throughput.rate() == 300.0
    assert 100 < throughput.steady_rate() < 101


def test_busy_threads_are_a_mean_over_the_last_minute(clock, throughput):
    """Learning reports 4 s of work every fourth second; no view shows 0 or 100 %."""
    seen = []
    for second in range(100):
        clock.now += 1.0
        throughput.note(second, {"learning": 4.0 if second % 4 == 3 else 0.0})
        seen.append(throughput.busy_threads(environment_seconds=1.0))
    assert seen[:5] == [{}] * 5, "too early to tell"
    assert all(0.5 < shares["learning"] < 1.5 and shares["environment"] == 1.0 for shares in seen[5:])
    assert 0.95 < seen[-1]["learning"] < 1.05


def test_a_standstill_is_told_from_reports_that_are_rare(clock, throughput):
    clock.now += 60.0
    assert throughput.stalled_seconds == 60, "it starts"
    frames = running(100, 10, clock, throughput)
    clock.now += 4.0
    assert throughput.stalled_seconds == 0
    running(0, 8, clock, throughput, frames)
    assert throughput.stalled_seconds == 12, "reports without frames do not count"
    slow = Throughput(clock)
    for frames in (1, 2, 3):
        slow.note(frames, {})
        clock.now += 10.0
    assert slow.stalled_seconds == 0
    throughput.end()
    assert throughput.stalled_seconds == 0, "a run that is being saved does not hang"
