import math

import pytest
import torch

from pbt_rl.algos.parts import Parts
from tests.helpers.packs import (
    FRAMES,
    HYPERS,
    VECTOR,
    batch_of,
    learn,
    make_pack,
    make_rollouts,
    settings,
    state_of,
)

LSTM = {"core": "lstm"}


def learned(parts, layout, **options):
    pack = make_pack([HYPERS] * 2, layout=layout, parts=parts, **options)
    rollouts = make_rollouts([0, 1], layout=layout, state_size=pack.state_size)
    learn(pack, batch_of(rollouts, 2), settings(minibatches=2))
    return pack


@pytest.mark.parametrize("core", [{}, LSTM])
@pytest.mark.parametrize("layout", [VECTOR, FRAMES])
@pytest.mark.parametrize("number", [2, 3])
def test_parts_learn_as_one(number, layout, core):
    whole, divided = (learned(parts, layout, **core) for parts in (None, Parts(number)))
    for policy in range(2):
        expected, found = state_of(whole, policy), state_of(divided, policy)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-5, msg=name)
    assert divided.parts.take_seconds() > 0
    assert divided.parts.take_seconds() == 0


def test_fewer_rows_than_parts_are_computed_at_once():
    threads = []

    def compute(obs, state, first):
        threads.append(state.shape[1])
        return obs["obs"], first, state

    rows = 2
    obs, state, first = torch.zeros(1, 1, rows, 3), torch.zeros(1, rows, 0), torch.zeros(1, 1, rows)
    assert Parts(3).forward(compute, {"obs": obs}, state, first) == (obs, first, state)
    assert threads == [rows]


@pytest.mark.parametrize("gradients", [True, False])
def test_outputs_keep_their_order_and_gradients(gradients):
    weight = torch.tensor(2.0, requires_grad=True)
    x = torch.arange(5.0).view(1, 1, 5)

    def compute(obs, state, of_steps):
        assert torch.is_grad_enabled() is gradients
        return obs["obs"].unsqueeze(-1) * weight, of_steps * weight, state

    with torch.set_grad_enabled(gradients):
        params, value, state = Parts(2).forward(compute, {"obs": x}, x[0, 0].view(1, 5, 1), x)
    assert torch.equal(params, 2 * x.unsqueeze(-1))
    assert torch.equal(value, 2 * x)
    assert torch.equal(state.flatten(), x.flatten())
    assert params.requires_grad is value.requires_grad is gradients
    assert not state.requires_grad
    if gradients:
        (params.sum() + 3 * value.sum()).backward()
        assert weight.grad.item() == 40


def test_an_error_of_a_part_is_raised():
    def compute(obs, state, first):
        if math.isclose(first[0, 0, 0].item(), 3):
            raise ValueError("part with row 3")
        return obs["obs"], first, state

    rows = torch.arange(4.0).view(1, 1, 4)
    with pytest.raises(ValueError, match="row 3"):
        Parts(4).forward(compute, {"obs": rows.unsqueeze(-1)}, torch.zeros(1, 4, 0), rows)
