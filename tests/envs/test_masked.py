"""Action masks in the observation or the info dict, of single and vector environments."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.envs import toy
from pbt_rl.envs.base import ACTION_MASK, ArraySpec, private_step_arrays, random_allowed
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.toy import Masked
from pbt_rl.envs.vectors import NativeVectorEnv
from pbt_rl.errors import EnvSetupError


class InInfo(Masked):
    """The toy with its mask in the info dict. The mask is missing at an episode's end, where it is optional."""

    metadata = {"action_mask": True}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self):
        super().__init__()
        self.observation_space = self.observation_space["obs"]

    def reset(self, **options):
        obs, info = super().reset(**options)
        return obs["obs"], info | {"action_mask": obs["action_mask"]}

    def step(self, action):
        obs, *rest, truncated, info = super().step(action)
        info |= {} if truncated else {"action_mask": obs["action_mask"]}
        return obs["obs"], *rest, truncated, info


class InInfoAlways(InInfo):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, info | {"action_mask": self._mask.copy()}


def vector_env_of(make, rows=3, seed=0):
    return GymVectorEnv("toy/masked", make, rows, seed, lambda _row: (0, {}))


def native_vector_env(make, mode, rows=3, seed=0):
    return NativeVectorEnv(
        "toy/masked", SyncVectorEnv([make] * rows, autoreset_mode=mode), seed, lambda _row: (0, {})
    )


def play(vector_env, steps=200):
    """Return observations and rewards [T, ...] of a policy that obeys the mask."""
    out, rng, history = private_step_arrays(vector_env.spec, vector_env.rows), np.random.default_rng(0), []
    vector_env.reset(out)
    for _ in range(steps):
        mask = out.obs[ACTION_MASK].copy()
        action = random_allowed((4,), mask, rng)
        vector_env.step(action, out)
        history.append((mask, out.reward.copy(), out.first.copy(), out.raw_return[out.episode_done].copy()))
    return history


VECTOR_ENVS = {
    "observation": lambda: vector_env_of(Masked),
    "info": lambda: vector_env_of(InInfo),
    **{f"vector {mode.name}": lambda mode=mode: native_vector_env(Masked, mode) for mode in AutoresetMode},
    **{
        f"vector info {mode.name}": lambda mode=mode: native_vector_env(InInfoAlways, mode)
        for mode in AutoresetMode
    },
}


@pytest.mark.parametrize("kind", VECTOR_ENVS)
def test_actions_that_obey_the_mask_are_all_allowed(kind):
    vector_env = VECTOR_ENVS[kind]()
    assert vector_env.spec.obs[ACTION_MASK] == ArraySpec((4,), "uint8")
    history = play(vector_env)  # an action against the mask would raise
    masks = np.stack([mask for mask, *_ in history])
    assert masks.dtype == np.uint8
    assert 0.2 < (~masks.any(2)).mean() < 0.3, "the pauses"
    returns = np.concatenate([ended for *_, ended in history])
    assert len(returns) > 20
    assert 4 < returns.mean() < 7


def test_the_toys_best_score_is_the_documented_one():
    vector_env = vector_env_of(Masked, rows=2)
    out, ended = private_step_arrays(vector_env.spec, 2), []
    vector_env.reset(out)
    for _ in range(100):
        vector_env.step(out.obs["obs"].argmax(1)[:, None].astype(np.int32), out)
        ended += out.raw_return[out.episode_done].tolist()
    assert ended == [12.0] * 10
    assert "masked" in toy.names()


SEEN, MASK = spaces.Box(0, 1, (4,)), spaces.Box(0, 1, (4,), np.uint8)


class Given(InInfo):
    """The toy with other spaces and another mask."""

    metadata = {}  # noqa: RUF012

    def __init__(self, observation=SEEN, action=None, mask=None, **metadata):
        super().__init__()
        self.metadata = metadata
        self.observation_space = observation
        self.action_space = action or self.action_space
        self.mask = mask

    def reset(self, **options):
        obs, _ = Masked.reset(self, **options)
        if self.mask is not None:
            obs["action_mask"] = self.mask
        return (obs if isinstance(self.observation_space, spaces.Dict) else obs["obs"]), {}


def both(mask):
    return spaces.Dict({"obs": SEEN, "action_mask": mask})


WRONG_SPACES = {
    "continuous": ({"observation": both(MASK), "action": spaces.Box(-1, 1, (4,))}, "continuous"),
    "continuous, info": ({"action": spaces.Box(-1, 1, (4,)), "action_mask": True}, "continuous"),
    "size": ({"observation": both(spaces.Box(0, 1, (3,), np.uint8))}, r"shape \(3,\)\. .* \(4,\)"),
    "multi-discrete size": (
        {"observation": both(MASK), "action": spaces.MultiDiscrete([4, 2])},
        r"\b6 choices",
    ),
    "discrete": ({"observation": both(spaces.Discrete(4))}, r"Box\(0, 1, .*np\.uint8"),
    "twice": ({"observation": both(MASK), "action_mask": True}, "twice"),
    "alone": ({"observation": spaces.Dict({"action_mask": MASK})}, "no other"),
}


@pytest.mark.parametrize("case", WRONG_SPACES)
def test_a_mask_that_does_not_fit_is_refused(case):
    options, message = WRONG_SPACES[case]
    with pytest.raises(EnvSetupError, match=message):
        vector_env_of(lambda: Given(**options))


WRONG_MASKS = {
    "shape": (np.ones(3, np.uint8), r".*shape \(4,\).*shape \(3,\)"),
    "dtype": (["1"] * 4, ".*bool or uint8, .*<U1"),
    "values": (np.array([0, 1, 2, 1]), ".*0 and 1 .*2"),
    "floats": (np.array([0, 1, np.nan, 1]), ".*0 and 1 .*nan"),
}


@pytest.mark.parametrize("case", WRONG_MASKS)
def test_a_wrong_mask_is_one_clear_error(case):
    mask, message = WRONG_MASKS[case]
    vector_env = vector_env_of(lambda: Given(both(MASK), mask=mask), rows=1)
    with pytest.raises(EnvSetupError, match=f"action_mask .*: {message}"):
        vector_env.reset(private_step_arrays(vector_env.spec, 1))


def test_a_mask_that_is_missing_in_info_is_one_clear_error():
    vector_env = vector_env_of(lambda: Given(action_mask=True), rows=1)
    with pytest.raises(EnvSetupError, match=r'info\["action_mask"\] .* key'):
        vector_env.reset(private_step_arrays(vector_env.spec, 1))


@pytest.mark.parametrize("mask", [np.array([True, False, True, True]), np.array([1, 0, 1, 1], np.int8)])
def test_bool_and_small_integers_are_masks_too(mask):
    space = spaces.MultiBinary(4)
    vector_env = vector_env_of(lambda: Given(both(space), mask=mask), rows=1)
    out = private_step_arrays(vector_env.spec, 1)
    vector_env.reset(out)
    assert out.obs[ACTION_MASK][0].tolist() == [1, 0, 1, 1]
