"""Warnings about conventions of other trainers that have no effect here."""

import re
import sys
from types import SimpleNamespace

import gymnasium
import ml_dtypes
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation

from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.conventions import boxes, converted_pictures
from pbt_rl.envs.gym import GymVectorEnv, describe, maker, recipe
from pbt_rl.envs.shaping import flatten
from pbt_rl.envs.step_warnings import Watch, _ResetTimer
from pbt_rl.errors import EnvSetupError

ALLOWED = np.array([1, 1, 0, 0], np.int8)
NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
BITS = spaces.Box(0, 1, (4,), np.int8)


class Env(gymnasium.Env):
    observation_space, action_space = NUMBERS, spaces.Discrete(4)
    obs, info, end = np.zeros(2, np.float32), {}, (True, False)

    def reset(self, *, seed=None, options=None):
        return self.obs, self.info

    def step(self, action):
        return self.obs, 0.0, *self.end, self.info


class Source:
    def __init__(self):
        self.told = []

    def __call__(self, _row):
        return 0, {}

    def warn(self, text):
        self.told.append(text)


def told(**attributes):
    """Return what a run says of an environment with these attributes, and its first observation."""
    kind, source = type("Own", (Env,), attributes), Source()
    vector_env = GymVectorEnv("m:f", kind, 1, 0, source)
    out = private_step_arrays(vector_env.spec, 1)
    vector_env.reset(out)
    vector_env.step(np.zeros((1, 1), np.int32), out)
    return [*vector_env.spec.mistakes, *source.told], out.obs.get("obs")


@pytest.mark.parametrize(
    "attributes",
    [
        {"action_masks": lambda self: ALLOWED},
        {"legal_actions": property(lambda self: [0, 1])},
        {"info": {"valid_actions": ALLOWED.astype(bool)}},
        {"info": {"legal_actions": {0, 1}}},
        {"info": {"agent": {"action_mask": ALLOWED}}},
        {"getValidActions": lambda self: ALLOWED},
        {"__init__": lambda self: vars(self).update(allowed_moves=[0, 1])},
        {"observation_space": spaces.Dict(obs=NUMBERS, avail_actions=spaces.MultiDiscrete([2] * 4))},
        {"observation_space": spaces.Dict(obs=NUMBERS, avail_actions=BITS)},
        {"observation_space": spaces.Dict(a=spaces.Dict(obs=NUMBERS, action_mask=BITS))},
    ],
)
def test_a_mask_by_another_convention_is_told(attributes):
    if "observation_space" in attributes:
        attributes["obs"] = {
            "obs": Env.obs,
            "avail_actions": ALLOWED,
            "a": {"obs": Env.obs, "action_mask": ALLOWED},
        }
    (text,) = told(**attributes)[0]
    assert "not used: " in text


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"info": {"valid": True, "mask": np.ones(7), "possible": None, "legal_moves": "all"}},
        {"is_legal_action": lambda self, action: True, "legal_actions": lambda self, state: []},
        {"info": {"TimeLimit.truncated": False}},
        {"info": {"TimeLimit.truncated": True}, "end": (False, True)},
        {"info": {"valid_logits": torch.ones(2, requires_grad=True) / 3, "valid": iter([1, 0])}},
        {"lengths": type("RunningMean", (), {})()},
        {"validate_action": lambda self: None},
        {"__init__": lambda self: vars(self).update(legal_actions=[0, 1, 2, 3])},
        {"info": {"time_limit": 1, "timeout": False, "truncated_reason": [[1], [1, 2]]}},
    ],
)
def test_what_only_looks_like_it_is_not(attributes):
    assert told(**attributes)[0] == []


@pytest.mark.parametrize(
    "info",
    [{"TimeLimit.truncated": 1}, {"time_limit_reached": np.True_}, {"bad_transition": torch.tensor(True)}],
)
def test_a_time_limit_told_in_another_way_alone_is_told(info):
    (text,) = told(info=info)[0]
    assert f'info["{next(iter(info))}"]' in text


class Own(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.rms = type("RunningMeanStd", (), {})()


class Itself(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.obs_mean, self.obs_var, self.count = 0.0, 1.0, 0


def transformed(env):
    statistics = type("Statistics", (), {})()
    vars(statistics).update(mean=0.0, std=1.0, n=0)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs - statistics.mean, NUMBERS)


@pytest.mark.parametrize("wrapper", [NormalizeObservation, Own, Itself, transformed])
def test_observations_normalised_by_the_environment_are_told(wrapper):
    (mistake,) = describe("m:f", wrapper(Env())).mistakes
    assert "normalised" in mistake
    assert not describe("m:f", gymnasium.wrappers.NormalizeReward(Env())).mistakes


@pytest.mark.parametrize(
    "obs",
    [
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2).int(),
        np.ones(2, ml_dtypes.bfloat16),
    ],
)
def test_tensors_are_read_as_observations(obs):
    assert told(obs=obs)[1].tolist() == [[1, 1]]


@pytest.mark.parametrize("obs", [[torch.ones(1, requires_grad=True)] * 2, torch.ones(2).to_sparse()])
def test_what_is_no_array_is_refused_by_the_name_of_its_observation(obs):
    assert list(boxes(NUMBERS, obs)) == []  # the checker leaves it to the vector env
    with pytest.raises(EnvSetupError, match=r"'obs'.*array"):
        told(obs=obs)


def test_a_mask_of_floats_is_one():
    obs = {"obs": Env.obs, "action_mask": ALLOWED.astype(np.float32)}
    space = spaces.Dict(obs=NUMBERS, action_mask=spaces.Box(0, 1, (4,), np.float32))
    assert told(obs=obs, observation_space=space)[0] == []


@pytest.mark.parametrize("truth", [True, np.True_, np.array([1])])
def test_a_truth_or_an_array_of_one_is_a_choice(truth):
    assert told(observation_space=spaces.Discrete(2), obs=truth)[1].tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("low", "high", "normalised"),
    [(-np.inf, np.inf, True), (0, 640, True), (-5, 5, True), (0, 1, False), (-1, 1, False)],
)
def test_numbers_of_unknown_scale_are_normalised_by_the_recipe(low, high, normalised):
    env = type("Own", (Env,), {"observation_space": spaces.Box(low, high, (2,), np.float32)})()
    assert recipe(describe("m:f", env)).get("learner.normalize_observations", False) == normalised


@pytest.mark.parametrize("value", [pytest.param(10**400, id="huge"), np.inf, "1", True])
def test_a_shaping_value_is_a_finite_number(value):
    with pytest.raises(EnvSetupError, match="'cost'"):
        flatten({"cost": value})
    assert flatten({"cost": torch.tensor(2.0)}) == {"cost": 2.0}


@pytest.mark.parametrize("space", [spaces.Discrete(2**31), spaces.MultiDiscrete([70_000, 2])])
def test_an_action_has_not_more_choices_than_a_network_has_outputs(space):
    with pytest.raises(EnvSetupError, match="choices"):
        describe("m:f", type("Own", (Env,), {"action_space": space})())


def test_an_id_of_the_old_gym_is_answered(monkeypatch):
    old = SimpleNamespace(envs=SimpleNamespace(registry=SimpleNamespace(env_specs={"Old-v0": 1})))
    monkeypatch.setitem(sys.modules, "gym", old)
    with pytest.raises(EnvSetupError, match="OldGym"):
        maker("Old-v0")()


@pytest.mark.parametrize(
    ("high", "dtype", "image"), [(1, "f4", True), (255, "f4", True), (1e6, "f4", False), (10**6, "i4", False)]
)
def test_a_table_of_large_numbers_is_no_picture(high, dtype, image):
    table = spaces.Box(0, high, (40, 40), np.dtype(dtype).type)
    spec = describe("m:f", type("Own", (Env,), {"observation_space": table})())
    assert (spec.obs["obs"].dtype == "uint8") == image
    assert spec.obs["obs"].unscaled == (not image)


def test_the_steps_for_which_a_row_waits_are_no_episodes():
    """While an engine resets, its row delivers `first` in each step."""
    timer, out = _ResetTimer(), private_step_arrays(describe("m:f", Env()), 4)
    for _ in range(30):
        for step in range(20):
            out.first[:] = [step < 12, False, False, False]
            out.episode_done[:] = [step == 19, False, False, False]
            timer.note(out, 3.0 if step == 0 else 0.03)
    assert timer.resets == 29
    assert timer.measured()[0] == pytest.approx(3 - 0.03, rel=0.05)


@pytest.mark.parametrize(("steps", "warns"), [(5, True), (500, False)])
def test_slow_resets_are_told_unless_episodes_are_long(steps, warns):
    told: list[str] = []
    spec = describe("m:f", Env())
    watch, out = Watch(told.append), private_step_arrays(spec, 2)
    for step in range(12 * steps):
        out.first[:], out.episode_done[:] = step % steps == 0, step % steps == steps - 1
        watch.note(out, 0.101 if step % steps == 0 else 0.001)
    assert [bool(re.match(r"slow reset: a reset takes (4\d|50) ms", line)) for line in told] == [True] * warns


@pytest.mark.parametrize(
    ("high", "seen", "said"),
    [(5e4, 100, 1), (200, 100, 0), (255, 1, 1), (255, 100, 0)],  # 255, 1: normalised in the environment
)
def test_a_picture_of_wide_bounds_in_which_nothing_is_seen_is_told(high, seen, said):
    told: list[str] = []
    spec = describe(
        "m:f", type("Own", (Env,), {"observation_space": spaces.Box(0, high, (40, 40, 3), np.float32)})()
    )
    watch, out = Watch(told.append, converted_pictures(spec)), private_step_arrays(spec, 2)
    shades = np.uint8(seen / high * 255)
    for step in range(300):
        out.obs["obs"][:] = shades if step % 2 else 0
        watch.note(out, 0.01)
    assert [line.partition(" has")[0] for line in told] == ["picture 'obs'"] * said
