"""Critic-only observations, declared by an environment or by an option."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pbt_rl.envs import lookup
from pbt_rl.envs.family import EnvOptions
from pbt_rl.errors import EnvSetupError

HERE = "tests.envs.test_critic"


class Hinted(gymnasium.Env):
    """Episodes of 8 steps. `sim` determines the value, and repeating `obs` as the action is rewarded."""

    observation_space = spaces.Dict(
        {
            "obs": spaces.Box(-1, 1, (2,)),
            "sim": spaces.Dict({"luck": spaces.Box(-9, 9, (1,)), "mass": spaces.Box(-9, 9, (2,))}),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, names=("sim",)) -> None:
        self.metadata = {"critic_only": names}

    def _obs(self):
        self._side = int(self.np_random.integers(2))
        luck = np.full(1, self._luck, np.float32)
        return {
            "obs": np.eye(2, dtype=np.float32)[self._side],
            "sim": {"luck": luck, "mass": np.zeros(2, np.float32)},
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._luck = 0, float(self.np_random.choice([-3.0, 3.0]))
        return self._obs(), {}

    def step(self, action):
        self._steps += 1
        reward = float(action == self._side) + self._luck
        return self._obs(), reward, self._steps == 8, False, {}


def hinted(names="sim"):
    return Hinted(names)


def spec_of(declared, *named):
    options = EnvOptions(keywords={"names": declared}, critic_only=named)
    return lookup.probe(f"{HERE}:hinted", options)


@pytest.mark.parametrize(
    ("declared", "named", "critic"),
    [
        ((), (), ()),
        (("sim",), (), ("sim.luck", "sim.mass")),
        ("sim.mass, sim.luck", (), ("sim.luck", "sim.mass")),
        (["sim.luck"], (), ("sim.luck",)),
        (["sim.luck"], ("sim.mass",), ("sim.luck", "sim.mass")),
        ((), ("obs",), ("obs",)),
    ],
)
def test_names_are_of_arrays_or_of_whole_dicts(declared, named, critic):
    assert spec_of(declared, *named).critic == critic


@pytest.mark.parametrize(
    ("declared", "named", "message"),
    [
        ((), ("si",), "'si' .* obs, sim.luck, sim.mass"),
        (("sim.height",), (), "'sim.height'"),
        (("sim",), ("obs",), "obs, sim.luck, sim.mass"),
        (7, (), r'metadata\["critic_only"\] is 7'),
    ],
)
def test_what_cannot_be_is_refused(declared, named, message):
    with pytest.raises(EnvSetupError, match=message):
        spec_of(declared, *named)


def test_an_action_mask_is_the_policys():
    from dataclasses import replace

    from pbt_rl.envs.base import ArraySpec
    from pbt_rl.envs.shaping import with_critic

    spec = replace(
        spec_of(()), obs={"obs": ArraySpec((2,), "float32"), "action_mask": ArraySpec((2,), "uint8")}
    )
    with pytest.raises(EnvSetupError, match="'action_mask'"):
        with_critic(spec, ["action_mask"])
    with pytest.raises(EnvSetupError, match="obs cannot"):
        with_critic(spec, ["obs"])
