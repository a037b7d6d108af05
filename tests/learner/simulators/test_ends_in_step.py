"""Episodes that end and begin in one step: batches of views, final values of limits, no transition that is a reset."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pbt_rl.algos.a3c import n_step_targets
from pbt_rl.algos.algorithm import Present
from pbt_rl.algos.appo import gae_of_batch, vtrace_targets
from pbt_rl.algos.batch import Batch, Samples
from pbt_rl.algos.lookup import load
from pbt_rl.algos.rollout import FIELDS
from pbt_rl.learner.simulators.in_place import batch_in_place
from tests.helpers.packs import (
    DISCRETE,
    HYPERS,
    T,
    batch_of,
    learn,
    make_pack,
    make_rollouts,
    same_bits,
    settings,
    state_of,
)

P, B = 2, 3
EACH = {"gamma": [0.9, 0.7], "gae_lambda": [0.95, 0.8], "vtrace_rho": [1.0, 0.8], "vtrace_c": [1.0, 0.7]}


def steps(*, core="none", seed=0) -> Batch:
    """Two policies, episodes that end by limits and otherwise and begin in the same step; NaN where nothing reads."""
    state_size = 8 if core == "gru" else 0
    made = batch_of(make_rollouts(list(range(P)), state_size=state_size, seed=seed, k=1), P)
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(P, T, B, generator=generator)
    terminated, truncated = ends < 0.15, ends > 0.75
    first = torch.zeros(P, T + 1, B, dtype=torch.bool)
    first[:, 1:] = terminated | truncated
    final = torch.randn(P, T, B, generator=generator).masked_fill(~truncated, torch.nan)
    assert truncated.any()
    assert terminated.any()
    fields = {name: getattr(made, name) for name in FIELDS}
    fields |= {"terminated": terminated, "truncated": truncated, "first": first}
    obs = {"obs": made.rollouts[0].obs["obs"].unflatten(1, (P, B)).transpose(0, 1).contiguous()}
    return batch_in_place(made.layouts, obs, fields, torch.ones(P, dtype=torch.bool), final)


def hypers(unroll: int) -> dict[str, torch.Tensor]:
    values = {name: torch.tensor(numbers) for name, numbers in EACH.items()}
    return values | {"unroll": torch.full((P,), float(unroll))}


def slow(batch: Batch, unroll: int, value, log_ratio, lam_of) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """GAE, V-trace's target and its advantage over rho, by one recursion backward in time over each row, float64.

    value: [P, T+1, B]. lam_of: policy -> lambda.
    """
    out = np.zeros((3, P, T, B))
    for p, b in np.ndindex(P, B):
        gamma, lam, rho_limit, c_limit = (
            EACH["gamma"][p],
            lam_of(p),
            EACH["vtrace_rho"][p],
            EACH["vtrace_c"][p],
        )
        advantage = correction = 0.0
        for t in reversed(range(T)):
            at = (p, t, b)
            ended = bool(batch.terminated[at]) or bool(batch.truncated[at])
            if batch.truncated[at]:
                assert batch.final_value is not None
                following = float(batch.final_value[at])
            else:
                following = 0.0 if batch.terminated[at] else float(value[p, t + 1, b])
            stops = ended or (t + 1) % unroll == 0
            delta = float(batch.reward[at]) + gamma * following - float(value[p, t, b])
            advantage = delta + (0.0 if stops else gamma * lam * advantage)
            ahead = 0.0 if stops else gamma * correction
            ratio = math.exp(float(log_ratio[at]))
            rho, c = min(rho_limit, ratio), lam * min(c_limit, ratio)
            out[:, p, t, b] = advantage, float(value[p, t, b]) + rho * delta + c * ahead, delta + ahead
            correction = rho * delta + c * ahead
    return out[0], out[1], out[2]


@pytest.mark.parametrize("unroll", [3, T])
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_return_equals_a_slow_loop(seed, unroll):
    batch, given = steps(seed=seed), hypers(unroll)
    s = Samples.of(batch, slice(0, P)).with_final_values(given["gamma"])
    generator = torch.Generator().manual_seed(9)
    log_ratio = 0.5 * torch.randn(P, T, B, generator=generator)
    present_value = torch.cat([torch.randn(P, T, B, generator=generator), batch.value[:, -1:]], 1)
    present = Present(s.log_prob + log_ratio, present_value[:, :-1], s.valid, torch.tensor([1.0, 2.0]))

    lam = EACH["gae_lambda"].__getitem__
    wanted, _, _ = slow(batch, unroll, batch.value, log_ratio, lam)
    fixed = gae_of_batch(s, given, settings())
    np.testing.assert_allclose(fixed, wanted, rtol=1e-4, atol=1e-5)

    _, wanted_target, wanted_advantage = slow(batch, unroll, present_value, log_ratio, lam)
    target, advantage = vtrace_targets(s, given, present, settings())
    np.testing.assert_allclose(target, wanted_target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, wanted_advantage, rtol=1e-4, atol=1e-5)

    wanted, _, _ = slow(batch, unroll, present_value, log_ratio, lambda _p: 1.0)
    target, advantage = n_step_targets(s, given, present, settings("a3c"))
    np.testing.assert_allclose(target, wanted + present_value[:, :-1].numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, wanted / np.array([1.0, 2.0])[:, None, None], rtol=1e-4, atol=1e-5)


KINDS = {
    "appo": ("appo", {"minibatches": 2}, "none"),
    "vtrace": ("appo", {"use_vtrace": True}, "none"),
    "a3c": ("a3c", {"epochs": 1}, "none"),
    "gru": ("appo", {"minibatches": 2}, "gru"),
}


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_is_learned_from_as_an_end_with_the_present_gamma(kind, packing):
    algo, changes, core = KINDS[kind]
    batch = steps(core=core)
    states = []
    for given in (True, False):
        pack = make_pack([HYPERS, HYPERS | {"gamma": 0.5}], packing=packing, algo=algo, core=core)
        pack.set_hypers(0, HYPERS | {"gamma": 0.8})
        if not given:
            assert batch.final_value is not None
            gamma = torch.tensor([0.8, 0.5])[:, None, None]
            reward = batch.reward + torch.where(batch.truncated, gamma * batch.final_value, 0.0)
            ended = batch.terminated | batch.truncated
            batch = replace(batch, reward=reward, terminated=ended, final_value=None)
        taken = learn(pack, batch, settings(algo, **changes))
        assert all(np.isfinite(float(x)) for one in taken for x in one.values["grad_norm"])
        states.append([state_of(pack, p) for p in range(P)])
    for one, other in zip(*states, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_views_are_learned_from_as_rollouts_are(kind, packing):
    """Without an end both say the same, so weights are equal bit for bit."""
    algo, changes, core = KINDS[kind]
    state_size = 8 if core == "gru" else 0
    (rollout,) = make_rollouts(list(range(P)), state_size=state_size, k=1)
    rollout.terminated[:] = rollout.truncated[:] = rollout.first[:] = False
    copied = batch_of([rollout], P)
    layouts, obs = copied.layouts, rollout.obs["obs"].unflatten(1, (P, B)).transpose(0, 1)
    fields = {name: getattr(copied, name) for name in FIELDS}
    none = torch.full((P, T, B), torch.nan)
    viewed = batch_in_place(layouts, {"obs": obs}, fields, torch.ones(P, dtype=torch.bool), none)
    assert viewed.obs(slice(1, 2))["obs"].data_ptr() == obs[1].data_ptr(), "a view"
    places: dict[str, torch.Tensor] = {}
    viewed.obs(slice(0, P), places)
    assert torch.equal(places["obs"], copied.obs(slice(0, P))["obs"])
    states = []
    for batch in (copied, viewed):
        pack = make_pack([HYPERS] * P, packing=packing, algo=algo, core=core, normalize_obs=True)
        learn(pack, batch, settings(algo, **changes))
        states.append([state_of(pack, p) for p in range(P)])
    for one, other in zip(*states, strict=True):
        assert same_bits(one, other)


def test_a_policy_without_usable_steps_learns_nothing():
    batch = steps()
    batch = batch_in_place(
        batch.layouts,
        batch.views,
        {name: getattr(batch, name) for name in FIELDS},
        torch.tensor([False, True]),
        batch.final_value,
    )
    pack = make_pack([HYPERS] * P)
    before = [state_of(pack, p) for p in range(P)]
    learn(pack, batch, settings())
    assert same_bits(before[0], state_of(pack, 0))
    assert not same_bits(before[1], state_of(pack, 1))


def test_whoever_reads_whole_episodes_says_that_it_cannot():
    assert load("appo").needs_final_steps is None
    assert load("a3c").needs_final_steps is None
    assert "replay" in load("unreal").needs_final_steps
    assert "last observation" in load("fun").needs_final_steps
    with pytest.raises(AssertionError, match="last observation"):
        learn(make_pack([HYPERS] * P), steps(), settings("fun", distribution=DISCRETE))
