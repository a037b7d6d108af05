import numpy as np
import pytest
import torch

from pbt_rl.algos.observations import ObsLayout, push_frames, restack_torch
from pbt_rl.algos.rollout import Rollout, RolloutShape, make_stacks
from tests.helpers.packs import (
    CPU,
    DISCRETE,
    ENVS,
    FRAMES,
    VECTOR,
    T,
    batch_of,
    learn,
    make_pack,
    make_rollouts,
    settings,
)
from tests.helpers.packs import HYPERS as H

R, HEIGHT, WIDTH = 5, 4, 6


def frames(steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Frames [steps, R, H, W] and first [steps, R] with episodes that begin anywhere, but all at step 0."""
    rng = np.random.default_rng(seed)
    first = rng.random((steps, R)) < 0.2
    first[0] = True
    return rng.integers(1, 256, (steps, R, HEIGHT, WIDTH), dtype=np.uint8), first


def reference_stacks(frame: np.ndarray, first: np.ndarray, stack: int) -> np.ndarray:
    """[steps, R, stack, H, W]: oldest frame first; copies of an episode's first frame from before it."""
    out = np.zeros((len(frame), R, stack, HEIGHT, WIDTH), np.uint8)
    for t in range(len(frame)):
        for r in range(R):
            begin = max(s for s in range(t + 1) if first[s, r])
            for age in range(stack):
                out[t, r, stack - 1 - age] = frame[max(t - age, begin), r]
    return out


@pytest.mark.parametrize("stack", [2, 3, 4])
def test_stacks_are_those_of_a_slow_loop(stack):
    layout = ObsLayout("uint8", (HEIGHT, WIDTH), stack)
    frame, first = frames(20)
    obs = torch.full((20, R, HEIGHT, WIDTH), 0x5A5A5A5A, dtype=torch.int32)
    for t in range(20):
        obs[t] = obs[t - 1]
        push_frames(obs[t], torch.from_numpy(frame[t]), first[t])
    seen = layout.as_seen(obs)
    assert (seen.shape, seen.dtype) == ((20, R, stack, HEIGHT, WIDTH), torch.uint8)
    np.testing.assert_array_equal(seen.numpy(), reference_stacks(frame, first, stack))


def written(layout: ObsLayout, seed: int = 2) -> tuple[list[Rollout], np.ndarray, np.ndarray]:
    """Two rollouts that follow each other; the stacks that acting saw [2T+1, R, stack, H, W] and slow ones."""
    frame, first = frames(2 * T + 1, seed)
    one, two = (Rollout(RolloutShape({"obs": layout}, T, R, 1, (1, torch.int32), 0, CPU)) for _ in range(2))
    stacks = make_stacks(one.layouts, R, CPU)
    acted = []
    for t in range(2 * T + 1):
        if t == T + 1:
            two.follow(one, stacks)
        rollout, step = (one, t) if t <= T else (two, t - T)
        rollout.write_obs(step, {"obs": frame[t]}, first[t], stacks)
        acted.append(layout.as_seen(stacks["obs"]).numpy().copy())
    np.testing.assert_array_equal(two.first, first[T:])
    return [one, two], np.stack(acted), reference_stacks(frame, first, layout.stack)


@pytest.mark.parametrize("stack", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_acting_and_learning_see_the_stacks_of_a_slow_loop(stack, seed):
    layout = ObsLayout("uint8", (HEIGHT, WIDTH), stack)
    rollouts, acted, slow = written(layout, seed)
    np.testing.assert_array_equal(acted, slow)
    for number, rollout in enumerate(rollouts):
        learned = layout.as_seen(batch_of([rollout], 1).obs(slice(0, 1))["obs"])[0]
        np.testing.assert_array_equal(learned.numpy(), slow[number * T : (number + 1) * T])


@pytest.mark.parametrize("seed", range(4))
def test_stacks_are_built_on_a_device_as_by_the_kernel(seed):
    layout = ObsLayout("uint8", (HEIGHT, WIDTH), 4)
    for rollout in written(layout, seed)[0]:
        out = torch.empty(T, 1, R, HEIGHT, WIDTH, dtype=torch.int32)
        restack_torch(out, rollout.obs["obs"].unsqueeze(1), torch.from_numpy(rollout.first[:T]).unsqueeze(1))
        by_kernel = batch_of([rollout], 1).obs(slice(0, 1))["obs"][0]
        assert torch.equal(out[:, 0], by_kernel)


@pytest.mark.parametrize("layout", [FRAMES, VECTOR, ObsLayout("uint8", (2, 3), 3), ObsLayout("float32", ())])
def test_as_seen_is_a_view_of_the_declared_shape(layout):
    stored = torch.zeros((3, 5, *layout.stored[1]), dtype=layout.stored[0])
    seen = layout.as_seen(stored)
    assert seen.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
    assert tuple(seen.shape[2:]) == layout.seen[0]
    assert seen.dtype == getattr(torch, layout.seen[1])


def test_as_seen_is_a_channels_last_image():
    seen = FRAMES.as_seen(torch.zeros((3, *FRAMES.shape), dtype=torch.int32))
    assert seen.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [FRAMES, VECTOR])
def test_a_batch_places_rows_of_the_right_policy_and_vector_env(layout):
    policies = 3
    rollouts = make_rollouts(list(range(policies)), layout=layout)
    batch = batch_of(rollouts, policies)
    alone = [batch_of([rollout], policies).obs(slice(0, policies))["obs"] for rollout in rollouts]
    for k, rollout in enumerate(rollouts):
        if layout is VECTOR:
            assert torch.equal(alone[k].transpose(0, 1).flatten(1, 2), rollout.obs["obs"][:T])
    for rows in (slice(0, 3), slice(1, 2), slice(1, 3)):
        seen = layout.as_seen(batch.obs(rows)["obs"])
        for g, p in enumerate(range(policies)[rows]):
            for k in range(len(rollouts)):
                for b in range(ENVS):
                    expected = layout.as_seen(alone[k][p, :, b])
                    assert torch.equal(seen[g, :, k * ENVS + b], expected)


def test_all_arrays_of_a_batch_are_placed_alike():
    policies = 2
    usable = np.array([[True, False], [True, True]])
    rollouts = make_rollouts([0, 1], distribution=DISCRETE, state_size=5)
    batch = batch_of(rollouts, policies, usable)
    for p in range(policies):
        for k, r in enumerate(rollouts):
            for b in range(ENVS):
                row, column = p * ENVS + b, k * ENVS + b
                assert torch.equal(batch.action[p, :, column], r.action[:, row])
                assert torch.equal(batch.log_prob[p, :, column], r.log_prob[:, row])
                assert torch.equal(batch.value[p, :, column], r.value[:, row])
                assert torch.equal(batch.state[p, column], r.state[row])
                for name in ("reward", "terminated", "truncated"):
                    got = getattr(batch, name)[p, :, column].numpy()
                    np.testing.assert_array_equal(got, getattr(r, name)[:, row])
                np.testing.assert_array_equal(batch.first[p, :, column].numpy(), r.first[:, row])
                valid = ~r.first[1:, row] & usable[p, k]
                np.testing.assert_array_equal(batch.valid[p, :, column].numpy(), valid)


def test_fresh_buffers_are_poisoned():
    layouts = {"obs": VECTOR, "screen": FRAMES}
    rollout = Rollout(RolloutShape(layouts, T, R, 1, (1, torch.int32), 2, CPU))
    for array in (rollout.log_prob, rollout.value, rollout.state, rollout.obs["obs"]):
        assert array.isnan().all()
    assert np.isnan(rollout.reward).all()
    assert (rollout.action < 0).all()
    assert (rollout.obs["screen"] == 0xA5).all()
    assert (rollout.weights_version == -1).all()
    assert (rollout.lineage_version == -1).all()


@pytest.mark.parametrize("name", ["reward", "log_prob", "value", "obs"])
def test_one_unwritten_step_shows(name):
    rollouts = make_rollouts([0])
    fresh = Rollout(RolloutShape({"obs": VECTOR}, T, ENVS, 1, (1, torch.int32), 0, CPU))
    target, poison = (r.obs["obs"] if name == "obs" else getattr(r, name) for r in (rollouts[0], fresh))
    target[5, 2] = poison[5, 2]
    stats = learn(make_pack([H]), batch_of(rollouts, 1), settings())
    assert not any(torch.isfinite(s.values["policy_loss"]).any() for s in stats)
