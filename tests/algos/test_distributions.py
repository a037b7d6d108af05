import pytest
import torch
from torch import distributions as reference

from pbt_rl.algos.distributions import Categorical, DiagonalGaussian, Distribution, make_distribution

CASES = [Categorical((5,)), Categorical((3, 2, 4)), DiagonalGaussian(3)]
N = 7


def params_of(distribution: Distribution, seed: int, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, distribution.param_size, generator=generator)


def torch_distribution(distribution: Distribution, params: torch.Tensor) -> list[reference.Distribution]:
    if isinstance(distribution, Categorical):
        return [reference.Categorical(logits=x) for x in torch.split(params, list(distribution.nvec), -1)]
    mean, log_std = params.chunk(2, -1)
    return [reference.Normal(mean[..., i], log_std[..., i].exp()) for i in range(mean.shape[-1])]


@pytest.mark.parametrize("distribution", CASES)
def test_log_prob_entropy_and_kl_equal_the_reference(distribution):
    params, other = params_of(distribution, 0, 2, N), params_of(distribution, 1, 2, N)
    action, _ = distribution.sample(params, torch.Generator().manual_seed(2))
    parts, others = torch_distribution(distribution, params), torch_distribution(distribution, other)
    log_prob = sum(part.log_prob(action[..., i]) for i, part in enumerate(parts))
    torch.testing.assert_close(distribution.log_prob(params, action), log_prob)
    torch.testing.assert_close(distribution.entropy(params), sum(part.entropy() for part in parts))
    kl = sum(reference.kl_divergence(p, q) for p, q in zip(parts, others, strict=True))
    torch.testing.assert_close(distribution.kl(params, other), kl)


@pytest.mark.parametrize("distribution", CASES)
def test_sample_gives_the_action_and_its_log_prob(distribution):
    params = params_of(distribution, 0, 2, N).requires_grad_()
    action, log_prob = distribution.sample(params, torch.Generator().manual_seed(3))
    again, _ = distribution.sample(params, torch.Generator().manual_seed(3))
    other, _ = distribution.sample(params, torch.Generator().manual_seed(4))
    assert torch.equal(action, again)
    assert not torch.equal(action, other)
    assert not log_prob.requires_grad
    assert action.dtype == (torch.int32 if isinstance(distribution, Categorical) else torch.float32)
    torch.testing.assert_close(log_prob, distribution.log_prob(params, action).detach())


@pytest.mark.parametrize("distribution", CASES)
def test_the_kernels_of_a_cpu_draw_what_tensors_draw(distribution):
    params = 3 * params_of(distribution, 0, 50, N)
    columns = len(getattr(distribution, "nvec", (0, 0, 0)))
    noise = torch.rand(50, N, columns, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        distribution.by_kernel(params, noise), distribution.by_tensors(params, noise), rtol=1e-5, atol=1e-6
    )
    diverged = torch.full_like(params, torch.nan)
    for draw in (distribution.by_kernel, distribution.by_tensors):
        action, log_prob = draw(diverged, noise)
        assert log_prob.isnan().all(), "what has diverged is seen in the loss"
        assert action.isnan().all() if action.is_floating_point() else not action.any()


@pytest.mark.parametrize("distribution", CASES)
def test_vmap_over_policies(distribution):
    params, other = params_of(distribution, 0, 3, N), params_of(distribution, 1, 3, N)
    action, _ = distribution.sample(params, None)
    for function, args in (
        (distribution.log_prob, (params, action)),
        (distribution.entropy, (params,)),
        (distribution.kl, (params, other)),
    ):
        torch.testing.assert_close(torch.func.vmap(function)(*args), function(*args))


def test_categorical_frequencies():
    distribution = Categorical((3, 2))
    logits = torch.log(torch.tensor([0.2, 0.5, 0.3, 0.9, 0.1]))
    action, _ = distribution.sample(logits.expand(40_000, 5), torch.Generator().manual_seed(0))
    joint = torch.bincount(action[:, 0] * 2 + action[:, 1], minlength=6) / 40_000
    expected = torch.outer(torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.9, 0.1])).flatten()
    torch.testing.assert_close(joint, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_an_impossible_action_is_never_drawn(monkeypatch, uniform):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    logits = torch.tensor([-1e9, 0.3, 0.1, 0.2, -1e9])
    action, log_prob = Categorical((5,)).sample(logits, None)
    assert action.item() == (1 if uniform == 0 else 3)
    assert log_prob.item() > -5


def test_gaussian_moments():
    params = torch.tensor([1.0, -2.0, 0.0, -1.0])
    action, _ = DiagonalGaussian(2).sample(params.expand(40_000, 4), torch.Generator().manual_seed(0))
    torch.testing.assert_close(action.mean(0), params[:2], atol=0.02, rtol=0)
    torch.testing.assert_close(action.std(0), params[2:].exp(), atol=0.02, rtol=0)


def test_make_distribution_and_sizes():
    assert make_distribution((3, 2, 4), 0) == Categorical((3, 2, 4))
    assert make_distribution((), 2) == DiagonalGaussian(2)
    assert [d.param_size for d in CASES] == [5, 9, 6]
