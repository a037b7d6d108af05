"""Returns against sums written from the papers' equations, one start step at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.algos.returns import Trajectories, gae, gae_torch, vtrace, vtrace_torch

P, T, B = 3, 13, 4
GAE = {"cpu": gae, "torch": gae_torch}
VTRACE = {"cpu": vtrace, "torch": vtrace_torch}


def rollout(seed: int) -> dict[str, torch.Tensor]:
    """Random transitions; after most ends, and sometimes without one, a reset full of NaN follows."""
    generator = torch.Generator().manual_seed(seed)

    def chance(p: float) -> torch.Tensor:
        return torch.rand(P, T, B, generator=generator) < p

    terminated, truncated = chance(0.12), chance(0.12)
    ended = terminated | truncated
    reset = chance(0.04)
    reset[:, 1:] |= ended[:, :-1] & chance(0.8)[:, 1:]
    reward = torch.randn(P, T, B, generator=generator)
    log_ratio = 0.7 * torch.randn(P, T, B, generator=generator)
    return {
        "reward": reward.masked_fill(reset, torch.nan),
        "value": torch.randn(P, T + 1, B, generator=generator),
        "terminated": terminated & ~reset,
        "truncated": truncated & ~reset,
        "valid": ~reset,
        "log_ratio": log_ratio.masked_fill(reset, torch.nan),
        "gamma": torch.tensor([0.9, 0.99, 0.8]),
        "lam": torch.tensor([0.95, 0.7, 1.0]),
        "rho": torch.tensor([1.0, 0.8, 2.0]),
        "c": torch.tensor([1.0, 1.2, 0.5]),
        "unroll": torch.tensor([T + 1, 5, 2]),
    }


def arguments(data, *names):
    steps = Trajectories(*(data[name] for name in ("reward", "value", "terminated", "truncated", "valid")))
    return steps, *(data[name] for name in names or ("gamma", "lam", "unroll"))


def call(function, data):
    names = ("log_ratio", "gamma", "lam", "rho", "c", "unroll") if function in VTRACE.values() else ()
    return function(*arguments(data, *names))


def slow(data: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """GAE advantage, V-trace target and advantage in float64, by forward sums from every start."""
    d = {k: v.double().numpy() if v.is_floating_point() else v.numpy() for k, v in data.items()}
    out = np.zeros((3, P, T, B))
    for p, b in np.ndindex(P, B):
        row = {k: v[p] if v.ndim == 1 else v[p, :, b] for k, v in d.items()}
        for t in range(T):
            out[:, p, t, b] = slow_step(row, t)
    return out[0], out[1], out[2]


def slow_step(row: dict, t: int) -> tuple[float, float, float]:
    """The same for step t of one row."""
    value, gamma = row["value"], row["gamma"]
    if not row["valid"][t]:
        return 0.0, value[t], 0.0
    plain, target = slow_sums(row, t)
    ahead = value[t + 1] if stops(row, t) or t + 1 == T else slow_sums(row, t + 1)[1]
    rho = min(row["rho"], np.exp(row["log_ratio"][t]))
    return plain, target, rho * (row["reward"][t] + gamma * (1 - row["terminated"][t]) * ahead - value[t])


def slow_sums(row: dict, s: int) -> tuple[float, float]:
    """(Eq. 16 of GAE, Eq. 1 of V-trace) from step s on, up to where the trace stops."""
    value, gamma = row["value"], row["gamma"]
    plain, target, product = 0.0, value[s], 1.0
    for t in range(s, T):
        if not row["valid"][t]:
            break
        ratio = np.exp(row["log_ratio"][t])
        delta = row["reward"][t] + gamma * (1 - row["terminated"][t]) * value[t + 1] - value[t]
        plain += (gamma * row["lam"]) ** (t - s) * delta
        target += gamma ** (t - s) * product * min(row["rho"], ratio) * delta
        product *= row["lam"] * min(row["c"], ratio)
        if stops(row, t):
            break
    return plain, target


def stops(row: dict, t: int) -> bool:
    return bool(row["terminated"][t] or row["truncated"][t] or (t + 1) % row["unroll"] == 0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_to_the_sums_of_the_papers(seed):
    data = rollout(seed)
    expected_gae, expected_target, expected_advantage = slow(data)
    for name, function in GAE.items():
        np.testing.assert_allclose(call(function, data), expected_gae, rtol=1e-4, atol=2e-5)
        target, advantage = call(VTRACE[name], data)
        np.testing.assert_allclose(target, expected_target, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(advantage, expected_advantage, rtol=1e-4, atol=2e-5)


def test_the_random_rollouts_hold_every_case():
    data = rollout(0)
    assert data["terminated"].any()
    assert data["truncated"].any()
    assert (~data["valid"]).any()
    ended = data["terminated"] | data["truncated"]
    assert (ended[:, :-1] & data["valid"][:, 1:]).any(), "an end without a reset (a lost life)"
    assert (~ended[:, :-1] & ~data["valid"][:, 1:]).any(), "a reset without an end (a restarted actor)"


def one_row(**changes):
    """Rewards 1, 2, 3, values 10, 20, 30, 40, gamma 0.5, lambda 1: [1, 3, 1]."""
    data = {
        "reward": torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1),
        "value": torch.tensor([10.0, 20.0, 30.0, 40.0]).view(1, 4, 1),
        "terminated": torch.zeros(1, 3, 1, dtype=torch.bool),
        "truncated": torch.zeros(1, 3, 1, dtype=torch.bool),
        "valid": torch.ones(1, 3, 1, dtype=torch.bool),
        "log_ratio": torch.zeros(1, 3, 1),
        "gamma": torch.tensor([0.5]),
        "lam": torch.tensor([1.0]),
        "rho": torch.tensor([1.0]),
        "c": torch.tensor([1.0]),
        "unroll": torch.tensor([3]),
    }
    for name, value in changes.items():
        data[name] = torch.as_tensor(value).view_as(data[name]).to(data[name].dtype)
    return data


@pytest.mark.parametrize(
    ("changes", "returns"),
    [
        ({}, (1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 40, 2 + 0.5 * 3 + 0.25 * 40, 3 + 0.5 * 40)),
        ({"terminated": [0, 1, 0], "valid": [1, 1, 0]}, (1 + 0.5 * 2, 2, 30)),
        ({"truncated": [0, 1, 0], "valid": [1, 1, 0]}, (1 + 0.5 * 2 + 0.25 * 30, 2 + 0.5 * 30, 30)),
        ({"terminated": [0, 1, 0]}, (1 + 0.5 * 2, 2, 3 + 0.5 * 40)),
        ({"unroll": 2}, (1 + 0.5 * 2 + 0.25 * 30, 2 + 0.5 * 30, 3 + 0.5 * 40)),
        ({"unroll": 1}, (1 + 0.5 * 20, 2 + 0.5 * 30, 3 + 0.5 * 40)),
    ],
    ids=["whole", "terminated", "truncated", "life lost", "unroll 2", "unroll 1"],
)
@pytest.mark.parametrize("kind", GAE)
def test_small_cases_by_hand(kind, changes, returns):
    data = one_row(**changes)
    advantage = call(GAE[kind], data)
    target, vtrace_advantage = call(VTRACE[kind], data)
    assert (advantage + data["value"][:, :-1]).flatten().tolist() == pytest.approx(returns)
    assert target.flatten().tolist() == pytest.approx(returns), "V-trace on policy is the n-step return"
    torch.testing.assert_close(vtrace_advantage, advantage)


@pytest.mark.parametrize("kind", GAE)
def test_an_infinite_ratio_is_clipped(kind):
    target, advantage = call(VTRACE[kind], one_row(log_ratio=[200.0, 0.0, -200.0]))
    assert torch.isfinite(target).all()
    assert torch.isfinite(advantage).all()


def test_float_unroll_other_layouts_and_leading_axes():
    data = rollout(1)
    expected = call(gae, data)
    assert expected.dtype == torch.float32
    as_floats = data | {"unroll": data["unroll"].float()}
    strided = {
        k: v.transpose(1, 2).contiguous().transpose(1, 2) if v.ndim == 3 else v for k, v in as_floats.items()
    }
    for kind in GAE.values():
        torch.testing.assert_close(call(kind, strided), expected)
    alone = torch.func.vmap(gae_torch)(*arguments(data))
    torch.testing.assert_close(alone, expected)
    last = gae_torch(*arguments({name: x[-1] for name, x in data.items()}))
    torch.testing.assert_close(last, expected[-1])
