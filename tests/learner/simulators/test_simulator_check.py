"""Rows of tensors with a mistake each: `pbt-rl envs check` and training name it in one line."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from pbt_rl.cli import EXIT_USER_ERROR, main
from pbt_rl.envs import lookup
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import DEFAULTS
from pbt_rl.envs.simulators import SimulatorStep
from pbt_rl.learner.simulators.simulator_check import check_rows

HERE = __name__
LIMIT = 10


class Right:
    """A point that is pushed; an episode is cut after 10 steps, and over beyond 3."""

    shaping = {"near": 1.0, "effort": 0.1}  # noqa: RUF012 - never changed

    def __init__(self, rows, device, seed=0):
        self.rows, self.device = rows, torch.device(device)
        space = ActionSpec(low=(-1.0,), high=(1.0,))
        self.spec = EnvSpec("", {"obs": ArraySpec((1,), "float32")}, space, shaping=self.shaping)
        self.random = torch.Generator(device).manual_seed(seed)
        self.steps = torch.zeros(rows, dtype=torch.int32, device=device)

    def attach(self, weights_PK):
        self.weights = weights_PK

    def weights_RK(self):
        return self.weights.repeat_interleave(self.rows // len(self.weights), 0)

    def begin(self):
        return torch.rand((self.rows, 1), generator=self.random, device=self.device) * 2 - 1

    def reset(self):
        self.at = self.begin()
        return {"obs": self.at}

    def step(self, action):
        self.at, self.steps = self.at + action, self.steps + 1
        terms_RK = -torch.stack((self.at[:, 0].abs(), action[:, 0].square()), 1)
        over = self.at[:, 0].abs() > 3
        cut = (self.steps >= LIMIT) & ~over
        final, ended = {"obs": self.at}, over | cut
        self.at, self.steps = (
            torch.where(ended[:, None], self.begin(), self.at),
            self.steps.masked_fill(ended, 0),
        )
        reward = (terms_RK * self.weights_RK()).sum(1)
        return self.change(
            SimulatorStep({"obs": self.at}, reward, over, cut, final, objective=terms_RK[:, 0])
        )

    def change(self, step):
        return step

    def close(self):
        pass


class ObservesNothingFinite(Right):
    def change(self, step):
        self.at = self.at / 0
        return replace(step, obs={"obs": self.at})


class WeightsOfAnother(Right):
    def weights_RK(self):
        return self.weights.repeat(self.rows // len(self.weights), 1)


class NoTimeOuts(Right):
    def change(self, step):
        self.at.clamp_(-1, 1)
        return replace(step, terminated=step.truncated, truncated=torch.zeros_like(step.truncated))


class Waits(Right):
    def change(self, step):
        if step.truncated.any():
            self.steps[step.truncated] = 0
        return step


class Raises(Right):
    def change(self, step):
        raise OSError("the engine broke")


def ends(step):
    return step.terminated | step.truncated


CHANGES = {
    "OnAnotherDevice": lambda _, step: replace(step, obs={"obs": step.obs["obs"].to("meta")}),
    "WrongShape": lambda _, step: replace(step, reward=step.reward[:, None]),
    "Doubles": lambda _, step: replace(step, reward=step.reward.double()),
    "FlagsAsFloats": lambda _, step: replace(step, terminated=step.terminated.float()),
    "NoTensor": lambda _, step: replace(step, truncated=step.truncated.tolist()),
    "BothEnds": lambda _, step: replace(step, terminated=ends(step)),
    "OtherNames": lambda _, step: replace(step, obs={"state": step.obs["obs"]}),
    "NoStep": lambda _, step: (step.obs, step.reward, step.terminated, step.truncated, {}),
    "NotANumber": lambda env, step: replace(step, reward=torch.where(env.steps == 3, torch.nan, step.reward)),
    "InfiniteObjective": lambda _, step: replace(step, objective=step.reward - torch.inf),
    "GradientLeftOn": lambda _, step: replace(step, reward=step.reward.requires_grad_()),
    "NoObjective": lambda _, step: replace(step, objective=None),
    "ObjectiveIsTheReward": lambda _, step: replace(step, objective=step.reward),
    "ObjectiveOfItsWeights": lambda _, step: replace(step, objective=step.reward * 2),
    "MostlyNoTimeOuts": lambda _, step: replace(
        step, terminated=ends(step), truncated=torch.zeros_like(step.truncated)
    ),
    "NoFinalObs": lambda _, step: replace(step, final_obs=None),
    "FewerStats": lambda env, step: replace(step, stats={} if env.steps[0] > 2 else {"x": step.reward}),
    "ObjectiveAtTimes": lambda env, step: replace(
        step, objective=step.objective if env.steps[0] < 3 else None
    ),
    "FirstAsFinal": lambda _, step: replace(step, final_obs=step.obs),
}
for name, change in CHANGES.items():
    globals()[name] = type(name, (Right,), {"change": change})

ALSO_IN_TRAINING = {
    "OnAnotherDevice": 'obs["obs"] is on meta',
    "WrongShape": "[8, 1], not [8]",
    "Doubles": "float64, not float32",
    "FlagsAsFloats": "float32, not bool",
    "NoTensor": "truncated is list",
    "BothEnds": "terminated and truncated",
    "OtherNames": "['state']",
    "NoStep": "returned tuple",
    "NotANumber": "not finite",
    "InfiniteObjective": "not finite",
    "ObservesNothingFinite": "observation",
    "GradientLeftOn": "gradient",
    "NoObjective": "no objective",
    "ObjectiveIsTheReward": "weights",
    "FewerStats": "lacks the stats x",
    "ObjectiveAtTimes": "others have none",
}
BY_THE_CHECK = ALSO_IN_TRAINING | {
    "ObjectiveOfItsWeights": "objective depends",
    "WeightsOfAnother": "repeat_interleave",
    "NoTimeOuts": "no time-outs: all 80 ",
    "Waits": "1.38 times",
    "Raises": "OSError",
}


@pytest.fixture
def answered(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


@pytest.mark.parametrize("wrong", BY_THE_CHECK)
def test_the_mistake_is_found(wrong):
    mistakes, _ = check_rows(f"{HERE}:{wrong}", DEFAULTS, Right(1, "cpu").spec, 800, 0, "cpu")
    assert len(mistakes) == 1
    assert BY_THE_CHECK[wrong] in mistakes[0]


def test_nothing_is_found_wrong_with_a_right_one():
    spec = Right(1, "cpu").spec
    assert check_rows(f"{HERE}:Right", DEFAULTS, spec, 800, 0, "cpu") == ([], [])
    mistakes, notes = check_rows(f"{HERE}:NoFinalObs", DEFAULTS, spec, 800, 0, "cpu")
    assert not mistakes
    assert notes[0].startswith("no final_obs: ")


def test_limits_that_are_not_said_are_noted_where_other_ends_may_be_right():
    mistakes, notes = check_rows(f"{HERE}:MostlyNoTimeOuts", DEFAULTS, Right(1, "cpu").spec, 800, 0, "cpu")
    assert not mistakes
    assert re.match(r"no time-outs: .*\b\d+ of \d+.* 10 ", notes[0])


def test_the_command_checks_a_right_one(answered):
    code, out, _ = answered("envs", "check", f"{HERE}:Right", "--steps", "300")
    assert code == 0, out
    assert "MISTAKE" not in out


def test_the_command_finds_final_observations_of_the_next_episode(answered):
    code, out, _ = answered("envs", "check", f"{HERE}:FirstAsFinal", "--steps", "300")
    assert code == 1
    assert "MISTAKE: wrong final" in out


@pytest.mark.long
@pytest.mark.parametrize("wrong", ALSO_IN_TRAINING)
def test_training_names_the_mistake_in_one_line(answered, tmp_path, wrong):
    options = f"--num-policies=2 --rows=4 --learner.rollout=16 --train-for-frames=4000 --out={tmp_path}"
    env = f"{HERE}:{wrong}"
    code, _, err = answered("train", "--env", env, *options.split(), "--mode=serial", "--no-figures")
    assert code == EXIT_USER_ERROR, err
    assert ALSO_IN_TRAINING[wrong] in err
    assert len([line for line in err.splitlines() if line.strip()]) == 1


class Drawn(Right):
    """Is told that it is to be drawn."""

    metadata = {"render_fps": 7}  # noqa: RUF012 - never changed

    def __init__(self, rows, device, seed=0, render_mode=None):
        super().__init__(rows, device, seed)
        self.render_mode = render_mode

    def render(self):
        return np.full((4, 5, 3), 9, np.uint8) if self.render_mode else None


def test_a_users_simulator_is_filmed_if_it_has_pictures_and_has_no_single_environment():
    """A policy is loaded by the spec alone."""
    from pbt_rl.envs.films import film

    assert lookup.make_raw(f"{HERE}:Right", DEFAULTS) is None
    source = default_shaping_source(lookup.probe(f"{HERE}:Right", DEFAULTS))
    assert film(f"{HERE}:Right", 2, 0, DEFAULTS, source) is None
    vector_env, camera = film(f"{HERE}:Drawn", 2, 0, DEFAULTS, source)
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    assert camera.frames_per_second == 7
    assert (camera.shoot(out, None) == 9).all()
