"""Action masks: a masked action is never drawn and gets no gradient, in acting and learning alike."""

import numpy as np
import pytest
import torch

from pbt_rl.algos.distributions import ACTION_MASK, make_distribution, mask_logits
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.rollout import Rollout, RolloutShape
from tests.helpers.nets import made_net
from tests.helpers.packs import CPU, ENVS, HYPERS, K, T, batch_of, fill, learn, pack_of, settings

NVEC = (4, 3)
D = sum(NVEC)
MASKED = make_distribution(NVEC, 0)
LAYOUTS = {"obs": ObsLayout("float32", (4,)), ACTION_MASK: ObsLayout("uint8", (D,))}


def some_masks(*leading, seed=0):
    """Random masks; about one component in six allows nothing."""
    rng = np.random.default_rng(seed)
    mask = rng.integers(2, size=(*leading, D)).astype(np.uint8)
    mask[rng.random(leading) < 0.1, :4] = 0
    return torch.from_numpy(mask)


def none_allowed(part):
    return (part == 0).all(-1)


def slow(logits, mask, action):
    """log_prob and entropy of one row, component by component, from the definition."""
    totals, start = [0.0, 0.0], 0
    for size, chosen in zip(NVEC, action, strict=True):
        allowed = [i for i in range(start, start + size) if mask[i]]
        if allowed:
            whole = np.log(sum(np.exp(logits[j]) for j in allowed))
            log_p = {i: logits[i] - whole for i in allowed}
            totals[0] += log_p[start + chosen]
            totals[1] -= sum(np.exp(x) * x for x in log_p.values())
        start += size
    return totals


def test_masked_numbers_equal_a_slow_loop():
    generator = torch.Generator().manual_seed(0)
    logits, mask = torch.randn(200, D, generator=generator) * 3, some_masks(200)
    masked = mask_logits(logits, mask, NVEC)
    action, log_prob = MASKED.sample(masked, generator)
    rows = zip(logits.double().numpy(), mask.numpy(), action.numpy(), strict=True)
    expected = [slow(*row) for row in rows]
    got = torch.stack((log_prob, MASKED.entropy(masked)), 1)
    torch.testing.assert_close(got.double(), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(MASKED.log_prob(masked, action), log_prob)
    idle = none_allowed(mask[:, :4]) & none_allowed(mask[:, 4:])
    assert idle.any()
    assert (got[idle] == 0).all()


def test_a_masked_action_is_never_drawn():
    mask = some_masks(2000, seed=1)
    # The network wants what is forbidden, as much as it can.
    logits = torch.where(mask == 0, 80.0, -80.0)
    action, _ = MASKED.sample(mask_logits(logits, mask, NVEC), torch.Generator().manual_seed(1))
    for column, part in zip(action.long().unbind(1), torch.split(mask, NVEC, 1), strict=True):
        allowed = part.gather(1, column[:, None])[:, 0] == 1
        idle = none_allowed(part)
        assert idle.any()
        assert (allowed | idle).all()
        assert (column[idle] == 0).all()


def test_what_is_masked_gets_no_gradient():
    mask = some_masks(300, seed=2)
    logits = torch.randn(300, D, generator=torch.Generator().manual_seed(2)).requires_grad_()
    masked = mask_logits(logits, mask, NVEC)
    action, _ = MASKED.sample(masked.detach(), torch.Generator().manual_seed(3))
    (MASKED.log_prob(masked, action) * torch.randn(300) + MASKED.entropy(masked)).sum().backward()
    gradient = logits.grad
    assert gradient is not None
    assert (gradient[mask == 0] == 0).all()
    assert torch.isfinite(gradient).all()
    assert (gradient[mask == 1] != 0).any()
    idle = none_allowed(mask[:, :4])
    assert (gradient[idle, :4] == 0).all()


def masked_pack(policies, *, packing="loop", dtype=torch.float32, core="none"):
    torch.manual_seed(0)
    seen = {name: layout.seen for name, layout in LAYOUTS.items()}
    options = {"hidden": 16, "layers": 1, "core": core, "core_size": 8, "nvec": NVEC}
    made = {"packing": packing, "dtype": dtype, "normalized_obs": {"obs": 4}}
    return pack_of(lambda: made_net(seen, D, **options), [HYPERS] * policies, **made)


def masked_rollouts(policies, state_size, *, obey=True, mask_seed=0):
    """Rollouts with masks, and actions that obey them (0 where nothing is allowed)."""
    rollouts = []
    for number in range(K):
        rows = len(policies) * ENVS
        rollout = Rollout(RolloutShape(LAYOUTS, T, rows, len(policies), (2, torch.int32), state_size, CPU))
        fill(rollout, policies, MASKED, number)
        for slot, policy in enumerate(policies):
            of_policy = slice(slot * ENVS, (slot + 1) * ENVS)
            mask = some_masks(T + 1, ENVS, seed=100 * mask_seed + 10 * policy + number)
            rollout.obs[ACTION_MASK][:, of_policy] = mask
            generator = torch.Generator().manual_seed(policy)
            params = mask_logits(torch.zeros(T, ENVS, D), mask[:T], NVEC)
            rollout.action[:, of_policy], rollout.log_prob[:, of_policy] = MASKED.sample(params, generator)
        if not obey:
            rollout.obs[ACTION_MASK][:] = 1
        rollouts.append(rollout)
    return rollouts


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_masked_pack_acts_and_learns_as_each_policy_alone(packing, dtype, core):
    s = settings(distribution=MASKED, use_vtrace=core == "gru")
    packed = masked_pack(2, packing=packing, dtype=dtype, core=core)
    alone = [masked_pack(1, dtype=dtype, core=core) for _ in range(2)]
    for p, one in enumerate(alone):
        one.import_member(0, packed.export_member(p))
    stats = learn(packed, batch_of(masked_rollouts([0, 1], packed.state_size), 2), s)
    assert all(torch.isfinite(x).all() for step in stats for x in step.values.values())
    for p, one in enumerate(alone):
        learn(one, batch_of(masked_rollouts([p], one.state_size), 1), s)
        error = (packed.state["param"][p] - one.state["param"][0]).abs().max().item()
        rate = HYPERS["learning_rate"]
        assert error <= (0.0 if packing == "loop" else 2 * rate if dtype == torch.bfloat16 else 2e-6)

    mask = some_masks(2, 50, seed=7)
    obs = {"obs": torch.randn(2, 50, 4), ACTION_MASK: mask}
    first = torch.zeros(2, 50, dtype=torch.bool)
    packed.publish((0, 1))
    params, _, _ = packed.act(obs, torch.zeros(2, 50, packed.state_size), first)
    # The same policy learns by the same logits that it acts by.
    group = packed.groups()[0]
    seen = {k: v[group.span].unsqueeze(1) for k, v in obs.items()}
    learned, _, _ = group.forward(
        seen, torch.zeros(len(group.slots), 50, packed.state_size), first[group.span, None]
    )
    torch.testing.assert_close(learned[:, 0], params[group.span], rtol=0, atol=1e-6)
    assert (params.softmax(-1)[..., 4][~none_allowed(mask[..., 4:]) & (mask[..., 4] == 0)] == 0).all()


def test_the_mask_counts_in_learning_and_is_not_seen_by_the_network():
    packs = [masked_pack(1) for _ in range(2)]
    for pack, obey in zip(packs, (True, False), strict=True):
        learn(pack, batch_of(masked_rollouts([0], 0, obey=obey), 1), settings(distribution=MASKED))
    assert not torch.equal(packs[0].state["param"], packs[1].state["param"])
    with_mask, without = (
        made_net({"obs": ((4,), "float32"), **more}, D, hidden=16, nvec=NVEC)
        for more in ({ACTION_MASK: ((D,), "uint8")}, {})
    )
    shapes = [[p.shape for p in net.parameters()] for net in (with_mask, without)]
    assert shapes[0] == shapes[1]


def test_slots_that_no_member_holds_obey_the_mask_too():
    pack = masked_pack(2)
    pack.idle[1] = True
    mask = some_masks(2, 500, seed=9)
    obs = {"obs": torch.zeros(2, 500, 4), ACTION_MASK: mask}
    params, _, _ = pack.act(obs, torch.zeros(2, 500, 0), torch.zeros(2, 500, dtype=torch.bool))
    action, _ = MASKED.sample(params, torch.Generator().manual_seed(0))
    allowed = mask[..., :4].gather(2, action[..., :1].long())[..., 0] == 1
    assert (allowed | none_allowed(mask[..., :4])).all()
