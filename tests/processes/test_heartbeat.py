"""Heartbeat of a learner."""

import time

import pytest

from pbt_rl.actors.state_pool import anonymous_memory
from pbt_rl.processes.polling import MAIN_NS, Heartbeat


@pytest.fixture
def heart(monkeypatch):
    """Return (the supervisor's heartbeat, the learner's heartbeat in the same memory, a clock in seconds)."""
    clock = {"now": 50.0}
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(clock["now"] * 1e9))
    fd = anonymous_memory(Heartbeat.SIZE, "test")
    supervisor, learner = Heartbeat(fd), Heartbeat(fd)
    supervisor.note_start()
    return supervisor, learner, clock


def test_a_start_counts_and_the_main_thread_must_give_signs_even_if_the_trainer_does(heart):
    supervisor, _, clock = heart
    clock["now"] = 53.0
    assert supervisor.heartbeat_age_seconds == 3
    supervisor, learner, clock = heart
    clock["now"] = 60.0
    learner.beat_trainer(True)
    assert supervisor.heartbeat_age_seconds == 10


def test_an_idle_trainer_gives_no_sign_and_a_busy_one_must(heart):
    supervisor, learner, clock = heart
    learner.beat_trainer(True)
    clock["now"] = 60.0
    learner.beat_main()
    clock["now"] = 61.0
    assert supervisor.heartbeat_age_seconds == 11, "it learns"
    learner.beat_trainer(False)
    assert supervisor.heartbeat_age_seconds == 1, "nothing to learn"


def test_a_trainer_that_begins_while_its_signs_are_read_does_not_hang(heart):
    supervisor, learner, clock = heart
    cells = supervisor._cells

    class BeginsInBetween:
        def __iter__(self):
            return (self[cell] for cell in range(3))

        def __getitem__(self, cell):
            value = cells[cell]
            if cell != MAIN_NS:
                learner.beat_trainer(True)
            return value

    learner.beat_trainer(False)
    clock["now"] = 500.0
    learner.beat_main()
    supervisor._cells = BeginsInBetween()
    assert supervisor.heartbeat_age_seconds == 0
