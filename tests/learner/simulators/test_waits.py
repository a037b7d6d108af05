"""A step of a simulator in the learner uploads nothing and never waits for the device: counted on a pretend one."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from pbt_rl.envs.lookup import EnvOptions, make_simulator
from pbt_rl.envs.simulators.tensors import SPECS
from tests.helpers.pretend import DEVICE, pretend_device

ROWS, STEPS = 4, 3


def toy(name):
    return make_simulator(f"tensors/{name}", ROWS, 0, str(DEVICE), EnvOptions(keywords={"limit": 2}))


class Robots:
    """What mjlab and Isaac Lab give: groups, a reward and a metrics manager, time-outs, a log of means."""

    num_envs, num_actions, device, step_dt = ROWS, 2, DEVICE, 0.5

    def __init__(self):
        self.place = torch.zeros(ROWS, 3, device=DEVICE)
        terms = [
            SimpleNamespace(func=self.of_column, weight=w, params={"column": i})
            for i, w in enumerate((2.0, 0.0))
        ]
        self.reward_manager = SimpleNamespace(active_terms=["speed", "effort"], _term_cfgs=terms)
        self.metrics_manager = SimpleNamespace(active_terms=["height"], _step_values=self.place)

    def of_column(self, _env, column):
        return self.place[:, column]

    def get_observations(self):
        return {"policy": self.place.clone(), "critic": self.place + 7}

    def step(self, action):
        self.place[:, :2] += action
        terms = self.reward_manager._term_cfgs
        reward = sum(term.func(self, **term.params) * term.weight * self.step_dt for term in terms)
        ended = self.place[:, 0] > 1
        log = {"height": self.place[:, 2].mean(), "level": 3.0}
        return self.get_observations(), reward, ended.long(), {"time_outs": ended.float(), "log": log}


class Batch:
    """A Gymnasium `VectorEnv` of tensors."""

    num_envs, metadata = ROWS, {"autoreset_mode": AutoresetMode.SAME_STEP}
    single_action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self):
        self.place = torch.zeros(ROWS, 3, device=DEVICE)
        return {"place": self.place, "whole": self.place.int()}, {}

    def step(self, action):
        self.place = self.place + action
        obs, ended = {"place": self.place, "whole": self.place.int()}, self.place[:, 0] > 1
        return obs, self.place.sum(1), ended, ended, {"final_obs": obs}


def robots(objective=""):
    from pbt_rl.envs.simulators.rsl_rows import VecEnvRows

    return VecEnvRows("a:b", Robots(), objective)


def batch():
    from pbt_rl.envs.simulators.batched import BatchedRows

    return BatchedRows("a:b", Batch())


MAKERS = [
    *(pytest.param(lambda name=name: toy(name), id=name) for name in SPECS),
    pytest.param(robots, id="mjlab, Isaac Lab"),
    pytest.param(lambda: robots("height"), id="by a metric"),
    pytest.param(lambda: robots("effort"), id="by a term"),
    pytest.param(batch, id="vector of tensors"),
]


@pytest.mark.parametrize("made", MAKERS)
def test_a_step_neither_uploads_nor_waits(made):
    with pretend_device() as device:
        env = made()
        env.attach(torch.ones(2, len(env.spec.shaping)).to(DEVICE))
        env.reset()
        action = torch.ones(ROWS, env.spec.action.components).to(DEVICE)
        device.counts.reset()
        for _ in range(STEPS):
            env.step(action)
        counts = device.counts
    assert counts.total("launch") > STEPS
    for what in ("upload", "download", "sync"):
        assert not counts.total(what), f"{what}s in {STEPS} steps:\n{counts.listing(what)}"
