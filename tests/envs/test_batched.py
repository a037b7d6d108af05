"""A Gymnasium `VectorEnv` of tensors, such as ManiSkill's."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from pbt_rl.envs.lookup import DEFAULTS
from pbt_rl.envs.simulators import custom_simulators
from pbt_rl.envs.simulators.batched import BatchedRows
from pbt_rl.errors import EnvSetupError


class Walk(VectorEnv):
    """Environment whose place is the sum of actions. Terminated at place 3, truncated at step 4."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, rows, final="final_observation"):
        self.num_envs, self._final = rows, final
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.place, self.steps = torch.zeros(rows), torch.zeros(rows)

    def see(self):
        return {
            "state": {"place": self.place[:, None].clone()},
            "picture": torch.zeros(self.num_envs, 3, 8, 8).byte(),
        }

    def reset(self, *, seed=None, options=None):
        return self.see(), {}

    def step(self, action):
        self.place, self.steps = self.place + action[:, 0], self.steps + 1
        over, cut, final = self.place >= 3, self.steps >= 4, self.see()
        self.place = torch.where(over | cut, 0, self.place)
        self.steps = torch.where(over | cut, 0, self.steps)
        return self.see(), action[:, 0].double(), over, cut, {self._final: final}


class Numpy(Walk):
    def see(self):
        return np.zeros((self.num_envs, 3), np.float32)


class NextStep(Walk):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012


def walk(rows, device):
    return Walk(rows)


def other_key(rows, device):
    return Walk(rows, "final_obs")


def next_step(rows, device):
    return NextStep(rows)


def of_numpy(rows, device):
    return Numpy(rows)


SPACES = {
    "discrete": (gymnasium.spaces.Discrete(3, start=1), 1, torch.int32),
    "several": (gymnasium.spaces.MultiDiscrete([3, 3], start=[5, 6]), [5, 6], None),
    "whole": (gymnasium.spaces.Box(-2, 2, (2,), np.int64), [-2, -2], torch.int64),
    "small": (gymnasium.spaces.Box(0, 2, (1,), np.uint8), [0], torch.uint8),
    "bits": (gymnasium.spaces.MultiBinary(2), [0, 0], torch.int32),
}


class Recorder(Walk):
    """Environment that keeps its last action."""

    def __init__(self, rows, space):
        super().__init__(rows)
        self.single_action_space = space

    def step(self, action):
        self.action = action
        return super().step(torch.zeros(self.num_envs, 1))


@pytest.mark.parametrize("name", SPACES)
def test_choices_begin_at_the_first_value_of_the_space(name):
    space, first, dtype = SPACES[name]
    recorder = Recorder(2, space)
    env = BatchedRows("x", recorder)
    env.reset()
    env.step(torch.zeros(2, env.spec.action.components, dtype=torch.int32))
    assert recorder.action.tolist() == [first, first]
    assert dtype in (None, recorder.action.dtype)
    assert all(space.contains(action.numpy().astype(space.dtype)) for action in recorder.action)


def test_an_action_space_with_parts_is_refused():
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2), b=gymnasium.spaces.Discrete(2))
    with pytest.raises(EnvSetupError, match="parts"):
        BatchedRows("x", Recorder(2, space))


def made(name):
    return custom_simulators.make_simulator(f"{__name__}:{name}", 2, 0, "cpu", DEFAULTS)


@pytest.mark.parametrize("name", ["walk", "other_key"])
def test_ends_final_observations_and_types(name):
    env = made(name)
    assert {key: (array.shape, array.dtype) for key, array in env.spec.obs.items()} == {
        "state.place": ((1,), "float32"),
        "picture": ((3, 8, 8), "uint8"),
    }
    env.reset()
    push = torch.tensor([[1.0], [0.5]])
    steps = [env.step(push) for _ in range(4)]
    assert [step.terminated.tolist() for step in steps[2:]] == [[True, False], [False, False]]
    assert [step.truncated.tolist() for step in steps[2:]] == [[False, False], [False, True]]
    assert steps[2].reward.dtype is torch.float32
    assert steps[3].final_obs["state.place"].tolist() == [[1.0], [2.0]]
    assert steps[3].obs["state.place"].tolist() == [[1.0], [0.0]]


def test_vectors_that_cannot_be_used():
    with pytest.raises(EnvSetupError, match=r"AutoresetMode\.NEXT_STEP"):
        made("next_step")
    with pytest.raises(EnvSetupError, match="obs as ndarray"):
        made("of_numpy")
