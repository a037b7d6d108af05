"""EnvPool vector envs: ends of episodes, seeds, Atari's scores and lives, masks, rejected tasks."""

import os

import numpy as np
import pytest

from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.base import ArraySpec, private_step_arrays, random_allowed
from pbt_rl.envs.lookup import EnvOptions, make_vector_env, probe
from pbt_rl.errors import EnvSetupError

pytest.importorskip("envpool")
from pbt_rl.envs import envpool


def make(task, rows=2, seed=0, shaping=None, atari=None, **keywords):
    options = EnvOptions((atari or AtariOptions(),), keywords)
    default = {"score_scale": 1.0, "life_loss_penalty": 0.01}
    vector_env = make_vector_env(
        f"envpool/{task}", rows, seed, options, shaping or (lambda _row: (3, default))
    )
    out = private_step_arrays(vector_env.spec, rows)
    for array in (*out.obs.values(), out.reward, out.objective, out.length):
        array[:] = 77  # poison
    vector_env.reset(out)
    return vector_env, out


def play(vector_env, out, steps, seed=0):
    """Return all fields [T, ...] of random steps, including the reset."""
    rng, history = np.random.default_rng(seed), []
    for step in range(steps + 1):
        if step:
            if vector_env.spec.action.low:
                action = rng.uniform(
                    vector_env.spec.action.low, vector_env.spec.action.high, out_shape(vector_env)
                )
            elif "action_mask" in out.obs:
                action = random_allowed(vector_env.spec.action.nvec, out.obs["action_mask"], rng)
            else:
                action = rng.integers(vector_env.spec.action.nvec, size=out_shape(vector_env))
            vector_env.step(action.astype(vector_env.spec.action.dtype), out)
        fields = {k: v.copy() for k, v in vars(out).items() if isinstance(v, np.ndarray)}
        history.append({**fields, **{f"obs.{name}": array.copy() for name, array in out.obs.items()}})
    vector_env.close()
    return {name: np.stack([step[name] for step in history]) for name in history[0]}


def out_shape(vector_env):
    return vector_env.rows, vector_env.spec.action.components


@pytest.fixture(scope="module")
def cartpole():
    return play(*make("CartPole-v1", rows=3), 200)


def test_a_step_ends_an_episode_and_the_next_one_resets(cartpole):
    ended, first = cartpole["episode_done"], cartpole["first"]
    assert ended.sum() > 15
    assert first[0].all()
    assert (first[1:] == ended[:-1]).all()
    assert (cartpole["terminated"] == ended).all()
    assert not cartpole["truncated"].any()
    position, angle = cartpole["obs.obs"][..., 0], cartpole["obs.obs"][..., 2]
    fallen = (abs(position) > 2.4) | (abs(angle) > 0.2094)
    assert (fallen == ended).all(), "the final observation is the old episode's"
    assert (abs(cartpole["obs.obs"][first]) <= 0.05).all()
    assert (cartpole["reward"] == ~first).all()


def test_episodes_are_summed_from_their_start(cartpole):
    for row in range(3):
        starts = np.flatnonzero(cartpole["first"][:, row])
        ends = np.flatnonzero(cartpole["episode_done"][:, row])
        for start, end in zip(starts, ends, strict=False):
            for name in ("length", "raw_return", "shaped_return", "objective"):
                assert cartpole[name][end, row] == end - start
    assert (cartpole["shaping_version"] == 3).all()


def test_a_time_limit_truncates_and_delivers_the_final_observation():
    history = play(*make("Pendulum-v1", max_episode_steps=10), 33)
    assert history["truncated"].nonzero()[0].tolist() == [10, 10, 21, 21, 32, 32]
    assert not history["terminated"].any()
    assert (history["first"].nonzero()[0] == [0, 0, 11, 11, 22, 22, 33, 33]).all()
    obs = history["obs.obs"]
    assert (abs(obs[10] - obs[9]).max(1) < 1.5).all()
    assert (abs(obs[11] - obs[10]).max(1) > 1e-3).all()
    assert (history["reward"][[11, 22, 33]] == 0).all()


def test_seeds_decide():
    same, again, other = (play(*make("CartPole-v1", seed=seed), 40)["obs.obs"] for seed in (1, 1, 2))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)
    assert not np.array_equal(same[0, 0], same[0, 1]), "rows differ"


def test_spaces_become_arrays_and_actions():
    cheetah = envpool.describe("HalfCheetah-v4", AtariOptions(), {}).spec
    assert cheetah.obs == {"obs": ArraySpec((17,), "float32")}
    assert cheetah.action.low == (-1.0,) * 6
    assert (cheetah.frame_skip, cheetah.frame_stack, dict(cheetah.shaping)) == (1, 1, {})
    grid = envpool.describe("MiniGrid-Empty-5x5-v0", AtariOptions(), {}).spec
    assert {name: array.shape for name, array in grid.obs.items()} == {
        "direction": (4,),
        "image": (147,),
        "mission": (96,),
    }
    several = envpool.describe("LevelBasedForaging-v0", AtariOptions(), {}).spec
    assert several.action.nvec == (6, 6)
    assert several.obs["action_mask"] == ArraySpec((12,), "uint8")
    assert envpool.describe("Sudoku-v0", AtariOptions(), {}).spec.obs["allowed"].shape == (729,)


@pytest.mark.parametrize("task", ["Play2048-v1", "LevelBasedForaging-v0"])
def test_masks_of_legal_actions_are_the_action_mask(task):
    history = play(*make(task), 60)
    masks = history["obs.action_mask"]
    assert masks.min() == 0
    assert masks.any()


@pytest.fixture(scope="module")
def invaders():
    shaping = lambda _row: (0, {"score_scale": 2.0, "life_loss_penalty": 0.25})  # noqa: E731
    return play(*make("SpaceInvaders-v5", shaping=shaping), 700)


def test_atari_learns_from_clipped_scores_and_lives_and_is_ranked_by_the_score(invaders):
    rewards = set(np.round(invaders["reward"], 2).ravel().tolist())
    assert rewards <= {0.0, 2.0, -0.25, 1.75}
    assert {2.0, -0.25} <= rewards
    ended = invaders["episode_done"]
    assert ended.any()
    assert (invaders["objective"][ended] % 5 == 0).all()
    assert invaders["objective"][ended].max() > 50
    assert invaders["shaped_return"][ended].max() < invaders["objective"][ended].max()
    life_lost = invaders["terminated"] & ~ended
    assert life_lost.any(), "terminal for learning"
    assert (invaders["first"][1:] == (ended | life_lost)[:-1]).all(), "after it FIRE is pressed"


def test_atari_options_reach_the_engine():
    vector_env, out = make(
        "Breakout-v5", rows=1, atari=AtariOptions(max_frames_per_episode=400, clip_reward=False)
    )
    history = play(vector_env, out, 105)
    assert history["truncated"].nonzero()[0].tolist() == [100]


def test_names_are_of_one_player_and_given_once():
    names = envpool.names()
    assert {"Pong-v5", "CartPole-v1", "HalfCheetah-v4", "MiniGrid-Empty-5x5-v0"} <= set(names)
    assert not {"Chess-v1", "Combat-v5", "Basic-v1"} & set(names)
    assert ("Maze-v0" in names) + ("Jumanji/Maze-v0" in names) == 1


REFUSED = {
    "unknown": ("Cartpole-v1", {}, "envpool/Cartpole-v1 .*envpool/CartPole-v1"),
    "players": ("Chess-v1", {}, "2 players"),
    "doom": ("Basic-v1", {}, "vizdoom/"),
    "value": ("Pong-v5", {"mode": 77}, "game mode"),
    "option": ("CartPole-v1", {"gravity": 3}, "gravity.*max_episode_steps"),
    "type": ("CartPole-v1", {"max_episode_steps": "many"}, "max_episode_steps='many': .* type"),
    "ours": ("CartPole-v1", {"num_envs": 4}, "num_envs="),
    "atari's": ("Pong-v5", {"frame_skip": 2}, "use --atari.frame-skip"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_tasks_and_options_are_one_clear_error(case):
    task, keywords, message = REFUSED[case]
    with pytest.raises(EnvSetupError, match=message):
        probe(f"envpool/{task}", EnvOptions(keywords=keywords))


def test_an_engine_that_ends_its_process_does_not_end_ours(monkeypatch):
    monkeypatch.setattr(envpool.envpool, "make", lambda *_, **__: os.abort())
    with pytest.raises(EnvSetupError, match=r"max_episode_steps=77 .*SIGABRT"):
        probe("envpool/CartPole-v1", EnvOptions(keywords={"max_episode_steps": 77}))
