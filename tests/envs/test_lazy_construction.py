"""An actor completes its vector envs while it steps them."""

import time

import pytest

from pbt_rl.envs.lazy_construction import LazyConstruction


class Growing:
    """Vector env with three missing rows, whose construction takes some time."""

    def __init__(self):
        self.missing = 3

    @property
    def incomplete(self):
        return self.missing > 0

    def construct_more(self):
        self.missing -= 1
        time.sleep(0.05)


def test_vector_envs_become_whole_one_after_the_other_while_steps_go_on():
    first, second = Growing(), Growing()
    construction = LazyConstruction([first, second])
    construction.note_answer()
    construction._at_once_until = 0.0
    steps, seconds = [0, 0], {}
    for growing in (first, second):
        began = time.monotonic()
        while growing.incomplete:
            for number in (0, 1):
                steps[number] += construction.steps(number)
            time.sleep(0.001)
            if construction.iterate():
                assert not construction.iterate(), "steps come between"
        assert steps[1] == 0, "it begins when it is whole"
        seconds[growing] = time.monotonic() - began
    assert steps[0] > 10
    assert seconds[second] > seconds[first]
    assert construction.steps(1)
    assert not construction.iterate()
    assert construction.waits_seconds is None


@pytest.mark.parametrize("late", [False, True])
def test_rows_are_made_at_once_until_the_learner_answers_and_for_some_seconds(late):
    vector_env = Growing()
    construction = LazyConstruction([vector_env])
    assert construction.iterate(), "nothing else is to be done"
    assert construction.waits_seconds == 0
    if late:
        construction._at_once_until = 0.0
        assert construction.iterate(), "the learner has not answered"
    construction.note_answer()
    assert construction.iterate() != late
    if not late:
        assert construction.waits_seconds == 0
        construction._at_once_until = time.monotonic() + 0.01
        vector_env.missing = 2
        assert construction.iterate()
    assert construction.waits_seconds > 1, "the first batch comes before"
    assert not construction.iterate()


def test_vector_envs_that_are_whole_are_stepped_and_waited_for():
    construction = LazyConstruction([object(), object()])
    assert construction.steps(0)
    assert construction.steps(1)
    assert construction.waits_seconds is None
    construction._from = 0.0
    assert not construction.iterate()
