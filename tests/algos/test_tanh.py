"""tanh of an MLP on a CPU, by the logistic function: values, derivatives, under vmap, and what is exported."""

import pytest
import torch

from pbt_rl.algos import encoders
from pbt_rl.algos.encoders import Mlp, tanh

RANGE = torch.linspace(-20, 20, 100_001)


@pytest.fixture(autouse=True, params=[True, False])
def slow(request, monkeypatch):
    monkeypatch.setattr(encoders, "_SLOW_TANH", request.param)


@pytest.mark.parametrize("grad", [False, True])
def test_it_is_tanh(grad):
    with torch.set_grad_enabled(grad):
        found = tanh(RANGE)
    assert (found.double() - torch.tanh(RANGE.double())).abs().max() < 2e-7
    assert found.abs().max() <= 1
    assert tanh(torch.tensor([torch.inf, -torch.inf])).tolist() == [1, -1]
    assert torch.isnan(tanh(torch.tensor([torch.nan]))).all()


@pytest.mark.parametrize("together", [False, True])
def test_its_derivative_is_that_of_tanh(together):
    x = RANGE[:-1].view(4, -1).clone().requires_grad_()
    y = torch.func.vmap(tanh)(x) if together else tanh(x)
    up = torch.linspace(1, 2, x.numel()).view_as(x)
    (slope,) = torch.autograd.grad(y, x, up)
    wanted = up * (1 - torch.tanh(x.detach().double()).square())
    assert (slope - wanted).abs().max() < 1e-6


def test_other_numbers_and_exports_have_torchs():
    half = RANGE[::1000].bfloat16()
    assert torch.equal(tanh(half), torch.tanh(half))
    net, x = Mlp(3, (8, 8)).eval(), torch.zeros(2, 3)
    with torch.no_grad():
        called = [str(node.target) for node in torch.export.export(net, (x,)).graph.nodes]
    assert called.count("aten.tanh.default") == 2
    assert not any("sigmoid" in name for name in called)
