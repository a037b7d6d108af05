"""DeepMind Lab2D: levels, rewards of players, time limits, seeds and wrong settings."""

import numpy as np
import pytest

from pbt_rl.envs import lookup
from pbt_rl.envs.base import default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.errors import EnvSetupError

pytest.importorskip("dmlab2d")
SMALL = {"spriteSize": 1}


def vector_env_of(level, rows, seed=0, **settings):
    options = EnvOptions(keywords=SMALL | settings)
    spec = lookup.probe(f"dmlab2d/{level}", options)
    vector_env = lookup.make_vector_env(f"dmlab2d/{level}", rows, seed, options, default_shaping_source(spec))
    out = private_step_arrays(spec, rows)
    vector_env.reset(out)
    return vector_env, out


def play(vector_env, out, steps, seed=0):
    """Return (observation sums, rewards) of a random policy."""
    rng, seen, rewards = np.random.default_rng(seed), [], []
    for _ in range(steps):
        nvec = vector_env.spec.action.nvec
        vector_env.step(rng.integers(0, nvec, (vector_env.rows, len(nvec))).astype(np.int32), out)
        seen.append(out.obs["obs"].astype(int).sum())
        rewards.append(out.reward.copy())
    return seen, np.array(rewards)


@pytest.mark.parametrize(
    ("level", "agents", "nvec"),
    [
        ("chase_eat", 1, (5,)),
        ("clean_up", 2, (5, 3, 2, 2)),
        ("commons_harvest", 2, (5, 3, 2)),
        ("pushbox", 1, (5,)),
        ("running_with_scissors", 2, (5, 3, 2)),
    ],
)
def test_every_level_plays(level, agents, nvec):
    assert f"{level}" in lookup.FAMILIES["dmlab2d"].names()
    vector_env, out = vector_env_of(level, 2)
    assert (vector_env.spec.agents, vector_env.spec.action.nvec) == (agents, nvec)
    assert vector_env.spec.obs["obs"].shape[0] == 3
    seen, _ = play(vector_env, out, 20)
    assert len(set(seen)) > 1
    vector_env.close()
    vector_env.close()


def test_apples_are_paid_to_the_player_that_eats_them():
    vector_env, out = vector_env_of("commons_harvest", 4, numPlayers=4)
    _, rewards = play(vector_env, out, 150)
    assert set(np.unique(rewards)) <= {0.0, 1.0, -1.0, -50.0, -51.0, -49.0}
    assert (rewards > 0).any(0).sum() >= 2
    assert ((rewards > 0).sum(1) < 4).all(), "not everybody is paid for what one has eaten"
    np.testing.assert_allclose(out.raw_return, rewards.sum(0))
    vector_env.close()


def test_the_time_limit_truncates_and_the_levels_end_terminates():
    vector_env, out = vector_env_of("commons_harvest", 2, episodeLengthFrames=7)
    play(vector_env, out, 7)
    assert out.truncated.all()
    assert not out.terminated.any()
    assert (out.length == 7).all()
    assert (out.episode_done & (out.obs["obs"].sum((1, 2, 3)) > 0)).all()
    play(vector_env, out, 1)
    assert out.first.all()
    vector_env.close()
    vector_env, out = vector_env_of("chase_eat", 8)
    ended = []
    for step in range(60):
        play(vector_env, out, 1, seed=step)
        ended += out.terminated[out.episode_done].tolist()
    assert ended
    assert all(ended), "a caught player is a terminal state"
    vector_env.close()


def test_actions_are_counted_from_the_least():
    """The engine's bounds of turning are -1 and 1: choice 1 does nothing, and choice 0 turns the picture."""
    vector_env, out = vector_env_of("commons_harvest", 1, numPlayers=1)
    before = out.obs["obs"].copy()
    vector_env.step(np.array([[0, 1, 0]], np.int32), out)
    still = (out.obs["obs"] != before).mean()
    vector_env.step(np.array([[0, 0, 0]], np.int32), out)
    assert still < 0.05 < (out.obs["obs"] != before).mean()
    vector_env.close()


def test_equal_seeds_give_equal_worlds():
    def told(seed):
        vector_env, out = vector_env_of("commons_harvest", 4, seed, episodeLengthFrames=10)
        seen, _ = play(vector_env, out, 25)
        vector_env.close()
        return seen

    assert told(1) == told(1) != told(2)


@pytest.mark.parametrize(
    ("level", "settings", "said"),
    [
        ("comons_harvest", {}, r"comons_harvest.* dmlab2d/commons_harvest\b"),
        ("commons_harvest", {"numPlayers": 99}, r"numPlayers=99 .*\b20\b"),
        ("commons_harvest", {"apples": 3}, r"Invalid setting: apples = \"3\""),
    ],
)
def test_unusable_settings_are_one_clear_error(level, settings, said):
    with pytest.raises(EnvSetupError, match=said) as error:
        lookup.probe(f"dmlab2d/{level}", EnvOptions(keywords=settings))
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
