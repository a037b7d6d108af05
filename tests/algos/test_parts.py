import math

import pytest
import torch

from pbt_rl.algos.parts import Parts, learned_at_once
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


def learned(parts, layout, epochs=2, minibatches=2, **options):
    pack = make_pack([HYPERS], layout=layout, parts=parts, **options)
    rollouts = make_rollouts([0], layout=layout, state_size=pack.state_size)
    learn(pack, batch_of(rollouts, 1), settings(epochs=epochs, minibatches=minibatches))
    return pack


@pytest.mark.parametrize(
    ("policies", "threads", "ranges"),
    [
        (1, 1, ["0"]),
        (3, 1, ["0", "1", "2"]),
        (4, 2, ["01", "23"]),
        (3, 2, ["01", "2"]),
        (2, 6, ["0", "1"]),
        (4, 6, ["0123"]),
        (9, 6, ["012345", "6", "7", "8"]),
    ],
)
def test_policies_that_are_learned_at_once(policies, threads, ranges):
    assert ["".join(map(str, slots)) for slots in learned_at_once(policies, threads)] == ranges


@pytest.mark.parametrize("options", [{}, LSTM])
@pytest.mark.parametrize("layout", [VECTOR, FRAMES])
@pytest.mark.parametrize("number", [2, 3])
def test_parts_learn_as_one(number, layout, options):
    whole, divided = (learned(parts, layout, **options) for parts in (None, Parts(number)))
    found = state_of(divided, 0)
    for name, value in state_of(whole, 0).items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-5, msg=name)
    assert divided.parts.take_seconds() > 0
    assert divided.parts.take_seconds() == 0


@pytest.mark.parametrize("layout", [VECTOR, FRAMES])
def test_gradients_of_parts_in_bf16_are_near_those_of_the_whole(layout):
    once = {"epochs": 1, "minibatches": 1, "dtype": torch.bfloat16}
    packs = [learned(parts, layout, **once) for parts in (None, Parts(3))]
    whole, divided = (state_of(pack, 0)["mean"] for pack in packs)
    assert 0 < (whole - divided).norm() < 0.02 * whole.norm()


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
