"""Conversion of action spaces to columns and back, and observations that are Tuples."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.envs import toy
from pbt_rl.envs.actions import action_decoder, action_spec, actions_decoder
from pbt_rl.envs.base import (
    ActionSpec,
    ArraySpec,
    EnvSpec,
    private_step_arrays,
    random_actions,
    random_within,
    untrained_within,
)
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.spaces import obs_leaves, read_leaf, with_mask
from pbt_rl.envs.vectors import NativeVectorEnv
from pbt_rl.errors import EnvSetupError

NESTED = spaces.Dict(
    aim=spaces.Box(np.array([[-1.0, 0.0]], np.float32), np.array([[1.0, 2.0]], np.float32)),
    keys=spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 4])]),
    power=spaces.Box(0, 9, (), np.float64),
)


def test_multi_discrete_actions_keep_their_shape_and_start():
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]]))
    assert action_spec(space, "x").nvec == (2, 3, 4, 5)
    action = action_decoder(space)(np.array([1, 2, 3, 4], np.int32))
    assert action.tolist() == [[1, 3], [5, 7]]
    assert space.contains(action)


@pytest.mark.parametrize("start", [5, 20_000_001, 3_000_000_001, -3_000_000_001])
def test_choices_with_a_large_start_stay_exact(start):
    alone = spaces.Discrete(4, start=start)
    both = spaces.Tuple([alone, spaces.Box(-1, 1, (1,))])
    columns = np.arange(4)
    chosen = [action_decoder(alone)(np.array([i], np.int32)) for i in columns]
    assert chosen == [start + i for i in columns]
    chosen = [action_decoder(both)(np.array([i, 0.5], np.float32))[0] for i in columns]
    assert chosen == [start + i for i in columns]


def test_bits_are_choices_between_two():
    space = spaces.MultiBinary((2, 2))
    assert action_spec(space, "x").nvec == (2, 2, 2, 2)
    action = action_decoder(space)(np.array([1, 0, 0, 1], np.int32))
    assert action.tolist() == [[1, 0], [0, 1]]
    assert space.contains(action)
    assert action_decoder(space)(np.array([[1, 0, 0, 1]] * 3, np.int32)).shape == (3, 2, 2)
    both = spaces.Dict({"aim": spaces.Box(-1, 1, (1,)), "keys": spaces.MultiBinary(3)})
    assert both.contains(action_decoder(both)(np.array([1, 0, 1, 0.5], np.float32)))


def test_continuous_actions_are_clipped_to_their_bounds():
    space = spaces.Box(np.array([-1, -np.inf, 20]), np.array([2, np.inf, np.inf]), dtype=np.float64)
    spec = action_spec(space, "x")
    assert (spec.low, spec.high) == ((-1, -np.inf, 20), (2, np.inf, np.inf))
    assert spec.unbounded == (False, True, True)
    action = action_decoder(space)(np.array([5, -50, 2], np.float32))
    assert action.tolist() == [2, -50, 20]
    assert space.contains(action)
    huge = np.full((2, 2), 3e38, np.float32)
    assert action_spec(spaces.Box(-huge, huge), "x").unbounded == (True,) * 4, (
        "the end of a dtype is no bound"
    )


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 256, (2,), np.int64), r"Box.* \(.*\b256\b"),
        (spaces.Box(0, 1, (2,), bool), r"Box\(.*bool"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Text(3)])}), r"\ba\.0 .*Text"),
        (spaces.Tuple([]), "empty"),
    ],
)
def test_other_action_spaces_are_refused(space, message):
    with pytest.raises(EnvSetupError, match=f"x: .*{message}"):
        action_spec(space, "x")


def test_a_box_of_few_whole_numbers_has_a_choice_for_each():
    space = spaces.Box(np.array([-2, 0]), np.array([2, 255]), dtype=np.int64)
    assert action_spec(space, "x") == ActionSpec(nvec=(5, 256))
    action = action_decoder(space)(np.array([0, 255], np.int32))
    assert (action.tolist(), action.dtype) == ([-2, 255], np.int64)
    assert space.contains(action)
    assert action_decoder(space)(np.array([[4, 0], [0, 7]], np.int32)).tolist() == [[2, 0], [-2, 7]]


def test_nested_actions_have_their_discrete_columns_first():
    spec = action_spec(NESTED, "x")
    assert spec == ActionSpec(nvec=(3, 2, 4), low=(-1, 0, 0), high=(1, 2, 9))
    assert (spec.components, spec.dtype) == (6, "float32")
    keys_only = action_spec(NESTED["keys"], "x")
    assert (keys_only.nvec, keys_only.dtype) == ((3, 2, 4), "int32")


def test_a_nested_action_is_put_together_again():
    row = np.array([2, 1, 3, 0.5, 5, 7.5], np.float32)
    action = action_decoder(NESTED)(row)
    assert NESTED.contains(action)
    assert action["aim"].tolist() == [[0.5, 2.0]], "clipped"
    assert (action["keys"][0], action["keys"][1].tolist(), action["power"]) == (7, [1, 3], 7.5)
    assert type(action["keys"][0]) is type(NESTED.sample()["keys"][0])
    rows = np.stack([row, row * 0])
    assert [NESTED.contains(one) for one in actions_decoder(NESTED)(rows)] == [True, True]


def test_random_actions_of_both_kinds_fill_their_ranges_and_obey_a_mask():
    spec = EnvSpec("x", {"obs": ArraySpec((1,), "float32")}, ActionSpec((3, 2), (-1.0, 5.0), (1.0, 6.0)))
    out = private_step_arrays(spec, 200)
    drawn = random_actions(spec, out, np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((200, 4), np.float32)
    assert [set(drawn[:, i].tolist()) for i in (0, 1)] == [{0.0, 1.0, 2.0}, {0.0, 1.0}]
    assert ((drawn[:, 2:] >= [-1, 5]) & (drawn[:, 2:] <= [1, 6])).all()
    out.obs["action_mask"] = np.tile(np.array([0, 1, 1, 1, 0], np.uint8), (200, 1))
    drawn = random_actions(spec, out, np.random.default_rng(0))
    assert [set(drawn[:, i].tolist()) for i in (0, 1)] == [{1.0, 2.0}, {0.0}]


@pytest.mark.parametrize("numbers", [random_within, untrained_within])
def test_actions_drawn_without_bounds_are_of_the_size_of_a_policys(numbers):
    inf = np.inf
    spec = EnvSpec(
        "x",
        {"obs": ArraySpec((1,), "float32")},
        ActionSpec((), (-2.0, -inf, -inf, 3.0), (4.0, inf, -5.0, inf)),
    )
    drawn = random_actions(spec, private_step_arrays(spec, 2000), np.random.default_rng(0), numbers)
    assert (drawn.shape, drawn.dtype) == ((2000, 4), np.float32)
    assert np.isfinite(drawn).all()
    assert ((drawn >= [-2, -inf, -inf, 3]) & (drawn <= [4, inf, -5, inf])).all()
    assert drawn[:, 1].mean() == pytest.approx(0, abs=0.1)
    assert drawn[:, 1].std() == pytest.approx(1, abs=0.1)
    assert (np.abs(drawn[:, 2:].mean(0) - [-5, 3]) < 1.1).all(), "near the bound that there is"
    assert (drawn[:, 2:].std(0) > 0.3).all()


def test_a_mask_is_of_the_discrete_part():
    leaves = obs_leaves(spaces.Dict({"action_mask": spaces.MultiBinary(5), "x": spaces.Box(0, 1, (1,))}), "x")
    assert with_mask(leaves, ActionSpec((3, 2), (-1.0,), (1.0,)), "x", in_info=False) == leaves
    with pytest.raises(EnvSetupError, match="continuous"):
        with_mask(leaves, ActionSpec((), (-1.0,), (1.0,)), "x", in_info=False)


def test_a_tuple_of_observations_is_named_by_place():
    space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Dict({"b": spaces.Tuple([spaces.Discrete(3)])})])
    leaves = {leaf.name: leaf for leaf in obs_leaves(space, "x")}
    assert {name: leaf.spec for name, leaf in leaves.items()} == {
        "0": ArraySpec((2,), "float32"),
        "1.b.0": ArraySpec((3,), "float32"),
    }
    seen = (np.array([0.5, 1], np.float32), {"b": (2,)})
    assert read_leaf(leaves["0"], seen, "x").tolist() == [0.5, 1]
    assert read_leaf(leaves["1.b.0"], seen, "x").tolist() == [0, 0, 1]


def answers(out):
    """Return the optimal actions of toy/hybrid."""
    return np.concatenate([out.obs["0"].argmax(1)[:, None], out.obs["1.number"]], 1).astype(np.float32)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_of_nested_spaces_equals_single_environments(mode):
    make = toy.maker("hybrid?length=4")
    vector = NativeVectorEnv("m:f", SyncVectorEnv([make] * 2, autoreset_mode=mode), 0, lambda _row: (0, {}))
    single = GymVectorEnv("m:f", make, 2, 0, lambda _row: (0, {}))
    assert vector.spec == single.spec
    for vector_env in (vector, single):
        out = private_step_arrays(vector_env.spec, 2)
        vector_env.reset(out)
        paid = []
        for _ in range(4):
            vector_env.step(answers(out), out)
            paid.append(out.reward.copy())
        assert out.episode_done.all()
        np.testing.assert_allclose(paid, 1, atol=1e-6)


def test_discrete_actions_start_at_the_start_of_the_space():
    space = spaces.Discrete(3, start=-1)
    assert action_spec(space, "x").nvec == (3,)
    assert [action_decoder(space)(np.array([a], np.int32)) for a in range(3)] == [-1, 0, 1]
