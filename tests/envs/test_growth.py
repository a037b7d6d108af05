"""An actor's vector envs become whole while it steps them."""

import time

import pytest

from pbt_rl.envs.growth import Growth


class Growing:
    """A vector env with three rows missing, each of which takes a while to make."""

    def __init__(self):
        self.missing = 3

    @property
    def grows(self):
        return self.missing > 0

    def grow(self):
        self.missing -= 1
        time.sleep(0.05)


def test_vector_envs_become_whole_one_after_the_other_while_steps_go_on():
    first, second = Growing(), Growing()
    growth = Growth([first, second])
    growth.note_answer()
    growth._at_once_until = 0.0
    steps, seconds = [0, 0], {}
    for growing in (first, second):
        began = time.monotonic()
        while growing.grows:
            for number in (0, 1):
                steps[number] += growth.steps(number)
            time.sleep(0.001)
            if growth.iterate():
                assert not growth.iterate(), "steps come between"
        assert steps[1] == 0, "it begins when it is whole"
        seconds[growing] = time.monotonic() - began
    assert steps[0] > 10
    assert seconds[second] > seconds[first]
    assert growth.steps(1)
    assert not growth.iterate()
    assert growth.waits_seconds is None


@pytest.mark.parametrize("late", [False, True])
def test_rows_are_made_at_once_until_the_learner_answers_and_for_some_seconds(late):
    vector_env = Growing()
    growth = Growth([vector_env])
    assert growth.iterate(), "nothing else is to be done"
    assert growth.waits_seconds == 0
    if late:
        growth._at_once_until = 0.0
        assert growth.iterate(), "the learner has not answered"
    growth.note_answer()
    assert growth.iterate() != late
    if not late:
        assert growth.waits_seconds == 0
        growth._at_once_until = time.monotonic() + 0.01
        vector_env.missing = 2
        assert growth.iterate()
    assert growth.waits_seconds > 1, "the first batch comes before"
    assert not growth.iterate()


def test_vector_envs_that_are_whole_are_stepped_and_waited_for():
    growth = Growth([object(), object()])
    assert growth.steps(0)
    assert growth.steps(1)
    assert growth.waits_seconds is None
    growth._from = 0.0
    assert not growth.iterate()
