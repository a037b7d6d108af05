"""Toys: scores of the optimal and the random policy as documented, and toys that fail."""

import json

import numpy as np
import pytest

from pbt_rl.envs import toy
from pbt_rl.envs.base import default_shaping_source, private_step_arrays
from pbt_rl.errors import EnvSetupError


def play(name, policy, *, rows=4, steps=400, seed=0, shaping=None):
    """Return the fields [T, R, ...] and the actions. policy: observations [R, ...] -> actions [R]."""
    spec = toy.probe(name)
    vector_env = toy.make_vector_env(name, rows, seed, shaping or default_shaping_source(spec))
    out = private_step_arrays(spec, rows)
    vector_env.reset(out)
    history = []
    for _ in range(steps):
        action = policy(out.obs["obs"])
        history.append(
            (out.obs["obs"].copy(), action, out.first.copy(), out.episode_done.copy(), out.objective.copy())
        )
        vector_env.step(action.reshape(rows, 1).astype(np.int32), out)
    return [np.stack(column) for column in zip(*history, strict=True)]


def objectives(*arguments, **options):
    _, _, _, done, objective = play(*arguments, **options)
    return objective[done]


def uniform(size):
    rng = np.random.default_rng(0)
    return lambda obs: rng.integers(size, size=len(obs))


def test_identity_pays_every_right_answer():
    assert (objectives("identity", lambda obs: obs.argmax(1)) == 16).all()
    assert objectives("identity", uniform(4), steps=2000).mean() == pytest.approx(4, abs=0.5)


def test_memory_needs_the_cue_and_random_earns_a_quarter():
    cues = np.zeros(4, int)

    def remember(obs):
        shown = obs[:, :4].any(1)
        cues[shown] = obs[shown, :4].argmax(1)
        return cues

    assert (objectives("memory", remember) == 1).all()
    assert objectives("memory", uniform(4), steps=4000).mean() == pytest.approx(0.25, abs=0.05)


def test_the_bait_pays_but_is_worth_nothing():
    take = lambda obs: np.full(len(obs), 4)  # noqa: E731
    answer = lambda obs: obs.argmax(1)  # noqa: E731
    assert (objectives("shaped", take) == 0).all()
    assert (objectives("shaped", answer) == 1).all()

    def reward_of_bait(bait):
        vector_env = toy.make_vector_env("shaped", 1, 0, lambda _row: (0, {"bait": bait}))
        out = private_step_arrays(vector_env.spec, 1)
        vector_env.reset(out)
        vector_env.step(np.array([[4]], np.int32), out)
        return out.reward[0]

    assert reward_of_bait(0.5) == 0.5
    assert toy.probe("shaped").shaping["bait"] > 1


def test_treasure_is_found_by_walking_towards_it():
    def towards(obs):
        cells = obs[:, :, ::4, ::4].reshape(len(obs), 2, -1).argmax(-1)
        (row, to_row), (column, to_column) = (x.T for x in np.divmod(cells, 7))
        vertical = np.where(to_row < row, 0, 1)
        return np.where(row != to_row, vertical, np.where(to_column < column, 2, 3))

    assert (objectives("treasure", towards) == 1).all()
    assert objectives("treasure", uniform(4), steps=4000).mean() == pytest.approx(0.2, abs=0.05)


def test_treasure_ends_at_the_treasure_or_by_the_limit():
    _, _, first, done, objective = play("treasure?length=6", uniform(4), rows=2, steps=200)
    lengths = [np.diff(np.flatnonzero(done[:, row]), prepend=-1) - 1 for row in range(2)]
    assert max(map(max, lengths)) == 6
    assert set(objective[done].tolist()) == {0.0, 1.0}
    assert first.any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memry", "memry.* toy/memory"),
        ("memory?dela=3", "size=NUMBER, delay=NUMBER"),
        ("memory?delay=0", "above 0"),
        ("nan?steps=3", "size=NUMBER"),
        ("counting?steps=3", "none"),
    ],
)
def test_an_unknown_toy_or_parameter_is_named(name, message):
    with pytest.raises(EnvSetupError, match=message):
        toy.probe(name)


# Counting


@pytest.fixture(scope="module")
def counted():
    obs, action, first, _, _ = play("counting", uniform(5), rows=3, steps=200)
    return obs, action, first


def test_a_whole_record_of_counting_has_no_errors(counted):
    obs, action, first = counted
    for row in range(3):
        assert first[:, row].sum() > 10
        assert toy.counting_errors(obs[:, row], action[:, row], first[:, row]) == []
    assert len(set(obs[0, :, 0])) == 3


@pytest.mark.parametrize("start", range(30, 40))
def test_counting_shows_a_lost_a_repeated_a_foreign_and_a_changed_step(counted, start):
    obs, action, first = (array[:, 0] for array in counted)
    lost = np.delete(np.arange(200), start)
    assert toy.counting_errors(obs[lost], action[lost], first[lost])
    repeated = np.insert(np.arange(200), start, start)
    assert toy.counting_errors(obs[repeated], action[repeated], first[repeated])
    foreign = np.where(np.arange(200)[:, None] == start, counted[0][:, 1], obs)
    assert toy.counting_errors(foreign, action, first)
    if not first[start + 1]:
        changed = np.where(np.arange(200) == start, (action + 1) % 5, action)
        assert toy.counting_errors(obs, changed, first)
    miscounted = obs + np.outer(np.arange(200) == start, [0, 0, 1, 0])
    assert toy.counting_errors(miscounted, action, first)
    flipped = np.where(np.arange(200) == start, ~first, first)
    assert toy.counting_errors(obs, action, flipped)


def test_counting_allows_a_restarted_actor_and_only_at_a_first(counted):
    obs, action, first = (array[:, 0] for array in counted)
    restarted = np.r_[0:37, 0:60]
    assert toy.counting_errors(obs[restarted], action[restarted], first[restarted]) == []
    broken = np.r_[0:37, 1:60]
    assert toy.counting_errors(obs[broken], action[broken], first[broken])


# Toys that fail


def test_nan_and_wrong_shape_are_refused_by_name():
    with pytest.raises(EnvSetupError, match=r"toy/nan.*NaN"):
        play("nan", uniform(4))
    with pytest.raises(EnvSetupError, match=r"toy/wrong-shape.*\(4,\).*\(3,\)"):
        play("wrong-shape", uniform(4))


@pytest.mark.parametrize("name", [name for name in toy.TOYS if name not in ("crashing", "hanging", "masked")])
def test_a_toy_goes_on_from_its_saved_state_as_if_nothing_had_happened(name):
    one, other = toy.TOYS[name](), toy.TOYS[name]()
    one.reset(seed=3)
    other.reset(seed=4)
    one.action_space.seed(0)
    actions = [one.action_space.sample() for _ in range(6)]  # numpy numbers, as a vector env passes them
    for action in actions[:3]:
        one.step(action)
    other.restore_state(json.loads(json.dumps(one.save_state())))
    for action in actions[3:]:
        np.testing.assert_equal(other.step(action), one.step(action))
