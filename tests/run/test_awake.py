"""The clock that leaves out the time in which the supervisor itself was stopped."""

import pytest

from pbt_rl.run.awake import AwakeClock


@pytest.fixture
def clock():
    class Clock:
        now = 100.0

        def __init__(self):
            self.awake = AwakeClock(lambda: self.now)

        def run(self, seconds):
            for _ in range(round(seconds * 10)):
                self.now += 0.1
                self.awake.tick()

        def sleep(self, seconds):
            self.now += seconds
            self.awake.tick()

    return Clock()


def test_all_time_counts_while_the_process_runs(clock):
    clock.run(20)
    assert clock.awake.of_last(15.0) == pytest.approx(15)


def test_time_in_which_it_was_stopped_does_not_count(clock):
    clock.run(5)
    clock.sleep(300)
    clock.run(3)
    clock.sleep(60)
    assert clock.awake.of_last(368.0) == pytest.approx(8, abs=0.2)
    assert clock.awake.of_last(30.0) == pytest.approx(0, abs=0.2), "the second stop began before"
    clock.run(2)
    assert clock.awake.of_last(2.0) == pytest.approx(2)
