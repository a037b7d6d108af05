"""The toy that counts shows every fault, and the broken ones break."""

import json

import numpy as np
import pytest

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.envs.toy import toys
from pbt_rl.envs.toys import faults
from pbt_rl.envs.toys.counting import counting_errors
from pbt_rl.envs.toys.faults import Crashing, Hanging
from tests.envs.test_toy import play, uniform

# Counting


@pytest.fixture(scope="module")
def counted():
    obs, action, first, _, _ = play("counting", uniform(5), rows=3, steps=200)
    return obs, action, first


def test_a_whole_record_of_counting_has_no_errors(counted):
    obs, action, first = counted
    for row in range(3):
        assert first[:, row].sum() > 10
        assert counting_errors(obs[:, row], action[:, row], first[:, row]) == []
    assert len(set(obs[0, :, 0])) == 3


@pytest.mark.parametrize("start", range(30, 50))
def test_counting_shows_a_lost_a_repeated_a_foreign_and_a_changed_step(counted, start):
    obs, action, first = (array[:, 0] for array in counted)
    lost = np.delete(np.arange(200), start)
    assert counting_errors(obs[lost], action[lost], first[lost])
    repeated = np.insert(np.arange(200), start, start)
    assert counting_errors(obs[repeated], action[repeated], first[repeated])
    foreign = np.where(np.arange(200)[:, None] == start, counted[0][:, 1], obs)
    assert counting_errors(foreign, action, first)
    if not first[start + 1]:
        changed = np.where(np.arange(200) == start, (action + 1) % 5, action)
        assert counting_errors(obs, changed, first)
    miscounted = obs + np.outer(np.arange(200) == start, [0, 0, 1, 0])
    assert counting_errors(miscounted, action, first)
    flipped = np.where(np.arange(200) == start, ~first, first)
    assert counting_errors(obs, action, flipped)


def test_counting_allows_a_restarted_actor_and_only_at_a_first(counted):
    obs, action, first = (array[:, 0] for array in counted)
    restarted = np.r_[0:37, 0:60]
    assert counting_errors(obs[restarted], action[restarted], first[restarted]) == []
    broken = np.r_[0:37, 1:60]
    assert counting_errors(obs[broken], action[broken], first[broken])


# The broken ones


def test_crashing_raises_at_its_step_and_a_new_one_gets_as_far_again():
    for _ in range(2):
        with pytest.raises(RuntimeError, match="as it is meant to"):
            play("crashing?steps=50", uniform(4), rows=1, steps=60)
        play("crashing?steps=50", uniform(4), rows=1, steps=49)


def test_hanging_sleeps_at_its_step(monkeypatch):
    class Woken(Exception):  # noqa: N818
        pass

    def wake(_seconds):
        raise Woken

    monkeypatch.setattr(faults.time, "sleep", wake)
    play("hanging?steps=50", uniform(4), rows=1, steps=49)
    with pytest.raises(Woken):
        play("hanging?steps=50", uniform(4), rows=1, steps=60)
    assert issubclass(Hanging, Crashing)


def test_nan_and_wrong_shape_are_refused_by_name():
    with pytest.raises(EnvSetupError, match=r"toy/nan.*NaN"):
        play("nan", uniform(4))
    with pytest.raises(EnvSetupError, match=r"toy/wrong-shape.*\(4,\).*\(3,\)"):
        play("wrong-shape", uniform(4))


@pytest.mark.parametrize("name", [name for name in toys() if name not in ("crashing", "hanging", "masked")])
def test_a_toy_goes_on_from_its_saved_state_as_if_nothing_had_happened(name):
    one, other = toys()[name](), toys()[name]()
    one.reset(seed=3)
    other.reset(seed=4)
    one.action_space.seed(0)
    actions = [one.action_space.sample() for _ in range(6)]  # numbers of numpy, as a unit gives them
    for action in actions[:3]:
        one.step(action)
    other.restore_state(json.loads(json.dumps(one.save_state())))
    for action in actions[3:]:
        np.testing.assert_equal(other.step(action), one.step(action))
