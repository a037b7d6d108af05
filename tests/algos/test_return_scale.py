"""The size of returns: what it is learned from, and that a change of it changes no value."""

import pytest
import torch

from pbt_rl.algos.batch import Samples
from tests.helpers.packs import HYPERS as H
from tests.helpers.packs import T, batch_of, learn, make_pack, make_rollouts, same_bits, settings, state_of

NETWORKS = {
    "plain": {},
    "separate critic": {"core": "gru", "model": {"critic": "separate"}},
}


def values_of(pack):
    rollouts = make_rollouts(range(pack.num_policies), state_size=pack.state_size)
    samples = batch_of(rollouts, pack.num_policies)
    values = []
    for group in pack.groups():
        s = Samples.of(samples, group.span)
        value = group.forward(s.obs, s.state, s.first)[1].detach()
        values.append(pack.denormalize_value(value, group.span))
    return torch.cat(values)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_value_changes_with_the_size_of_returns(network, packing):
    pack = make_pack([H, H, H], packing=packing, **NETWORKS[network])
    before, start = values_of(pack), [state_of(pack, p) for p in range(3)]
    target = torch.tensor([100.0, 1e-3, 7.0])[:, None, None].expand(3, T, 4)
    valid = torch.ones(3, T, 4, dtype=torch.bool)
    valid[2] = False
    for _ in range(100):
        pack.observe_returns(slice(0, 3), target.repeat(1, 1, 32), valid.repeat(1, 1, 32), 1, 1)
    assert pack.return_scale(slice(0, 3)).tolist() == pytest.approx([100.0, 0.01, 1.0], rel=0.01)
    torch.testing.assert_close(values_of(pack), before, rtol=1e-5, atol=1e-6)
    assert same_bits(state_of(pack, 2), start[2]), "who has no samples is left as it is"


def test_the_memory_of_returns_is_of_batches_not_of_steps():
    """A hundred times the reward: after as many batches the scale is the same, however often each is learned from."""
    scales = []
    for changes in ({"epochs": 1}, {"epochs": 4, "minibatches": 2}):
        pack = make_pack([H | {"learning_rate": 0.0}])
        for seed in range(6):
            rollouts = make_rollouts([0], seed=seed)
            for rollout in rollouts:
                rollout.reward[:] *= 100
            learn(pack, batch_of(rollouts, 1), settings(**changes))
        scales.append(pack.return_scale(slice(0, 1)).item())
    assert scales[0] == pytest.approx(scales[1], rel=0.05)
    assert scales[0] > 5


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize(
    "changes", [{}, {"use_vtrace": True, "minibatches": 2}, {"algo": "a3c", "epochs": 1}]
)
def test_a_batch_of_larger_rewards_changes_no_value_by_its_size_alone(changes, packing):
    pack = make_pack([H | {"learning_rate": 0.0}] * 2, packing=packing, algo=changes.get("algo", "appo"))
    before = values_of(pack)
    rollouts = make_rollouts([0, 1])
    for rollout in rollouts:
        rollout.reward[:] *= 100
    learn(pack, batch_of(rollouts, 2), settings(**changes))
    assert pack.return_scale(slice(0, 2)).min() > 3
    torch.testing.assert_close(values_of(pack), before, rtol=1e-5, atol=1e-6)
