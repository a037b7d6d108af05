"""A critic that sees more than the policy."""

import pytest
import torch

from pbt_rl.algos.models import TwinBody
from tests.helpers.nets import made_net

T, B = 3, 4
SHAPES = {"obs": ((5,), "float32"), "sim": ((7,), "float32"), "map": ((3, 40, 40), "uint8")}


def net_of(core="none", seed=0, **options):
    torch.manual_seed(seed)
    return made_net(
        SHAPES, 3, hidden=16, layers=1, core=core, core_size=8, critic_only=("sim", "map"), **options
    )


def observations(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(T, B, 5, generator=generator),
        "sim": torch.randn(T, B, 7, generator=generator),
        "map": torch.randint(0, 256, (T, B, 3, 40, 40), generator=generator, dtype=torch.uint8),
    }


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_actions_do_not_depend_on_it_and_the_value_does(core):
    net = net_of(core)
    assert isinstance(net.body, TwinBody)
    first, state = torch.zeros(T, B, dtype=torch.bool), torch.randn(B, net.state_size)
    obs = observations()
    params, value, after = net(obs, state, first)
    for name in ("sim", "map"):
        other = net({**obs, name: observations(1)[name]}, state, first)
        assert torch.equal(other[0], params)
        assert not torch.equal(other[1], value)
    mine = net.acting_body.state_size
    alone, own_after = net.act({"obs": obs["obs"]}, state[:, :mine], first)
    assert torch.equal(alone, params)
    assert torch.equal(own_after, after[:, :mine])
    params.sum().backward()
    assert all(p.grad is None for p in net.body.critic.parameters())
    assert all(p.grad is not None for p in net.body.policy.parameters())


def test_both_see_what_the_policy_sees():
    net, obs = net_of(), observations()
    first, state = torch.zeros(T, B, dtype=torch.bool), torch.zeros(B, 0)
    params, value, _ = net(obs, state, first)
    other = net({**obs, "obs": observations(1)["obs"]}, state, first)
    assert not torch.equal(other[0], params)
    assert not torch.equal(other[1], value)


def test_policies_together_compute_what_each_does():
    nets = [net_of("gru", seed=seed) for seed in (0, 1)]
    stacked = {
        name: torch.stack([dict(net.named_parameters())[name] for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    given = observations(), torch.randn(B, nets[0].state_size), torch.zeros(T, B, dtype=torch.bool)
    together = torch.func.vmap(lambda p: torch.func.functional_call(nets[0], p, given))(stacked)
    for i, net in enumerate(nets):
        for got, wanted in zip(together, net(*given), strict=True):
            torch.testing.assert_close(got[i], wanted, rtol=1e-4, atol=1e-5)
