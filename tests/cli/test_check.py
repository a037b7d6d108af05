"""`pbt-rl envs check`: every mistake is found in an environment that makes it, and in no other."""

import copy
import pickle
import random
import re
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from pbt_rl.cli.check import check
from pbt_rl.envs import lookup
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.errors import EnvSetupError
from tests.helpers.runs import start, train


class Right(gymnasium.Env):
    """A random walk without mistakes: 8 steps, then truncated."""

    def __init__(self):
        self.observation_space = Box(-9, 9, (2,), np.float32)
        self.action_space = Discrete(2)
        self.cost = 0.5

    def get_default_reward_shaping(self):
        return {"cost": 0.5}

    def set_reward_shaping(self, reward_shaping, agent_idx):
        self.cost = reward_shaping["cost"]

    def see(self):
        return np.array([self.place, 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.uniform(-1, 1)), 0
        return self.see(), {}

    def step(self, action):
        self.place += 1 if action else -1
        self.steps += 1
        info = {"true_objective": self.place} if self.steps == 8 else {}
        return self.see(), -self.cost, False, self.steps == 8, info


class NoObjective(Right):
    def step(self, action):
        return *super().step(action)[:4], {}


class ObjectiveAtSomeEnds(Right):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, info if self.place > 0 else {}


def seeing(change):
    """Right, but for what is seen: change(numbers, environment)."""
    return type("Seeing", (Right,), {"see": lambda self: change(Right.see(self), self)})


WrongType = seeing(lambda seen, env: seen.astype(np.float64))
NaNSeen = seeing(lambda seen, env: seen * (np.nan if env.steps == 3 else 1))
ShapeDrifts = seeing(lambda seen, env: seen[: 1 + (env.steps < 5)])
NothingAtLast = seeing(lambda seen, env: seen * (env.steps < 8))
NothingReturnedAtLast = seeing(lambda seen, env: None if env.steps == 8 else seen)
OutOfBounds = seeing(lambda seen, env: seen * 10)
DRAWN = random.SystemRandom()
RoundingErrors = seeing(lambda seen, env: seen + np.float32(DRAWN.uniform(1e-4, 4e-4)))  # as of a simulator


class NotFinite(Right):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.inf if self.steps == 7 else reward, *rest


class SpaceDrifts(Right):
    def reset(self, **kwargs):
        answer = super().reset(**kwargs)
        self.observation_space = Box(-9 - self.place, 9, (2,), np.float32)
        return answer


class FirstInsteadOfLast(Right):
    """It resets itself inside the last step."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if truncated:
            obs = self.coming = super().reset()[0]
        return obs, reward, terminated, truncated, info

    def reset(self, **kwargs):
        answer = super().reset(**kwargs)
        if hasattr(self, "coming"):
            self.place = float(self.coming[0])
            answer = self.see(), {}
        return answer


class DrawnInsteadOfLast(Right):
    """So does it, and the first observation is drawn anew when it is reset from outside."""

    def step(self, action):
        answer = super().step(action)
        return (self.reset()[0], *answer[1:]) if answer[3] else answer


class ResetsButShowsTheLast(Right):
    def step(self, action):
        answer = super().step(action)
        if answer[3]:
            self.reset()
        return answer


class SharedPlace(Right):
    place_of_all = [0.0]  # noqa: RUF012 - the mistake of the test

    def see(self):
        return np.array([self.place_of_all[0], 1], np.float32)

    def step(self, action):
        self.place_of_all[0] += 1 if action else -1
        return super().step(action)

    def reset(self, **kwargs):
        self.place_of_all[0] = 0.0
        return super().reset(**kwargs)


class GlobalRandom(Right):
    def step(self, action):
        return super().step(action if random.random() < 0.9 else 1 - action)


class SlowReset(Right):
    def reset(self, **kwargs):
        time.sleep(0.025)
        return super().reset(**kwargs)


class MaskUnused(Right):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, info | {"action_mask": np.ones(2, np.int8)}


class AllAllowed(MaskUnused):
    metadata = {"action_mask": True}  # noqa: RUF012 - as Gymnasium has it

    def reset(self, **options):
        return super().reset(**options)[0], {"action_mask": np.ones(2, np.int8)}


class NothingAllowed(Right):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"obs": self.observation_space, "action_mask": MultiBinary(2)})

    def see(self):
        return {"obs": super().see(), "action_mask": np.zeros(2, np.int8)}


class NewDefaults(Right):
    def get_default_reward_shaping(self):
        return {"cost": self.cost}


class ShapingRaises(Right):
    def set_reward_shaping(self, reward_shaping, agent_idx):
        if reward_shaping["cost"] != 0.5:
            raise TypeError("no other cost")


class Raises(Right):
    def step(self, action):
        if self.steps == 6:
            raise RuntimeError("lost the server")
        return super().step(action)


class Hangs(Right):
    def step(self, action):
        while self.steps == 6:
            time.sleep(0.05)
        return super().step(action)


class Deaf(Right):
    def set_reward_shaping(self, reward_shaping, agent_idx):
        pass


class Unseeded(Right):
    def reset(self, **kwargs):
        return super().reset(seed=0)


class Dim(Right):
    """Its numbers are 0 and 1, and its bounds those of another unit."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 1000, (40, 40, 1), np.float32)

    def see(self):
        return np.full((40, 40, 1), self.place > 0, np.float32)


class Bright(Dim):
    """Its numbers are those of bytes, and its bounds 0 and 1."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 1, (40, 40, 1), np.float32)

    def see(self):
        return np.full((40, 40, 1), 255, np.float32)


class Endless(Right):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}


class ZeroDefault(Right):
    def get_default_reward_shaping(self):
        return {"cost": 0.0}


class Wrong(Right):
    """What shows in its steps alone."""

    metadata = {"action_mask": True}  # noqa: RUF012 - as Gymnasium has it

    def see(self):
        return super().see() * (self.steps < 8)

    def reset(self, **kwargs):
        time.sleep(0.03)
        return super().reset(**kwargs)[0], {"action_mask": np.zeros(2, np.int8)}

    def step(self, action):
        *rest, truncated, _ = super().step(action)
        return (
            *rest,
            truncated,
            {"action_mask": np.zeros(2, np.int8)} | ({} if truncated else {"true_objective": 1}),
        )


@pytest.fixture
def found(monkeypatch):
    def call(kind, steps=200, timeout=30.0):
        monkeypatch.setattr(sys.modules[__name__], "Checked", kind, raising=False)
        return check(f"{__name__}:Checked", EnvOptions(), steps, 0, timeout)

    return call


@pytest.mark.parametrize("kind", [Right, ResetsButShowsTheLast])
def test_an_environment_without_mistakes_has_none(found, kind):
    report = found(kind)
    assert (report.mistakes, report.notes) == ([], [])
    facts = dict(report.facts)
    assert facts["observation"] == "obs 2 float32"
    assert facts["action"] == "discrete, 2"
    assert facts["shaping"] == "cost 0.5"
    assert re.match(r"[\d,]+ steps/s .*\b2 rows, 200 steps; .*\d+%", facts["speed"])
    assert re.match(r"22 .*\b0 terminated, 22 truncated; 8\.\.8, mean 8 ", facts["episodes"])
    assert facts["objective"].startswith('info["true_objective"] -')
    assert re.search(r"\b100 steps", facts["seeds"])
    assert facts["rewards"].endswith(": cost")
    assert report.mistakes == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NoObjective, 'info["true_objective"]'),
        (ObjectiveAtSomeEnds, 'info["true_objective"] .*missing'),
        (WrongType, "'obs' .*float64.* float32"),
        (NotFinite, "step 7: .*reward .*inf"),
        (NaNSeen, "step 3: .*NaN"),
        (ShapeDrifts, r"step 5: .*\(2,\).* \(1,\)"),
        (SpaceDrifts, "spaces change"),
        (FirstInsteadOfLast, r"final .*\b\d+ .*next"),
        (DrawnInsteadOfLast, r"final .*\b2 .*next"),
        (NothingAtLast, r"final .*\b\d+ .*zeros"),
        (NothingReturnedAtLast, r"step 8: .*shape \(\)"),
        (GlobalRandom, r"not deterministic.* step \d+ "),
        (SlowReset, r"reset: .*\d\d ms, .*\d\d%"),
        (NewDefaults, "get_default_reward_shaping .*set_reward_shaping"),
        (ShapingRaises, r"cost .*TypeError\n(?s:.*)no other cost"),
        (MaskUnused, 'info["action_mask"] '),
        (NothingAllowed, "mask .*zeros"),
        (Raises, "step 7: .*RuntimeError\n(?s:.*)test_check.py(?s:.*)lost the server"),
    ],
)
def test_a_mistake_is_found_alone(found, kind, said):
    report = found(kind)
    assert len(report.mistakes) == 1, report.mistakes
    assert re.search(said.replace('["', r'\["').replace('"]', r'"\]'), report.mistakes[0])
    assert report.lines()[-1] == "mistakes: 1"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Deaf, "100 steps .*: cost"),
        (Unseeded, "not seeded"),
        (OutOfBounds, "'obs' .*: 10 .*-9 to 9 "),
        (Dim, "'obs' .*0 to 0"),
        (Endless, r"episode .*\b100 "),
        (ZeroDefault, r"cost .*\b0\b"),
        (AllAllowed, "mask never"),
        (RoundingErrors, r"not deterministic.* step 1 .*0\.001"),
        (SharedPlace, "share state"),
    ],
)
def test_possibly_intended_findings_are_notes(found, kind, said):
    report = found(kind)
    assert report.mistakes == []
    assert any(re.search(said.replace('["', r'\["').replace('"]', r'"\]'), note) for note in report.notes), (
        report.notes
    )


def test_a_step_that_hangs_is_a_mistake(found):
    (mistake,) = found(Hangs, timeout=1.5).mistakes
    assert re.match(r".*step 7: .*\b1\.5 s .*--timeout-seconds", mistake)


class ResetHangs(Right):
    def reset(self, **kwargs):
        time.sleep(60)


class ResetRaises(Right):
    def reset(self, **kwargs):
        raise RuntimeError("no level")


def test_what_cannot_be_made_or_reset_cannot_be_used(found):
    with pytest.raises(EnvSetupError, match=r"\b0\.2 s .*--timeout-seconds"):
        found(ResetHangs, timeout=0.2)
    with pytest.raises(RuntimeError, match="no level"):
        found(ResetRaises)


ONE = Right()


def one():
    return ONE


def test_a_factory_that_returns_one_object_in_every_call_is_refused():
    with pytest.raises(EnvSetupError, match=r"one .*twice"):
        check(f"{__name__}:one", EnvOptions(), 100)


def vector(num_envs):
    return gymnasium.vector.SyncVectorEnv([Right] * num_envs, autoreset_mode="SameStep")


def test_a_mask_is_described_and_obeyed():
    report = check("toy/masked", EnvOptions(), 400)
    assert report.mistakes == report.notes == []
    assert re.search(r"\b5\d% .*\b2\d% ", dict(report.facts)["action mask"])


def test_vectors_and_engines_are_checked_through_their_vector_envs():
    report = check(f"{__name__}:vector", EnvOptions(), 200)
    assert report.mistakes == []
    assert "rewards" in dict(report.facts)
    assert lookup.make_raw("atari/pong", EnvOptions()) is None
    report = check("atari/pong", EnvOptions(), 400)
    assert report.mistakes == []
    assert ("frames", "4 a step") in report.facts


def test_the_command_and_its_exit_codes(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pbt_rl.envs.toy import Identity\nfrom pbt_rl.envs.toy import NotANumber\n"
        "import gymnasium\n"
        "def good(size):\n    return Identity(size)\n"
        "def bad():\n    return NotANumber()\n"
        "def worst():\n    raise RuntimeError('no display')\n"
    )
    good = start(tmp_path, "envs", "check", "mine:good", "--env-option", "size=3", "--steps", "100")
    bad = start(tmp_path, "envs", "check", "mine:bad")
    assert good.wait() == 0
    assert bad.wait() == 1
    worst = start(tmp_path, "envs", "check", "mine:worst")
    assert worst.wait() == 2
    assert re.match("pbt-rl: mine:worst .*RuntimeError", worst.err)


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_training_warns_of_mistakes_that_cost_learning(found, tmp_path, mode):
    begins = ["missing final", 'info["true_objective"] ', "the action mask", "slow reset"]
    mistakes = found(Wrong).mistakes
    typed = ("--num-policies=1", "--envs-per-vector-env=2", "--shaping.cost=1", "--train-for-frames=400")
    run = train(tmp_path, f"{__name__}:Wrong", *typed, f"--mode={mode}")
    assert run.wait() == 0, run.err
    for text in begins:
        assert any(mistake.startswith(text) for mistake in mistakes), text
        assert any(text in warning for warning in run.summary["warnings"]), text
    named = [f"Run `pbt-rl envs check {__name__}:Wrong`" in warning for warning in run.summary["warnings"]]
    assert sum(named) == 1


@pytest.mark.parametrize("kind", [DrawnInsteadOfLast, ResetsButShowsTheLast, Right])
def test_training_notices_a_reset_inside_the_step(kind):
    told = []
    vector_env = GymVectorEnv("m:f", kind, 2, 0, Telling(told.append))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    for _ in range(40):
        vector_env.step(np.zeros((2, 1), np.int32), out)
    assert ["final" in text for text in told] == [True] * (kind is DrawnInsteadOfLast)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SpaceDrifts, "its spaces change"),
        (NewDefaults, "shaping: get_default"),
        (OutOfBounds, ""),
        (Bright, "picture 'obs' is clipped, because it has 255 where 0 to 1"),
        (Right, ""),
    ],
)
def test_training_warns_of_changed_spaces_and_defaults_and_of_clipped_pictures(kind, said):
    told = []
    vector_env = GymVectorEnv("m:f", kind, 2, 0, Telling(told.append, cost=0.25))
    vector_env.reset(private_step_arrays(vector_env.spec, 2))
    assert [text[: len(said)] for text in told] == [said] * bool(said)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_of_a_watched_environment_resets_itself(copied):
    env = Right()
    GymVectorEnv("m:f", iter([env]).__next__, 1, 0, Telling(lambda _text: None))
    env.reset(seed=1)
    env.step(1)
    copied(env).reset(seed=1)
    assert env.steps == 1
    assert "reset" in vars(env)


class Telling:
    def __init__(self, tell, cost=0.5):
        self.warn, self.values = tell, {"cost": cost}

    def __call__(self, _row):
        return 0, self.values
