"""Rows start apart from each other, and what was cut short counts for nobody."""

import json

import gymnasium
import numpy as np
from gymnasium import spaces

from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.gym import GymVectorEnv
from tests.helpers.serial import run

LIMIT = 40


class Endless(gymnasium.Env):
    """Gives 1 in every step, and ends by a limit alone."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


def limited():
    return gymnasium.wrappers.TimeLimit(Endless(), LIMIT)


def play(vector_env, steps):
    """Return of each episode that ended: (row, step, length, truncated)."""
    out, ended = private_step_arrays(vector_env.spec, vector_env.rows), []
    vector_env.reset(out)
    for step in range(1, steps):
        vector_env.step(np.zeros((vector_env.rows, 1), np.int32), out)
        rows = np.flatnonzero(out.episode_done)
        ended += [(row, step, out.length[row], out.truncated[row]) for row in rows]
    return ended


def test_first_episodes_are_cut_at_drawn_steps_and_later_ones_whole():
    rows = 200
    vector_env = GymVectorEnv("x:y", limited, rows, 0, lambda _row: (0, {}))
    assert vector_env.spread_phases(np.random.default_rng(0))
    ended = play(vector_env, 3 * LIMIT)
    first = [next(end for end in ended if end[0] == row) for row in range(rows)]
    cut = np.array([step for _, step, *_ in first])
    assert cut.min() <= 3
    assert cut.max() <= LIMIT
    assert abs(cut.mean() - LIMIT / 2) < 4
    assert all(truncated for *_, truncated in ended)
    assert {length for end in ended for length in [end[2]] if end not in first} == {LIMIT}

    whole = GymVectorEnv("x:y", Endless, 2, 0, lambda _row: (0, {}))
    assert not whole.spread_phases(np.random.default_rng(0)), "its limit is not known"
    assert play(whole, 3 * LIMIT) == []


class Objective(gymnasium.Wrapper):
    """Gives the true objective in the last step of each episode."""

    def get_default_reward_shaping(self):
        return {"weight": 0.1}

    def set_reward_shaping(self, reward_shaping, agent_idx):
        pass

    def step(self, action):
        *answer, terminated, truncated, info = super().step(action)
        objective = {"true_objective": 5.0} if terminated or truncated else {}
        return *answer, terminated, truncated, info | objective


class Warned:
    """Shaping source that keeps the warnings."""

    def __init__(self):
        self.warnings = []

    def __call__(self, _row):
        return 0, {"weight": 0.1}

    def warn(self, text):
        self.warnings.append(text)


def test_an_episode_that_was_cut_short_needs_no_objective():
    source = Warned()
    vector_env = GymVectorEnv("x:y", lambda: Objective(limited()), 4, 0, source)
    assert vector_env.spread_phases(np.random.default_rng(0))
    assert len(play(vector_env, 3 * LIMIT)) > 8
    assert source.warnings == []


def test_a_run_counts_no_episode_that_was_cut_short(tmp_path):
    options = {"env": f"{__name__}:limited", "mode": "serial", "num-policies": 1, "envs-per-vector-env": 4}
    folders = [run(tmp_path, name, options, train_for_frames=1500) for name in ("cut", "again")]
    cut, again = (json.loads((folder / "summary.json").read_text())["members"] for folder in folders)
    assert cut[0]["objective"] == LIMIT, "a first episode, of half that, is among them"
    assert again == cut
