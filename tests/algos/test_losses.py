import math

import pytest
import torch

from pbt_rl.algos import appo
from pbt_rl.algos.a3c import A3C, a3c_loss
from pbt_rl.algos.algorithm import LossInputs
from pbt_rl.algos.appo import APPO, ppo_loss
from pbt_rl.algos.losses import explained_variance, normalize_advantage

N = 24
PPO_COEFS = {"clip_ratio": 0.2, "clip_value": 0.3, "value_coef": 0.5, "entropy_coef": 0.01, "kl_coef": 0.7}
A3C_COEFS = {"value_coef": 0.5, "entropy_coef": 0.01}
GRADIENTS = ("log_prob", "value", "entropy")


def samples(seed: int = 0, n: int = N, std: float = 0.5) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    names = ("log_prob", "old_log_prob", "acting_log_prob", "advantage", "value", "old_value", "target")
    names += ("entropy",)
    data = {name: std * torch.randn(n, generator=g) for name in names}
    return data | {"valid": torch.rand(n, generator=g) < 0.7}


CASES = {"ppo": (ppo_loss, PPO_COEFS), "a3c": (a3c_loss, A3C_COEFS)}


@pytest.fixture(autouse=True, params=["kernel", "tensors"])
def way(request, monkeypatch):
    """Every law holds for both ways of computing the loss of PPO."""
    if request.param == "tensors":
        monkeypatch.setattr(appo, "has_kernels", lambda _: False)


def test_ppo_equals_a_loop_over_samples():
    data = samples(n=4 * N, std=0.8)
    policy = value = entropy = kl = clipped = limited = far = 0.0
    valid = [i for i in range(4 * N) if data["valid"][i]]
    for i in valid:
        s = {k: v[i].item() for k, v in data.items()}
        ratio = math.exp(s["log_prob"] - s["old_log_prob"])
        importance = min(math.exp(s["old_log_prob"] - s["acting_log_prob"]), 2)
        limited += importance == 2
        far += ratio > 3 and s["advantage"] < 0
        policy -= importance * min(ratio * s["advantage"], min(max(ratio, 0.8), 1.2) * s["advantage"])
        near = s["old_value"] + min(max(s["value"] - s["old_value"], -0.3), 0.3)
        value += 0.5 * max((s["value"] - s["target"]) ** 2, (near - s["target"]) ** 2)
        entropy += s["entropy"]
        kl += ratio - 1 - math.log(ratio)
        clipped += abs(ratio - 1) > 0.2
    n = len(valid)
    loss, stats = ppo_loss(LossInputs(**data), **PPO_COEFS)
    assert loss.item() == pytest.approx((policy + 0.5 * value - 0.01 * entropy + 0.7 * kl) / n, rel=1e-5)
    expected = {"policy_loss": policy, "value_loss": value, "entropy": entropy}
    expected |= {"kl": kl, "clip_fraction": clipped}
    for name, total in expected.items():
        assert stats[name].item() == pytest.approx(total / n, rel=1e-4), name
    target, old = data["target"][valid], data["old_value"][valid]
    ratio_of_variances = (target - old).var(correction=0) / target.var(correction=0)
    assert stats["explained_variance"].item() == pytest.approx(1 - ratio_of_variances.item(), rel=1e-4)
    assert 0 < stats["clip_fraction"] < 1
    assert 0 < limited < n
    assert far, "none that another bound of the objective would change"
    assert set(stats) == set(APPO.statistics)


@pytest.mark.parametrize("moved", [1e-3, -1e-4, 1e-5, -1e-7])
def test_a_divergence_that_is_tiny_is_right_and_not_negative(moved):
    data = samples() | {"old_log_prob": torch.zeros(N), "log_prob": torch.full((N,), moved)}
    _, stats = ppo_loss(LossInputs(**data), **PPO_COEFS)
    kl = stats["kl"].item()
    assert kl >= 0
    assert kl == pytest.approx(moved**2 / 2, rel=0.01, abs=1e-7 * abs(moved))


def test_the_term_of_the_divergence_has_its_value_and_gradient_on_average():
    old = torch.tensor([0.3, -0.2, 0.9, 0.0])
    new = torch.tensor([0.1, 0.4, 0.5, -0.3], requires_grad=True)
    (p, log_p), (q, log_q) = ((x.softmax(-1), x.log_softmax(-1)) for x in (old, new))
    exact = (p * (log_p - log_q)).sum()
    log_ratio = log_q - log_p
    average = (p * (log_ratio.exp() - 1 - log_ratio)).sum()  # over the actions of the old policy
    torch.testing.assert_close(average, exact)
    expected, got = (torch.autograd.grad(x, new, retain_graph=True)[0] for x in (exact, average))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got, (q - p).detach())
    # And `ppo_loss` computes that average of the samples, without any other gradient.
    n = 4
    nothing = dict.fromkeys(("advantage", "value", "old_value", "target", "entropy"), torch.zeros(n))
    nothing["acting_log_prob"] = log_p
    inputs = LossInputs(log_prob=log_q, old_log_prob=log_p, valid=torch.ones(n, dtype=torch.bool), **nothing)
    loss, stats = ppo_loss(inputs, **(PPO_COEFS | {"kl_coef": 2.0}))
    torch.testing.assert_close(loss, 2 * (log_ratio.exp() - 1 - log_ratio).mean())
    torch.testing.assert_close(stats["kl"], loss.detach() / 2)


def test_a3c_equals_its_formula():
    data = samples()
    v = {k: x[data["valid"]] for k, x in data.items()}
    expected = (
        -(v["log_prob"] * v["advantage"]).mean()
        + 0.5 * 0.5 * (v["value"] - v["target"]).square().mean()
        - 0.01 * v["entropy"].mean()
    )
    loss, stats = a3c_loss(LossInputs(**data), **A3C_COEFS)
    torch.testing.assert_close(loss, expected)
    assert set(stats) == set(A3C.statistics)


def gradients(name: str, data: dict[str, torch.Tensor], **changes: float):
    function, coefs = CASES[name]
    data = {k: v.clone().requires_grad_(k in GRADIENTS) for k, v in data.items()}
    loss, stats = function(LossInputs(**data), **(coefs | changes))
    loss.backward()
    return loss, stats, {k: data[k].grad for k in GRADIENTS}


@pytest.mark.parametrize("std", [0.3, 1.5, 20.0])
def test_the_kernel_computes_what_the_tensors_do(std, monkeypatch):
    data = samples(n=400, std=std)
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(appo, "has_kernels", lambda _, on=kernels: on)
        found.append(gradients("ppo", data))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    free = found[0][2]
    assert all(0 < (free[name] == 0).sum() < 400 for name in GRADIENTS)


@pytest.mark.parametrize("name", ["value", "advantage", "target", "acting_log_prob"])
def test_what_is_not_a_number_reaches_the_gradient(name):
    data = samples()
    one = data["valid"].nonzero()[0]
    data["log_prob"][one] = data["old_log_prob"][one] + (1.0 if name == "advantage" else 0.0)
    data[name][one] = math.nan
    loss, stats, grads = gradients("ppo", data)
    assert loss.isnan()
    assert stats["policy_loss"].isnan() or stats["value_loss"].isnan()
    assert any(grads[k].isnan().any() for k in GRADIENTS)  # such a step is left out


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("garbage", [1e9, -1e9, float("nan"), float("inf")])
def test_invalid_samples_change_nothing(name, garbage):
    data = samples()
    valid = data["valid"]
    alone, alone_stats, alone_gradients = gradients(name, {k: v[valid] for k, v in data.items()})
    spoiled = {k: v if k == "valid" else v.masked_fill(~valid, garbage) for k, v in data.items()}
    loss, stats, grads = gradients(name, spoiled)
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(stats, alone_stats)
    for k in GRADIENTS:
        torch.testing.assert_close(grads[k][valid], alone_gradients[k])
        assert (grads[k][~valid] == 0).all(), k


@pytest.mark.parametrize("name", CASES)
def test_no_valid_sample_gives_zero(name):
    data = samples() | {"valid": torch.zeros(N, dtype=torch.bool)}
    loss, stats, grads = gradients(name, data)
    assert loss.item() == 0
    assert all(x.item() == 0 for x in stats.values())
    assert all((g == 0).all() for g in grads.values())


@pytest.mark.parametrize("name", CASES)
def test_vmap_with_coefficients_of_each_policy(name):
    function, coefs = CASES[name]
    policies = [samples(seed) for seed in range(3)]
    each = {k: torch.tensor([x, 2 * x, 3 * x]) for k, x in coefs.items()}
    stacked = {k: torch.stack([p[k] for p in policies]) for k in policies[0]}

    def loss_of(floats, valid, coefs):
        return function(LossInputs(**floats, valid=valid), **coefs)

    floats = {k: v for k, v in stacked.items() if k != "valid"}
    grads, (losses, stats) = torch.func.vmap(torch.func.grad_and_value(loss_of, has_aux=True))(
        floats, stacked["valid"], each
    )
    for p, data in enumerate(policies):
        alone, alone_stats = function(LossInputs(**data), **{k: float(x[p]) for k, x in each.items()})
        torch.testing.assert_close(losses[p], alone)
        torch.testing.assert_close({k: v[p] for k, v in stats.items()}, alone_stats)
    assert torch.isfinite(grads["value"]).all()


def test_a_huge_ratio_gives_finite_gradients():
    data = samples(n=4) | {"valid": torch.ones(4, dtype=torch.bool), "old_log_prob": torch.full((4,), -500.0)}
    loss, _, grads = gradients("ppo", data)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in grads.values())


def test_the_clip_stops_the_gradient_one_way_only():
    data = samples(n=4)
    data |= {"valid": torch.ones(4, dtype=torch.bool), "advantage": torch.tensor([1.0, 1.0, -1.0, -1.0])}
    data |= {"old_log_prob": torch.zeros(4), "log_prob": torch.tensor([0.5, -0.5, 0.5, -0.5])}
    _, _, grads = gradients("ppo", data, kl_coef=0.0)
    assert (grads["log_prob"] != 0).tolist() == [False, True, True, False]


def test_normalize_advantage():
    data = samples()
    valid = data["valid"]
    spoiled = data["advantage"].masked_fill(~valid, float("nan"))
    out = normalize_advantage(spoiled, valid)
    assert out[valid].mean().item() == pytest.approx(0, abs=1e-6)
    assert out[valid].std(correction=0).item() == pytest.approx(1, rel=1e-4)
    assert (out[~valid] == 0).all()
    single = normalize_advantage(torch.tensor([3.0, 5.0]), torch.tensor([True, False]))
    assert single.tolist() == [0, 0]


def test_explained_variance_of_perfect_mean_and_constant():
    target, valid = torch.tensor([1.0, 2.0, 4.0]), torch.ones(3, dtype=torch.bool)
    assert explained_variance(target, target, valid).item() == 1
    assert explained_variance(torch.zeros(3), target, valid).item() == pytest.approx(0, abs=1e-6)
    assert explained_variance(target, torch.ones(3), valid).item() == 0


@pytest.mark.parametrize(("number", "count"), [(100.1, 1024), (1.0, 1000), (-3e4, 777)])
def test_equal_numbers_have_no_deviation(number, count):
    equal, valid = torch.full((count,), number), torch.arange(count) % 7 > 0
    assert normalize_advantage(equal, valid).abs().max() < 1e-3
    assert explained_variance(torch.randn(count), equal, valid) == 0
