"""`load_policy`: a saved member as a function plays the games that `pbt-rl eval` plays."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
import torch

from pbt_rl.config import Config, ModelConfig
from pbt_rl.envs.base import default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import EnvOptions, evaluation_options, make_vector_env
from pbt_rl.envs.toy import Hybrid, Memory
from pbt_rl.errors import ConfigError
from pbt_rl.play.evaluate import evaluate
from pbt_rl.play.policy import load_policy
from pbt_rl.record.saved import Source
from tests.helpers.saved import saved_run

MLP = ModelConfig(encoder="mlp", hidden=8, layers=1)


def policy_of(tmp_path, env, model=MLP, **how):
    return load_policy(saved_run(tmp_path / "run", Config(env=env, num_policies=1, model=model)), **how)


def episode(text):
    """(objective, steps) of the only episode that was printed."""
    line = next(line for line in text.splitlines() if line.startswith("episode"))
    objective, steps = line.split("objective ")[1].split(",")
    return float(objective), int(steps.split()[0])


def played(policy, game):
    """Play the first game of row 0 under the seed 3: (objective, steps)."""
    obs, _ = game.reset(seed=int(np.random.SeedSequence(3).generate_state(1)[0]))
    state, score, steps, over = None, 0.0, 0, False
    while not over:
        action, state = policy(obs, state)
        assert game.action_space.contains(action)
        obs, reward, terminated, truncated, _ = game.step(action)
        score, steps, over = score + reward, steps + 1, terminated or truncated
    return score, steps


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(
    ("env", "model"),
    [
        ("gym/CartPole-v1", MLP),
        ("gym/CartPole-v1", ModelConfig("mlp", (8, 6), 9)),
        ("toy/memory?delay=9", ModelConfig("mlp", 8, 1, core="gru", core_size=8)),
    ],
)
def test_plays_the_game_of_an_evaluation(tmp_path, capsys, env, model, greedy):
    run = saved_run(tmp_path / "run", Config(env=env, num_policies=1, model=model))
    evaluate(Source(run), 1, None, 3, greedy=greedy)
    expected = episode(capsys.readouterr().out)

    policy = load_policy(run, greedy=greedy, seed=3)
    game = gymnasium.make(env.removeprefix("gym/")) if env.startswith("gym/") else Memory(delay=9)
    assert played(policy, game) == expected


def test_plays_the_game_of_an_evaluation_on_stacked_frames(tmp_path, capsys):
    model = ModelConfig(encoder="nature", hidden=16)
    run = saved_run(tmp_path / "run", Config(env="atari/breakout", num_policies=1, model=model))
    evaluate(Source(run), 1, None, 7, greedy=False)
    expected = episode(capsys.readouterr().out)

    policy = load_policy(run, seed=7)
    options = evaluation_options("atari/breakout", EnvOptions())
    vector_env = make_vector_env("atari/breakout", 1, 7, options, default_shaping_source(policy.spec))
    out, state = private_step_arrays(vector_env.spec, 1), None
    vector_env.reset(out)
    while not out.episode_done[0]:
        action, state = policy(out.obs["obs"][0], None if out.first[0] else state)
        vector_env.step(action[None], out)
    vector_env.close()
    assert (float(out.objective[0]), int(out.length[0])) == expected
    assert policy.spec.frame_stack == 4


def test_rows_are_answered_as_one_by_one_and_may_begin_apart(tmp_path):
    """Greedy, because samples are drawn for all rows together."""
    model = ModelConfig("mlp", 8, 1, core="gru", core_size=8)
    policy = policy_of(tmp_path, "toy/identity?size=4", model, greedy=True)
    obs_TRF = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    first_TR = np.zeros((6, 3), np.bool_)
    first_TR[0] = first_TR[3, 1] = True
    state, states = None, [None] * 3
    for obs_RF, first_R in zip(obs_TRF, first_TR, strict=True):
        actions, state = policy(obs_RF, state, first_R)
        assert actions.shape == (3,)
        for row in range(3):
            one, states[row] = policy(obs_RF[row], None if first_R[row] else states[row])
            assert isinstance(one, np.int64), "as a sample of the space"
            assert one == actions[row]
            torch.testing.assert_close(state.recurrent_PRS[0, row], states[row].recurrent_PRS[0, 0])


def test_without_a_state_all_episodes_begin_whatever_is_said_of_rows(tmp_path):
    policy = policy_of(tmp_path, "atari/breakout", ModelConfig(encoder="nature", hidden=16), greedy=True)
    obs = np.random.default_rng(0).integers(0, 255, (1, *policy.spec.obs["obs"].shape), np.uint8)
    _, begun = policy(obs)
    _, said = policy(obs, None, np.zeros(1, np.bool_))
    torch.testing.assert_close(said.frames["obs"], begun.frames["obs"])


def test_a_state_is_never_changed(tmp_path):
    model = ModelConfig(encoder="nature", hidden=16, core="gru", core_size=8)
    policy = policy_of(tmp_path, "atari/pong", model, greedy=True)
    frames = np.random.default_rng(0).integers(256, size=(3, 84, 84), dtype=np.uint8)
    _, first = policy(frames[0])
    kept = first.frames["obs"].clone(), first.recurrent_PRS.clone()
    _, second = policy(frames[1], first)
    assert torch.equal(first.frames["obs"], kept[0])
    assert torch.equal(first.recurrent_PRS, kept[1])
    assert not torch.equal(second.frames["obs"], kept[0])
    _, again = policy(frames[1], first)
    assert torch.equal(second.recurrent_PRS, again.recurrent_PRS)


def test_a_dict_is_read_by_its_keys_and_its_mask_is_obeyed(tmp_path):
    policy = policy_of(tmp_path, "toy/masked")
    for allowed in range(4):
        mask = np.zeros(4, np.uint8)
        mask[allowed] = 1
        assert policy({"obs": np.ones(4, np.float32), "action_mask": mask})[0] == allowed


def test_tuples_and_dicts_are_read_and_answered_in_the_form_of_the_spaces(tmp_path, capsys):
    run = saved_run(tmp_path / "run", Config(env="toy/hybrid", num_policies=1, model=MLP))
    evaluate(Source(run), 1, None, 3, greedy=False)
    expected = episode(capsys.readouterr().out)
    policy = load_policy(run, seed=3)
    assert played(policy, Hybrid()) == pytest.approx(expected, abs=0.01)
    index, number = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)
    actions, _ = policy((index, {"number": number}))
    assert {name: part.shape for name, part in actions.items()} == {"number": (4, 1), "index": (4,)}
    with pytest.raises(ConfigError, match=r"lacks '1\.number'"):
        policy((index[0],))
    for wrong in (index[:3], index[0]):
        with pytest.raises(ConfigError, match=r"different numbers of rows .*'1\.number' 4"):
            policy((wrong, {"number": number}))


def test_continuous_actions_come_in_the_shape_of_the_space(tmp_path):
    policy = policy_of(tmp_path, "gym/Pendulum-v1")
    action, _ = policy(np.zeros(3, np.float32))
    actions, _ = policy(np.zeros((5, 3), np.float32))
    assert (action.shape, actions.shape, action.dtype) == ((1,), (5, 1), np.float32)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros((1, 2, 4), np.float32), r"shape \(1, 2, 4\): give \(4,\)"),
        ({"pixels": np.zeros(4, np.float32)}, "lacks 'obs'"),
        (np.full(4, np.nan, np.float32), "NaN "),
        ([[1, 2, 3, 4], [1, 2]], "observation 'obs' of gym/CartPole-v1 cannot be used"),
    ],
)
def test_an_observation_that_does_not_fit_is_one_clear_error(tmp_path, obs, message):
    policy = policy_of(tmp_path, "gym/CartPole-v1")
    with pytest.raises(ConfigError, match=message):
        policy(obs)


@pytest.mark.parametrize(
    "argument", [{"at": "8988"}, {"at": -1}, {"seed": -1}, {"seed": 2**70}, {"seed": "1"}, {"seed": 0.5}]
)
def test_an_argument_that_is_no_whole_number_is_one_clear_error(tmp_path, argument):
    ((name, value),) = argument.items()
    with pytest.raises(ConfigError, match=f"{name}={value!r} cannot be used"):
        load_policy(tmp_path, **argument)


def test_the_beginnings_of_other_rows_are_one_clear_error(tmp_path):
    policy = policy_of(tmp_path, "gym/CartPole-v1")
    with pytest.raises(ConfigError, match="first has 2 entries, but the observation has 3 rows"):
        policy(np.zeros((3, 4), np.float32), None, np.array([True, False]))


def test_a_state_of_other_rows_is_one_clear_error(tmp_path):
    policy = policy_of(tmp_path, "gym/CartPole-v1")
    _, state = policy(np.zeros((8, 4), np.float32))
    with pytest.raises(ConfigError, match="8 rows, but the observation has 3"):
        policy(np.zeros((3, 4), np.float32), state)


def test_a_policy_travels_and_an_empty_batch_has_no_actions(tmp_path):
    policy = policy_of(tmp_path, "gym/CartPole-v1", greedy=True)
    again = pickle.loads(pickle.dumps(policy))
    obs = np.zeros((3, *policy.spec.obs["obs"].shape), np.float32)
    assert np.array_equal(policy(obs)[0], again(obs)[0])
    actions, state = policy(obs[:0])
    assert len(actions) == 0
    policy(obs[:0], state)
