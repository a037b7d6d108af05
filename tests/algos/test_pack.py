import sys
import threading
from math import prod

import numpy as np
import pytest
import torch
from torch import nn

from pbt_rl.algos.normalizers import PIXEL_VARIANCE_EPSILON, RETURN_STATS_RATE, Normalizers
from tests.helpers.packs import (
    DISCRETE,
    ENVS,
    FRAMES,
    GAUSSIAN,
    MULTI_DISCRETE,
    VECTOR,
    batch_of,
    learn,
    make_pack,
    make_rollouts,
    same_bits,
    settings,
    state_of,
)
from tests.helpers.packs import HYPERS as H

LSTM = {"core": "lstm"}
THREE = [H, H | {"learning_rate": 1e-3, "gamma": 0.9}, H | {"clip_ratio": 0.3, "max_grad_norm": 5.0}]


def trained(hypers=THREE, *, seed=0, state_size=0, **options):
    """A pack with something in all of its state."""
    pack = make_pack(hypers, seed=seed, **options)
    rollouts = make_rollouts(list(range(len(hypers))), seed=seed, state_size=pack.state_size)
    learn(pack, batch_of(rollouts, len(hypers)), settings(lr_schedule_kl=1e-9))
    pack.publish(tuple(range(len(hypers))))
    return pack


def acted(pack, seed=0):
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(1, 4, 4, generator=g).repeat(pack.num_policies, 1, 1)
    state = torch.zeros(pack.num_policies, 4, pack.state_size)
    return pack.act({"obs": obs}, state, torch.zeros(pack.num_policies, 4, dtype=torch.bool))


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copy_makes_the_target_the_donor_and_leaves_the_donor_alone(packing, dtype):
    pack = trained(packing=packing, dtype=dtype, normalize_obs=True, **LSTM)
    donor, other = state_of(pack, 0), state_of(pack, 1)
    assert not same_bits(donor, state_of(pack, 2))
    assert all((x != 0).any() for x in donor.values()), "every part of the state is in use"
    pack.copy_member(0, 2)
    assert same_bits(state_of(pack, 2), donor)
    assert same_bits(state_of(pack, 0), donor)
    assert same_bits(state_of(pack, 1), other)
    for of_0, of_1, of_2 in acted(pack)[:2]:
        assert torch.equal(of_2, of_0)
        assert not torch.equal(of_1, of_0)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_copy_goes_on_exactly_like_its_donor(packing):
    # With the donor's hypers and data too: so nothing that matters was left behind.
    pack = trained([H] * 3, packing=packing, normalize_obs=True)
    pack.copy_member(0, 2)
    rollouts = make_rollouts([0, 1, 0], seed=5)
    learn(pack, batch_of(rollouts, 3), settings())
    assert same_bits(state_of(pack, 0), state_of(pack, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_member_moves_between_packs_bit_for_bit(dtype):
    source = trained(dtype=dtype, normalize_obs=True)
    target = trained([H, H], dtype=dtype, seed=7, normalize_obs=True)
    other, donor = state_of(target, 0), state_of(source, 2)
    target.import_member(1, source.export_member(2))
    assert same_bits(state_of(target, 1), donor)
    assert same_bits(state_of(source, 2), donor)
    assert same_bits(state_of(target, 0), other)
    torch.testing.assert_close(acted(target)[0][1], acted(source)[0][2])


def test_an_exported_state_is_a_copy():
    pack = trained()
    state = pack.export_member(0)
    kept = {name: x.clone() for name, x in state.items()}
    learn(pack, batch_of(make_rollouts([0, 1, 2], seed=3), 3), settings())
    assert same_bits(state, kept)


def test_fresh_member_has_new_weights_and_nothing_else():
    pack = trained(normalize_obs=True)
    blank = state_of(make_pack(THREE, normalize_obs=True), 0)
    before = [state_of(pack, p) for p in range(3)]
    pack.set_fresh(1)
    after = state_of(pack, 1)
    assert not torch.equal(after["param"], before[1]["param"])
    assert not torch.equal(after["param"], blank["param"])
    assert same_bits(after | {"param": blank["param"]}, blank)
    assert same_bits(state_of(pack, 0), before[0])
    assert same_bits(state_of(pack, 2), before[2])


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learning_reaches_acting_only_when_published(packing, dtype):
    pack = make_pack(THREE, packing=packing, dtype=dtype)
    params, value, _ = acted(pack)
    learn(pack, batch_of(make_rollouts([0, 1, 2]), 3), settings())
    assert torch.equal(acted(pack)[0], params)
    assert torch.equal(acted(pack)[1], value)
    pack.publish((0, 2))
    now = acted(pack)[0]
    assert [torch.equal(now[p], params[p]) for p in range(3)] == [False, True, False]


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_bf16_weights_follow_their_float32_masters(packing):
    pack = trained(packing=packing, dtype=torch.bfloat16)
    masters = pack.state["param"][:, : pack.weights.layout.body_size]
    assert masters.dtype == torch.float32
    assert pack.weights.working.dtype == torch.bfloat16
    assert torch.equal(pack.weights.working, masters.bfloat16())
    assert torch.equal(pack.weights.serving, masters.bfloat16())
    assert not torch.equal(masters.bfloat16().float(), masters), "masters keep what bf16 cannot hold"


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_gradients_begin_at_zero_at_every_step(packing):
    for dtype in (torch.float32, torch.bfloat16):
        pack = trained(packing=packing, dtype=dtype)
        assert not pack.weights.grad.any()
        assert not pack.weights.working_grad.any()


@pytest.mark.parametrize("layout", [VECTOR, FRAMES])
@pytest.mark.parametrize("distribution", [DISCRETE, MULTI_DISCRETE, GAUSSIAN])
def test_weights_are_named_as_the_network_names_them(layout, distribution):
    pack = make_pack(THREE, layout=layout, distribution=distribution)
    named = pack.named_weights(1)
    net = pack._make_net()
    net.load_state_dict(named)
    rollouts = make_rollouts([0], layout=layout, distribution=distribution, k=1)
    obs = batch_of(rollouts, 1).obs(slice(0, 1))["obs"][0, :1]
    with torch.no_grad():
        params, value, _ = net({"obs": layout.as_seen(obs)}, torch.zeros(ENVS, 0), torch.ones(1, ENVS).bool())
        stored = obs.repeat(3, *(1,) * (obs.dim() - 1))
        served = pack.act(
            {"obs": layout.as_seen(stored)}, torch.zeros(3, ENVS, 0), torch.ones(3, ENVS).bool()
        )
    torch.testing.assert_close(served[0][1], params[0])
    torch.testing.assert_close(served[1][1], value[0])


def test_set_hypers_writes_into_the_tensors_in_use():
    pack = make_pack([H, H])
    tensors = {name: column.data_ptr() for name, column in pack.hypers.items()}
    pack.set_hypers(1, {name: value / 2 for name, value in H.items()})
    for name, column in pack.hypers.items():
        assert column.data_ptr() == tensors[name]
        torch.testing.assert_close(column, torch.tensor([H[name], H[name] / 2]))


def made_up(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_return_statistics_are_running_means_of_valid_steps_per_policy():
    pack = make_pack(THREE)
    square = np.ones(3)
    for step in range(300):
        target = made_up(step, 3, 8, 6) * 4 + torch.tensor([0.0, 5.0, -7.0])[:, None, None]
        valid = made_up(1000 + step, 3, 8, 6) > -0.5
        valid[1] &= step % 2 == 0
        pack.observe_returns(slice(0, 3), torch.where(valid, target, torch.nan), valid)
        for p in range(3):
            if valid[p].any():
                seen = target[p][valid[p]].double().numpy()
                square[p] += RETURN_STATS_RATE * ((seen**2).mean() - square[p])
    np.testing.assert_allclose(pack.state["return_square"].numpy(), square, rtol=1e-4)

    values = made_up(5, 3, 2, 2)
    scale = np.sqrt(square)
    np.testing.assert_allclose(pack.return_scale(slice(0, 3)).numpy(), scale, rtol=1e-3)
    normalized = pack.normalize_value(values, slice(0, 3))
    np.testing.assert_allclose(normalized.numpy(), values.numpy() / scale[:, None, None], rtol=1e-3)
    torch.testing.assert_close(pack.denormalize_value(normalized, slice(0, 3)), values)
    torch.testing.assert_close(pack.normalize_value(values[1:2], slice(1, 2)), normalized[1:2])


def test_returns_that_are_not_finite_do_not_destroy_the_statistics():
    pack = make_pack([H, H])
    target, valid = made_up(0, 2, 8, 6), torch.ones(2, 8, 6, dtype=torch.bool)
    target[0, 3, 3] = torch.inf
    before = state_of(pack, 0)
    pack.observe_returns(slice(0, 2), target, valid)
    assert same_bits(state_of(pack, 0), before)
    assert pack.state["return_square"][1] != before["return_square"]


def test_observations_are_normalised_and_clipped_by_each_policys_own_statistics():
    pack = make_pack([H, H], normalize_obs=True)
    pack.state["obs_mean.obs"][1] = 10.0
    pack.state["obs_var.obs"][1] = 4.0
    obs = {"obs": torch.tensor([8.0, 10.0, 14.0, 1e9]).expand(2, 1, 1, 4)}
    out = pack._normalizers.normalize_obs(pack.state, slice(0, 2), obs)["obs"]
    torch.testing.assert_close(out[1, 0, 0], torch.tensor([-1.0, 0.0, 2.0, 5.0]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0, 0, 0], torch.tensor([5.0, 5.0, 5.0, 5.0]))


IMAGE = (4, 36, 36)


def of_images(dtype=torch.float32, policies=2):
    """Normalisers of one image, with statistics of each policy's own."""
    normalizers = Normalizers({"screen": prod(IMAGE)}, returns=False, pixels=dtype)
    stats = normalizers.empty(
        lambda *shape, dtype=torch.float32: torch.zeros((policies, *shape), dtype=dtype)
    )
    return normalizers, stats


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_are_normalised_by_each_policys_own_statistics(dtype):
    normalizers, stats = of_images(dtype)
    g = torch.Generator().manual_seed(0)
    stats["obs_mean.screen"].uniform_(0.2, 0.8, generator=g)
    stats["obs_var.screen"].uniform_(0.0, 0.1, generator=g)
    stored = torch.randint(0, 256, (2, 3, 5, 36, 36, 4), dtype=torch.uint8, generator=g)
    image = stored.movedim(-1, -3)  # C innermost, as stacks are
    out = normalizers.normalize_obs(stats, slice(0, 2), {"screen": image})["screen"]
    assert out.dtype == dtype
    mean, var = (stats[f"obs_{part}.screen"].view(2, 1, 1, *IMAGE) for part in ("mean", "var"))
    expected = ((image / 255 - mean) / (var + PIXEL_VARIANCE_EPSILON).sqrt()).clamp(-5, 5)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.15}[dtype]
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=tolerance)
    for other in (image, image.contiguous()):  # single frames lie with C outermost
        alone = normalizers.normalize_obs(stats, slice(1, 2), {"screen": other[1:]})["screen"]
        assert torch.equal(alone, out[1:])


def test_statistics_of_images_are_those_of_some_valid_ones_per_policy():
    """Of 128 steps of 8 rows every 61st image; a batch without a valid one among them changes nothing."""
    normalizers, stats = of_images()
    g = torch.Generator().manual_seed(0)
    seen = []
    for valid in (torch.rand(2, 128, 8, generator=g) < 0.5, torch.zeros(2, 128, 8, dtype=torch.bool)) * 2:
        images = torch.randint(0, 256, (2, 128, 8, *IMAGE), dtype=torch.uint8, generator=g)
        normalizers.observe_obs(stats, slice(0, 2), {"screen": images}, valid)
        some = [(images[p].flatten(0, 1)[::61], valid[p].flatten()[::61]) for p in range(2)]
        seen.append([(image[counts] / 255).flatten(1).double() for image, counts in some])
    for p in range(2):
        numbers = torch.cat([of_batch[p] for of_batch in seen])
        assert float(stats["obs_count.screen"][p]) == len(numbers) > 4
        torch.testing.assert_close(stats["obs_mean.screen"][p], numbers.mean(0).float())
        torch.testing.assert_close(stats["obs_var.screen"][p], numbers.var(0, correction=0).float())


class Folded(nn.Module):
    """A network's policy head twice in a row by one weight, in two modules."""

    def __init__(self, net):
        super().__init__()
        width = net.heads.policy.in_features
        first, second = nn.Linear(width, width), nn.Linear(width, width)
        second.weight = first.weight
        net.heads.policy = nn.Sequential(first, second, net.heads.policy)
        self.net = net


def test_weights_that_two_modules_share_stay_shared_in_each_policy():
    packs = [trained(packing=p, network=lambda net: Folded(net).net) for p in ("loop", "vmap")]
    loop, vmap = (acted(pack) for pack in packs)
    for alone, together in zip(loop, vmap, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(
        loop[0][0], loop[0][1], atol=1e-3
    )  # policies differ, so that a mixture would show


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_acting_does_not_disturb_learning_in_another_thread(packing):
    batch = batch_of(make_rollouts([0, 1, 2], seed=1), 3)
    alone, disturbed = make_pack(THREE, packing=packing), make_pack(THREE, packing=packing)
    learn(alone, batch, settings(epochs=20))

    done = threading.Event()
    acting = threading.Thread(target=lambda: [acted(disturbed) for _ in iter(done.is_set, True)])
    acting.start()
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        learn(disturbed, batch, settings(epochs=20))
    finally:
        sys.setswitchinterval(switch_seconds)
        done.set()
        acting.join()
    assert all(same_bits(state_of(disturbed, p), state_of(alone, p)) for p in range(3))
