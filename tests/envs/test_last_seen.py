"""Last action and reward as an observation, zeros at the start of an episode."""

from contextlib import closing

import numpy as np
import pytest

from pbt_rl.envs.base import LAST, cpu_clock, default_shaping_source, private_step_arrays, random_actions
from pbt_rl.envs.lazy_construction import LazyConstruction
from pbt_rl.envs.lookup import EnvOptions, LastActionVectorEnv, make_vector_env, probe

SEEING = EnvOptions(last_action_reward=True)


def played(env, steps=60, rows=3):
    """Return actions, rewards, `first` and LAST of every step after the reset."""
    spec = probe(env, SEEING)
    out, rng, history = private_step_arrays(spec, rows), np.random.default_rng(0), []
    with closing(make_vector_env(env, rows, 0, SEEING, default_shaping_source(spec))) as vector_env:
        assert vector_env.spec == spec
        if spec.agents > 1:
            vector_env.follow(lambda: (1, np.arange(rows)[None]))
        vector_env.reset(out)
        assert not out.obs[LAST].any()
        for _ in range(steps):
            action = random_actions(spec, out, rng)
            vector_env.step(action, out)
            history.append((action.copy(), out.reward.copy(), out.first.copy(), out.obs[LAST].copy()))
    return spec, [np.stack(column) for column in zip(*history, strict=True)]


@pytest.mark.parametrize(
    "env", [pytest.param("toy/masked?size=3"), "toy/treasure?length=5", pytest.param("toy/counting")]
)
def test_it_is_the_last_choice_and_the_clipped_reward(env):
    spec, (action, reward, first, last) = played(env)
    (choices,) = spec.action.nvec
    expected = np.concatenate([np.eye(choices)[action[..., 0]], np.clip(reward, -1, 1)[..., None]], -1)
    np.testing.assert_array_equal(last, np.where(first[..., None], 0, expected))
    assert first.any()
    assert (reward[~first] != 0).any()


def test_of_continuous_actions_it_is_the_action():
    _, (action, reward, first, last) = played("gym/Pendulum-v1", 30)
    assert not first.any()
    np.testing.assert_allclose(last, np.concatenate([action, np.clip(reward, -1, 1)[..., None]], -1))


def test_of_hybrid_actions_it_is_the_choices_and_then_the_numbers():
    spec, (action, _, first, last) = played("toy/hybrid")
    (choices,), numbers = spec.action.nvec, len(spec.action.low)
    assert last.shape[-1] == choices + numbers + 1
    np.testing.assert_array_equal(last[~first][:, :choices].argmax(-1), action[~first][:, 0])
    np.testing.assert_array_equal(last[~first][:, choices:-1], action[~first][:, 1:])


def test_agents_of_a_game_have_their_own():
    pytest.importorskip("pettingzoo")
    spec, (action, _, first, last) = played("pettingzoo/rps_v2", 20, rows=2)
    chosen = last[..., :-1].argmax(-1)
    assert (chosen == action[..., 0])[~first].all()
    assert spec.agents == 2


def test_an_environment_is_as_before_without_the_option():
    spec = probe("toy/identity", EnvOptions())
    with closing(
        make_vector_env("toy/identity", 1, 0, EnvOptions(), default_shaping_source(spec))
    ) as vector_env:
        assert LAST not in vector_env.spec.obs
        assert not isinstance(vector_env, LastActionVectorEnv)


def test_a_vector_env_is_saved_and_clocked_through_it():
    spec = probe("toy/treasure", SEEING)
    vector_env, again = (
        make_vector_env("toy/treasure", 2, seed, SEEING, default_shaping_source(spec)) for seed in (0, 1)
    )
    out, other = (private_step_arrays(spec, 2) for _ in range(2))
    for each, arrays in ((vector_env, out), (again, other)):
        each.reset(arrays)
    again.restore_state(vector_env.save_state())
    action = np.array([[1], [2]], np.int32)
    vector_env.step(action, out)
    again.step(action, other)
    assert all(np.array_equal(out.obs[name], other.obs[name]) for name in out.obs)
    assert cpu_clock(vector_env)() > 0


def test_first_episodes_are_cut_through_it():
    for env, cut in (("gym/CartPole-v1", True), ("toy/identity", False)):
        source = default_shaping_source(probe(env, SEEING))
        with closing(make_vector_env(env, 2, 0, SEEING, source)) as vector_env:
            assert isinstance(vector_env, LastActionVectorEnv)
            assert vector_env.spread_phases(np.random.default_rng(0)) == cut


class Lazy:
    """Shaping source that allows lazy construction, and begins without rows."""

    may_be_lazy = begins_empty = True
    envs_per_policy = 8

    def __call__(self, _row):
        return 0, probe("atari/pong", SEEING).shaping


def test_all_rows_are_made_through_it():
    rows = 24
    with closing(make_vector_env("atari/pong", rows, 0, SEEING, Lazy())) as vector_env:
        schedule, out = LazyConstruction([vector_env, vector_env]), private_step_arrays(vector_env.spec, rows)
        assert not schedule.steps(1)
        while schedule.waits_seconds is not None:
            schedule.iterate()
        assert schedule.steps(1)
        vector_env.reset(out)
        for _ in range(3):
            vector_env.step(np.zeros((rows, 1), np.int32), out)
        assert not out.first.any()
