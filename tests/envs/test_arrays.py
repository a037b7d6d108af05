"""Conversion of observations to arrays."""

import re

import numpy as np
import pytest
from gymnasium import spaces

from pbt_rl.algos.encoders import ObsEncoder
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.envs.gym import recipe
from pbt_rl.envs.spaces import obs_leaves, read_leaf, read_rows
from pbt_rl.errors import EnvSetupError

LARGE = (64, 48)


def box(low, high, shape, dtype):
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (box(0, 255, (84, 84), np.uint8), (1, 84, 84)),
        (box(0, 255, (4, 64, 48, 3), np.uint8), (12, 64, 48)),
        (box(0, 255, (2, 4, 64, 48, 3), np.uint8), (24, 64, 48)),
        (box(0, 1, (*LARGE, 3), np.float32), (3, *LARGE)),
        (box(0, 255, (*LARGE, 3), np.int64), (3, *LARGE)),
        (spaces.MultiBinary((*LARGE, 2)), (2, *LARGE)),
    ],
    ids=str,
)
def test_these_are_pictures_with_all_other_axes_as_channels(space, shape):
    (leaf,) = obs_leaves(space, "x")
    assert leaf.spec == ArraySpec(shape, "uint8")
    seen = read_leaf(leaf, space.sample(), "x")
    assert (seen.shape, seen.dtype) == (shape, np.uint8)
    rows = read_rows(leaf, np.stack([space.sample(), space.sample()]), 2, "x")
    assert (rows.shape, rows.dtype) == ((2, *shape), np.uint8)


@pytest.mark.parametrize(
    "space",
    [box(0, 1, (10, 10, 4), bool), box(-np.inf, np.inf, (40, 40), np.float32), box(0, 9, (2, 3), np.int64)],
    ids=str,
)
def test_these_are_numbers_as_they_are(space):
    (leaf,) = obs_leaves(space, "x")
    assert leaf.spec == ArraySpec(space.shape, "float32")
    sample = space.sample()
    assert np.array_equal(read_leaf(leaf, sample, "x"), sample.astype(np.float32))


@pytest.mark.parametrize(
    ("low", "high", "dtype", "given", "seen"),
    [
        (0, 1, np.float32, [0.0, 0.5, 1.0], [0, 128, 255]),
        (-1, 1, np.float32, [-1.0, 0.0, 1.0], [0, 128, 255]),
        (0, 255, np.float32, [0.0, 7.4, 255.0], [0, 7, 255]),
        (0, 4, np.int32, [0, 1, 4], [0, 64, 255]),
    ],
)
def test_levels_of_a_picture_are_stretched_to_its_bounds(low, high, dtype, given, seen):
    (leaf,) = obs_leaves(box(low, high, (40, 40, 3), dtype), "x")
    picture = np.zeros((40, 40, 3), dtype)
    picture[0, 0] = given
    assert read_leaf(leaf, picture, "x")[:, 0, 0].tolist() == seen


@pytest.mark.parametrize(("last", "shape"), [(True, (40, 40, 4)), (False, (4, 40, 40))])
def test_each_channel_of_a_picture_may_have_its_bounds(last, shape):
    def each(numbers):
        return np.broadcast_to(np.array(numbers) if last else np.reshape(numbers, (4, 1, 1)), shape)

    space = spaces.Box(each([0, 0, 0, -2]), each([1, 1, 1, 8]), dtype=np.float32)
    (leaf,) = obs_leaves(space, "x")
    assert leaf.spec.shape == (4, 40, 40)
    assert re.search(r"\(0, 0, 0, -2\) .*\(1, 1, 1, 8\), .*0\.\.255", leaf.spec.given)
    picture = np.array(each([0.0, 0.5, 1.0, 3.0]))
    assert read_leaf(leaf, picture, "x")[:, 3, 5].tolist() == [0, 128, 255, 128]
    assert read_rows(leaf, np.stack([picture] * 2), 2, "x")[1, :, 0, 0].tolist() == [0, 128, 255, 128]
    uneven = np.array(space.high)
    uneven[0, 0, 0] = 2
    (leaf,) = obs_leaves(spaces.Box(space.low, uneven, dtype=np.float32), "x")
    assert leaf.spec == ArraySpec(shape, "float32")


def test_bytes_and_large_whole_numbers_are_divided_by_their_bound():
    (leaf,) = obs_leaves(box(0, 255, (128,), np.uint8), "x")
    assert read_leaf(leaf, np.full(128, 51, np.uint8), "x") == pytest.approx(0.2)
    (leaf,) = obs_leaves(box(0, 10, (3,), np.int64), "x")
    assert read_leaf(leaf, np.array([0, 3, 10]), "x").tolist() == [0, 3, 10]
    (leaf,) = obs_leaves(box(0, 2**62, (1,), np.int64), "x")
    assert read_leaf(leaf, np.array([7]), "x").tolist() == [7]


def test_several_choices_are_one_hot_parts_side_by_side():
    space = spaces.MultiDiscrete([2, 3], start=[0, 1])
    (leaf,) = obs_leaves(space, "x")
    assert leaf.spec == ArraySpec((5,), "float32")
    assert read_leaf(leaf, np.array([1, 1]), "x").tolist() == [0, 1, 1, 0, 0]
    assert read_rows(leaf, np.array([[0, 2], [1, 3]]), 2, "x").tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    with pytest.raises(EnvSetupError, match=r"0\.\.1, 1\.\.3, got 4"):
        read_leaf(leaf, np.array([0, 4]), "x")


def test_a_text_is_hashed_words_the_same_in_rows():
    (leaf,) = obs_leaves(spaces.Text(40), "x")
    seen = read_leaf(leaf, "go to the red ball", "x")
    assert (seen.shape, seen.dtype) == ((20,), np.int32)
    assert np.count_nonzero(seen) == 5
    rows = read_rows(leaf, np.array(["go", "go to the red ball"]), 2, "x")
    assert np.array_equal(rows[1], seen)
    assert rows[0][-1] == seen[-5]
    with pytest.raises(EnvSetupError, match="a text"):
        read_leaf(leaf, 3, "x")


def of(space):
    return EnvSpec("m:f", {leaf.name: leaf.spec for leaf in obs_leaves(space, "m:f")}, ActionSpec((2,)))


def test_the_recipe_reads_grids_by_an_mlp_that_normalises_and_asks_for_bounds_of_pictures():
    grid = recipe(of(box(0, 255, (7, 7, 3), np.uint8)))
    assert (grid["model.encoder"], grid["learner.normalize_observations"]) == ("mlp", True)
    assert not grid["learner.normalize_advantage"], (
        "before the first reward it is noise that narrows the policy"
    )
    assert recipe(of(box(0, 1, (*LARGE, 3), np.float32)))["model.encoder"] == "auto"
    planes, short = (recipe(of(box(0, 1, shape, np.bool_))) for shape in ((10, 10, 4), (10,)))
    assert planes["learner.batch"] > short["learner.batch"]
    assert recipe(of(spaces.MultiBinary((10, 10, 4)))) == planes
    numbers = recipe(of(box(0, 1, (7, 7, 3), np.float32)))
    assert numbers == short, "batches of 8192 steps are for games of millions of frames"
    unbounded = of(box(-np.inf, np.inf, (*LARGE, 3), np.float32))
    assert "model.encoder" not in recipe(unbounded)
    shapes = {name: (spec.shape, spec.dtype) for name, spec in unbounded.obs.items()}
    with pytest.raises(ValueError, match="pixel bounds"):
        ObsEncoder(shapes, "auto", (8,))
    ObsEncoder(shapes, "mlp", (8,))


def test_frames_of_a_stack_lie_in_their_order_with_their_colours():
    (leaf,) = obs_leaves(box(0, 255, (4, 64, 48, 3), np.uint8), "x")
    stack = np.random.default_rng(0).integers(0, 256, (4, 64, 48, 3), np.uint8)
    seen = read_leaf(leaf, stack, "x")
    for frame in range(4):
        for colour in range(3):
            assert np.array_equal(seen[3 * frame + colour], stack[frame, :, :, colour])
