"""Runs on a user's own environment: found by every process, good, and bad in every way that there is."""

import pytest

from tests.helpers.runs import ENDLESS, ENVIRONMENT, ROOT, start, train

MODULE = """
import ctypes
import gymnasium
import numpy as np
import os
import sys
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    frames_per_step = 2

    def __init__(self, fault="", length=4):
        self.observation_space = Box(0, 1, (length,), np.float32)
        self.action_space = Discrete(2)
        self.fault, self.length, self.life, self.bonus = fault, length, 0, 1.0

    def get_default_reward_shaping(self):
        return {"bonus": 1.0}

    def set_reward_shaping(self, reward_shaping, agent_idx):
        self.bonus = reward_shaping["bonus"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        self.life += 1
        if self.life == 30:
            if self.fault == "step":
                raise RuntimeError("lost the server")
            if self.fault == "exit":
                sys.exit(3)
            if self.fault == "crash":
                ctypes.string_at(0)
            if self.fault == "fork":
                if os.fork() == 0:
                    sys.exit(3)
                os.wait()
        over = self.steps == 8
        return self.see(), self.bonus * float(action), False, over, {"true_objective": 3.0} if over else {}

    def see(self):
        obs = np.zeros(self.length, np.float32)
        obs[self.steps % self.length] = 1
        return obs


def make_env(fault="", length=4):
    if fault == "elsewhere" and sys.argv[0].endswith("actor.py"):
        length = 9
    return Walk(fault, length)


def make_vec(num_envs, length=4):
    return gymnasium.vector.SyncVectorEnv([lambda: Walk("", length)] * num_envs)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_walk.py").write_text(MODULE)
    return tmp_path


@pytest.mark.long
def test_a_population_is_trained_and_evaluated(folder, monkeypatch):
    """With a package of the user's that is named as ours, which is nowhere on the path of what is installed."""
    (folder / "installed").mkdir()
    (folder / "installed" / "pbt_rl").symlink_to(ROOT / "pbt_rl")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(folder / "installed"))
    (folder / "envs").mkdir()
    (folder / "envs" / "__init__.py").touch()
    (folder / "my_walk.py").rename(folder / "envs" / "walk.py")
    options = (
        "--env-option=length=6 --num-policies=2 --actors=1 --train-for-frames=3000 --pbt.start-frames=500"
        " --pbt.period-frames=500 --pbt.min-episodes=1 --pbt.tune=shaping.bonus"
    )
    run = train(folder, "envs.walk:make_vec", *options.split())
    assert run.wait() == 0, run.err
    assert run.err == ""
    assert "1 step = 2 frames" in run.out
    assert run.summary["ended"] == "frames"
    assert run.events("decision") or "shaping.bonus" in str(run.journal)


@pytest.mark.long
def test_a_trained_member_is_evaluated_where_its_environment_lies(folder):
    few = ("--num-policies=1", "--actors=1", "--train-for-frames=500", "--mode=serial")
    run = train(folder, "my_walk:make_env", *few)
    assert run.wait() == 0, run.err
    (folder / "elsewhere").mkdir()
    here = start(folder, "eval", "runs/x", "--episodes", "2", "--trust")
    lost = start(folder / "elsewhere", "eval", "../runs/x", "--trust")
    assert here.wait() == 0, here.err
    assert "episode   2: objective 3, 8 steps" in here.out
    assert lost.wait() == 2
    assert "module 'my_walk'" in lost.err


def test_an_environment_that_differs_in_its_actors_ends_a_run_with_one_clear_error(folder):
    run = train(folder, "my_walk:make_env", "--env-option=fault=elsewhere", *ENDLESS, "--actors=1")
    assert run.wait() == 2, run.out
    assert "my_walk:make_env" in run.err
    assert len(run.err.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("fault", ["step", "exit"])
def test_in_serial_mode_an_environment_that_raises_ends_the_run_with_its_own_traceback(folder, fault):
    run = train(folder, "my_walk:make_env", f"--env-option=fault={fault}", *ENDLESS, "--mode=serial")
    assert run.wait() == 1
    first, second, *rest = run.err.splitlines()
    assert first.startswith("pbt-rl: my_walk:make_env ")
    assert second.startswith("Traceback ")
    assert [line for line in rest if line.startswith("  File ")] == [rest[0]]
    assert "my_walk.py" in rest[0]
    assert rest[-1] == {"step": "RuntimeError: lost the server", "exit": "SystemExit: 3"}[fault]
    assert run.summary["ended"] == "failed"


@pytest.mark.long
@pytest.mark.parametrize("fault", ["step", "exit", "crash"])
def test_an_environment_that_ends_its_actor_is_shown_by_its_own_lines(folder, fault):
    options = (f"--env-option=fault={fault}", "--actors=1", "--max-actor-restarts=0")
    run = train(folder, "my_walk:make_env", *options, *ENDLESS)
    assert run.wait() == 1
    frames = [line for line in run.err.splitlines() if line.startswith("  File ")]
    assert any("my_walk.py" in frame for frame in frames)
    assert not any(f"{ROOT}/" in frame for frame in frames)
    assert "Extension modules" not in run.out + run.err
    for log in (folder / "runs" / "x" / "logs").glob("actor_*.log"):
        log.unlink()  # the crash is intended


@pytest.mark.long
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_fork_of_an_environment_may_exit(folder, mode):
    few = ("--num-policies=1", "--actors=1", "--train-for-frames=4000", f"--mode={mode}")
    run = train(folder, "my_walk:make_env", "--env-option=fault=fork", *few)
    assert run.wait() == 0, run.err
    assert run.summary["ended"] == "frames"
    assert run.summary["actors_restarted"] == 0
