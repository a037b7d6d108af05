"""Toys: the best and the random score are those of their docstrings, and the broken ones break."""

import numpy as np
import pytest

from pbt_rl.envs import toy
from pbt_rl.envs.base import EnvSetupError, default_shaping_source, private_step_arrays


def play(name, policy, *, rows=4, steps=400, seed=0, shaping=None):
    """[T, R, ...] of what was delivered, and the actions that answered it; policy: obs [R, ...] -> [R]."""
    spec = toy.probe(name)
    unit = toy.make_unit(name, rows, seed, shaping or default_shaping_source(spec))
    out = private_step_arrays(spec, rows)
    unit.reset(out)
    history = []
    for _ in range(steps):
        action = policy(out.obs["obs"])
        history.append(
            (out.obs["obs"].copy(), action, out.first.copy(), out.episode_done.copy(), out.objective.copy())
        )
        unit.step(action.reshape(rows, 1).astype(np.int32), out)
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


def test_memory_shows_the_cue_at_first_only_and_the_question_after_the_delay():
    obs, _, first, done, _ = play("memory?delay=3", uniform(4), rows=1, steps=20)
    cue, asked = obs[:, 0, :4].any(1), obs[:, 0, 4] == 1
    assert (cue == first[:, 0]).all()
    assert np.flatnonzero(asked)[0] == 4
    assert (np.flatnonzero(asked) + 1 == np.flatnonzero(done[:, 0])).all()


def test_the_bait_pays_but_is_worth_nothing():
    take = lambda obs: np.full(len(obs), 4)  # noqa: E731
    answer = lambda obs: obs.argmax(1)  # noqa: E731
    assert (objectives("shaped", take) == 0).all()
    assert (objectives("shaped", answer) == 1).all()

    def reward_of_bait(bait):
        unit = toy.make_unit("shaped", 1, 0, lambda _row: (0, {"bait": bait}))
        out = private_step_arrays(unit.spec, 1)
        unit.reset(out)
        unit.step(np.array([[4]], np.int32), out)
        return out.reward[0]

    assert reward_of_bait(0.5) == 0.5
    assert toy.probe("shaped").shaping["bait"] > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memry", "did you mean toy/memory"),
        ("memory?dela=3", "size=NUMBER, delay=NUMBER"),
        ("memory?delay=0", "above 0"),
        ("memory?delay=x", "above 0"),
        pytest.param("nan?steps=3", "size=NUMBER"),
        pytest.param("counting?steps=3", "takes: none"),
    ],
)
def test_an_unknown_toy_or_parameter_is_named(name, message):
    with pytest.raises(EnvSetupError, match=message):
        toy.probe(name)
