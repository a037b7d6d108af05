"""Convolutions as matrix products: the same network by the same parameters."""

from functools import partial

import pytest
import torch

from pbt_rl.algos.encoders import Conv, compute_by_products
from tests.helpers.nets import made_net
from tests.helpers.packs import HYPERS, pack_of

P, T, B, SHAPE = 3, 2, 4, (4, 40, 44)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def computed(encoder, packing, dtype=torch.float32, core="none"):
    """Outputs and gradients of a pack with weights that are not orthogonal any more."""
    torch.manual_seed(0)
    options = {"encoder": encoder, "hidden": 32, "core": core, "core_size": 8}
    net = partial(made_net, {"obs": (SHAPE, "uint8")}, 6, **options)
    pack = pack_of(net, [HYPERS] * P, packing=packing, dtype=dtype)
    pack.state["param"] += 0.02 * torch.randn(pack.state["param"].shape)
    for p in range(P):
        pack.weights.refresh_working(slice(p, p + 1))
    pack.publish(tuple(range(P)))
    pixels = torch.randint(0, 256, (P, T, B, *SHAPE[1:], SHAPE[0]), dtype=torch.uint8).movedim(-1, -3)
    first, state = torch.zeros((P, T, B), dtype=torch.bool), torch.zeros((P, B, pack.state_size))
    outputs, gradients = [], []
    for group in pack.groups():
        params, value, _ = group.forward({"obs": pixels[group.span]}, state[group.span], first[group.span])
        (params.square().sum() + value.square().sum()).backward()
        outputs.append(torch.cat((params.detach(), value.detach().unsqueeze(-1)), -1))
        gradient = pack.weights.collect_gradients(group.span)
        gradients.append(gradient.clone())
        gradient.zero_()  # policies that learn one by one share it
    acted, _, _ = pack.act({"obs": pixels[:, 0]}, state, first[:, 0])
    return torch.cat(outputs), acted, torch.cat(gradients)


def test_packs_of_products_call_no_convolution(monkeypatch):
    def refuse(*_arguments, **_options):
        raise AssertionError("a convolution")

    monkeypatch.setattr(torch, "conv2d", refuse)
    monkeypatch.setattr(torch.nn.functional, "conv2d", refuse)
    computed("nature", "bmm")
    with pytest.raises(AssertionError, match="a convolution"):
        computed("nature", "vmap")


@pytest.mark.parametrize("encoder", ["nature", "impala"])
def test_a_packs_products_are_its_convolutions(encoder):
    products, convolutions = computed(encoder, "bmm"), computed(encoder, "loop")
    for mine, theirs, limit in zip(products, convolutions, (1e-6, 1e-6, 1e-5), strict=True):
        assert distance(mine, theirs) < limit


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_packs_streams_compute_as_its_loop(core):
    for mine, theirs in zip(
        computed("nature", "streams", core=core), computed("nature", "loop", core=core), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_products_in_bf16_and_before_a_recurrent_core():
    options = {"dtype": torch.bfloat16, "core": "gru"}
    products, convolutions = computed("nature", "bmm", **options), computed("nature", "loop", **options)
    for mine, theirs in zip(products, convolutions, strict=True):
        assert distance(mine, theirs) < 0.03


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (2, 1), (3, (2, 1))])
def test_one_convolution_of_any_stride_and_padding(layout, stride, padding):
    torch.manual_seed(0)
    conv = Conv(3, 5, (4, 2), stride, padding)
    image = torch.randn(2, 3, 11, 9)
    if layout == "channels last":
        image = image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    image.requires_grad_()
    (wanted,) = torch.autograd.grad(conv(image).square().sum(), image)
    expected = conv(image)
    compute_by_products(conv)
    assert conv(image).shape == expected.shape
    assert distance(conv(image), expected) < 1e-6
    assert distance(torch.autograd.grad(conv(image).square().sum(), image)[0], wanted) < 1e-5
