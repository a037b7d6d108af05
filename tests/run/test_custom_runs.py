"""Runs on a user's own environment: found by every process, good, and bad in every way that there is."""

import sys

import numpy as np
import pytest

from pbt_rl.cli import main
from pbt_rl.envs import time_limits
from pbt_rl.envs.base import EnvSetupError, default_shaping_source, private_step_arrays
from pbt_rl.envs.registry import EnvOptions, make_unit, probe
from tests.helpers.runs import ENDLESS, ENVIRONMENT, PROGRESS, ROOT, start, train

MODULE = """
import gymnasium
import numpy as np
import sys
import time
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
        if self.fault == "reset":
            raise RuntimeError("no level")
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        self.life += 1
        if self.life == 30:
            if self.fault == "step":
                raise RuntimeError("lost the server")
            if self.fault == "exit":
                sys.exit(3)
            if self.fault == "hang":
                time.sleep(3600)
        reward = self.bonus * float(action)
        if (self.fault, self.life) in (("reward", 30), ("late-reward", 800)):
            reward = float("nan")
        if self.fault == "large" and self.life == 30:
            reward = 1e300
        return self.see(), reward, False, self.steps == 8, {"true_objective": 3.0} if self.steps == 8 else {}

    def see(self):
        obs = np.zeros(self.length, np.float32)
        obs[self.steps % self.length] = 1
        if self.life >= 29:
            if self.fault == "nan":
                obs[0] = np.nan
            if self.fault == "shape":
                obs = obs[:-1]
            if self.fault == "dtype":
                obs = obs.astype(str)
            if self.fault == "space":
                self.observation_space = Box(0, 1, (self.length + 1,), np.float32)
                obs = np.zeros(self.length + 1, np.float32)
        return obs


made = 0


def make_env(fault="", length=4):
    global made
    made += 1
    if fault == "init":
        raise RuntimeError("no display")
    if fault == "nothing":
        return None
    if fault == "init-hangs":
        time.sleep(3600)
    if fault == "unlike":
        length = 4 + made
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
    pbt = (
        "--pbt.start-frames=500",
        "--pbt.period-frames=500",
        "--pbt.min-episodes=1",
        "--pbt.tune=shaping.bonus",
    )
    few = ("--num-policies=2", "--actors=1", "--train-for-frames=3000")
    run = train(folder, "envs.walk:make_vec", "--env-option=length=6", *few, *pbt)
    assert run.wait(110) == 0, run.err
    assert run.err == ""
    assert "1 step = 2 frames" in run.out
    assert run.summary["ended"] == "frames"
    assert run.events("decision") or "shaping.bonus" in str(run.journal)


@pytest.mark.long
def test_a_trained_member_is_evaluated_where_its_environment_lies(folder):
    few = ("--num-policies=1", "--actors=1", "--train-for-frames=500", "--mode=serial")
    run = train(folder, "my_walk:make_env", *few)
    assert run.wait(110) == 0, run.err
    (folder / "elsewhere").mkdir()
    here = start(folder, "eval", "runs/x", "--episodes", "2", "--trust")
    lost = start(folder / "elsewhere", "eval", "../runs/x", "--trust")
    assert here.wait(110) == 0, here.err
    assert "episode   2: objective 3, 8 steps" in here.out
    assert lost.wait(110) == 2
    assert "no module 'my_walk' in the working directory" in lost.err
    assert "run from the folder that holds it" in lost.err


@pytest.mark.parametrize(
    ("fault", "said", "lines"),
    [
        ("reset", "RuntimeError: no level", None),
        ("elsewhere", "differs each time that it is made", 1),
    ],
)
def test_a_bad_environment_ends_a_run_with_one_clear_error(folder, fault, said, lines):
    run = train(folder, "my_walk:make_env", f"--env-option=fault={fault}", *ENDLESS, "--actors=1")
    assert run.wait(110) == 2, run.out
    assert run.err.startswith("pbt-rl: my_walk:make_env")
    assert said in run.err
    assert run.err.count("pbt-rl:") == 1
    assert run.err.count("Traceback") == (0 if lines else 1)
    assert lines is None or len(run.err.splitlines()) == lines


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "options", "said"),
    [
        ("step", (), "RuntimeError: lost the server"),
        ("hang", ("--actor-timeout-seconds=1",), "took no step for"),
    ],
)
def test_an_environment_that_raises_or_hangs_in_a_step_gets_a_new_actor(folder, fault, options, said):
    endless = (*ENDLESS, "--actors=1", "--max-actor-restarts=1000", *options)
    run = train(folder, "my_walk:make_env", f"--env-option=fault={fault}", *endless)
    seen = run.wait_for(said)
    run.wait_for(said, after=seen)  # the new one got as far
    assert run.end() == 128 + 15
    assert run.summary["actors_restarted"] == len(run.events("actor_restart")) >= 2


@pytest.mark.long
def test_an_environment_that_breaks_its_contract_late_gets_a_new_actor(folder):
    endless = (*ENDLESS, "--actors=1", "--envs-per-unit=1", "--learner.minibatches=1")
    run = train(folder, "my_walk:make_env", "--env-option=fault=late-reward", *endless)
    said = "actor 0 is restarted: my_walk:make_env breaks its contract: the reward must be finite, got nan"
    seen = run.wait_for(said)
    run.wait_for(PROGRESS, after=seen)  # it goes on
    assert run.end() == 128 + 15
    assert run.summary["actors_restarted"] == len(run.events("actor_restart")) >= 1
    members = run.summary["members"]
    assert all(member["frames"] > 0 for member in members)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["step", "exit"])
def test_in_serial_mode_an_environment_that_raises_ends_the_run_with_its_own_traceback(folder, fault):
    run = train(folder, "my_walk:make_env", f"--env-option=fault={fault}", *ENDLESS, "--mode=serial")
    assert run.wait(110) == 1
    first, second, *rest = run.err.splitlines()
    assert first.startswith("pbt-rl: my_walk:make_env raised, and in serial mode it has no process")
    assert second == "Traceback (most recent call last):"
    assert [line for line in rest if line.startswith("  File ")] == [rest[0]]
    assert "my_walk.py" in rest[0]
    assert rest[-1] == {"step": "RuntimeError: lost the server", "exit": "SystemExit: 3"}[fault]
    assert run.summary["ended"] == "failed"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan", "expected finite numbers, got NaN or infinity"),
        ("shape", r"expected shape \(4,\), got shape \(3,\)"),
        ("dtype", "expected numbers, got dtype <U32"),
        ("space", r"expected shape \(4,\), got shape \(5,\)"),
        ("reward", "the reward must be finite, got nan"),
        ("large", r"the reward must be finite, got 1e\+300"),
        ("unlike", "two environments differ in their spaces"),
    ],
)
def test_what_breaks_the_contract_is_named(folder, monkeypatch, fault, said):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_walk", raising=False)
    options = EnvOptions(keywords={"fault": fault})
    spec = probe("my_walk:make_env", options)

    def play():
        unit = make_unit(spec.env_id, 2, 0, options, default_shaping_source(spec))
        out = private_step_arrays(spec, 2)
        unit.reset(out)
        for _ in range(60):
            unit.step(np.zeros((2, 1), np.int32), out)

    with pytest.raises(EnvSetupError, match=f"my_walk:make_env.*{said}"):
        play()


def test_an_environment_that_hangs_when_it_is_made_is_named(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_walk", raising=False)
    monkeypatch.setattr(time_limits, "PROBE_SECONDS", 0.2)
    with pytest.raises(EnvSetupError, match=r"my_walk:make_env hangs: making it took more than 0.2 s"):
        probe("my_walk:make_env", EnvOptions(keywords={"fault": "init-hangs"}))


@pytest.mark.parametrize(
    ("env", "option", "said"),
    [
        ("my_walk:make_evn", "length=4", "my_walk has no 'make_evn'"),
        ("my_wlak:make_env", "length=4", "no module 'my_wlak'"),
        (
            "my_walk:make_env",
            "size=4",
            "unexpected keyword argument 'size'; its options are: fault='', length=4",
        ),
        ("my_walk:make_env", "length", "--env-option length cannot be used: write key=value"),
        ("my_walk:make_env", "fault=nothing", "returned builtins.NoneType, not an environment"),
        ("my_walk:make_env", "fault=init", "my_walk:make_env cannot be used: it raised RuntimeError"),
    ],
)
def test_what_cannot_be_made_starts_nothing(folder, monkeypatch, capsys, env, option, said):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_walk", raising=False)
    monkeypatch.setattr(sys, "argv", ["pbt-rl", "train", "--env", env, "--env-option", option])
    with pytest.raises(SystemExit) as end:
        main()
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("pbt-rl: ")
    assert said in err
    assert "fault=init" in option or err.count("\n") == 1
    assert not (folder / "runs").exists()
