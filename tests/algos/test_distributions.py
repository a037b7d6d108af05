import numpy as np
import pytest
import torch
from torch import distributions as reference

from pbt_rl.algos.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    Hybrid,
    TanhGaussian,
    constant,
    make_distribution,
)

PLAIN = [Categorical((5,)), Categorical((3, 2, 4)), DiagonalGaussian(3)]
TANH = TanhGaussian((-1.0, 0.0), (1.0, 5.0))
CASES = [*PLAIN, TANH]
HYBRIDS = [Hybrid(Categorical((3, 2)), DiagonalGaussian(2)), Hybrid(Categorical((4,)), TANH)]
DELIVERED = [
    TANH,
    Hybrid(Categorical((3,)), DiagonalGaussian(2, (-1.0, 0.0), (1.0, 5.0), (0.0, 2.5), (1.0, 2.5))),
    Hybrid(Categorical((3,)), TANH),
]
N = 7


def params_of(distribution: Distribution, seed: int, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, distribution.param_size, generator=generator)


def torch_distribution(distribution: Distribution, params: torch.Tensor) -> list[reference.Distribution]:
    if isinstance(distribution, Categorical):
        return [reference.Categorical(logits=x) for x in torch.split(params, list(distribution.nvec), -1)]
    mean, log_std = params.chunk(2, -1)
    return [reference.Normal(mean[..., i], log_std[..., i].exp()) for i in range(mean.shape[-1])]


def in_the_environment(distribution, normals: list) -> list[reference.Distribution]:
    """Those of the actions that the environment receives, by torch's transforms."""
    ends = zip(distribution.low, distribution.high, strict=True)
    bend = [
        [reference.TanhTransform(), reference.AffineTransform((low + high) / 2, (high - low) / 2)]
        for low, high in ends
    ]
    pairs = zip(normals, bend, strict=True)
    return [reference.TransformedDistribution(normal, parts) for normal, parts in pairs]


@pytest.mark.parametrize("distribution", PLAIN)
def test_log_prob_and_entropy_equal_the_reference(distribution):
    params = params_of(distribution, 0, 2, N)
    action, _ = distribution.sample(params, torch.Generator().manual_seed(2))
    parts = torch_distribution(distribution, params)
    log_prob = sum(part.log_prob(action[..., i]) for i, part in enumerate(parts))
    torch.testing.assert_close(distribution.log_prob(params, action), log_prob)
    torch.testing.assert_close(distribution.entropy(params), sum(part.entropy() for part in parts))


def test_bent_normals_have_the_density_and_entropy_of_what_the_environment_receives():
    params = params_of(TANH, 0, N) * 0.5
    drawn, log_prob = TANH.sample(params, torch.Generator().manual_seed(2))
    bent = in_the_environment(TANH, torch_distribution(TANH, params))
    action = torch.from_numpy(TANH.delivered(drawn.numpy()))
    expected = sum(part.log_prob(action[:, i]) for i, part in enumerate(bent))
    torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)  # torch inverts the tanh
    many = [part.sample((200_000,)) for part in bent]
    sampled = -sum(
        part.log_prob(x.clamp(*ends)).mean(0)
        for part, x, ends in zip(bent, many, [(-0.999999, 0.999999), (1e-6, 4.999999)], strict=True)
    )
    torch.testing.assert_close(TANH.entropy(params), sampled, rtol=0, atol=0.02)


def test_the_gradient_of_a_bent_normals_entropy_is_that_of_a_fine_sum():
    params = torch.tensor([0.7, -0.4, -0.3, 0.2], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(TANH.entropy(params), params)
    eps, steps = 1e-4, []
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2)

    def entropy(x):
        mean, std = x[:2], x[2:].exp()
        slope = TANH._log_slope((mean + std * z[:, None]).double())
        return (weights[:, None] * slope).sum() / weights.sum() + x[2:].sum()

    for i in range(4):
        ends = [
            entropy(params.detach() + sign * eps * torch.eye(4, dtype=torch.float64)[i]) for sign in (1, -1)
        ]
        steps.append((ends[0] - ends[1]) / (2 * eps))
    torch.testing.assert_close(gradient, torch.stack(steps), rtol=0.01, atol=0.003)


def test_bent_normals_keep_their_digits_at_the_bounds():
    params = torch.tensor([30.0, -30.0, 0.0, 0.0]).requires_grad_()
    drawn, log_prob = TANH.sample(params, torch.Generator().manual_seed(0))
    assert TANH.delivered(drawn.numpy()).tolist() == [1.0, 0.0]
    assert TANH.greedy(params).tolist() == [1.0, 0.0]
    assert log_prob.isfinite()
    (gradient,) = torch.autograd.grad(TANH.log_prob(params, drawn) + TANH.entropy(params), params)
    assert gradient.isfinite().all()


def test_what_the_environment_receives():
    clipped = DiagonalGaussian(2, (-1.0, 0.0), (1.0, 5.0))
    drawn = np.array([[-3.0, 6.0], [0.5, 0.25]], np.float32)
    assert clipped.delivered(drawn).tolist() == [[-1.0, 5.0], [0.5, 0.25]]
    assert DiagonalGaussian(2).delivered(drawn) is drawn
    assert clipped.greedy(torch.tensor([0.5, -2.0, 7.0, 8.0])).tolist() == [0.5, 0.0]
    assert DiagonalGaussian(2).greedy(torch.tensor([0.5, -2.0, 7.0, 8.0])).tolist() == [0.5, -2.0]
    both = Hybrid(Categorical((3,)), clipped)
    row = np.array([2, -3.0, 6.0], np.float32)
    assert both.delivered(row).tolist() == [2.0, -1.0, 5.0]
    assert both.greedy(torch.tensor([0.0, 9.0, 1.0, 0.5, -2.0, 7.0, 8.0])).tolist() == [1.0, 0.5, 0.0]
    assert Categorical((3, 2)).greedy(torch.tensor([0.0, 9.0, 1.0, 3.0, 2.0])).tolist() == [1, 0]


@pytest.mark.parametrize("distribution", HYBRIDS)
def test_a_hybrid_is_the_sum_of_its_parts(distribution):
    params = params_of(distribution, 0, 2, N)
    action, log_prob = distribution.sample(params, torch.Generator().manual_seed(2))
    width, columns = distribution.discrete.param_size, len(distribution.discrete.nvec)
    parts = [
        (distribution.discrete, slice(0, width), slice(0, columns)),
        (distribution.continuous, slice(width, None), slice(columns, None)),
    ]
    assert action.dtype == torch.float32
    assert (action.shape[-1], distribution.param_size) == (columns + 2, width + 4)
    index = action[..., :columns]
    assert ((index >= 0) & (index < torch.tensor(distribution.discrete.nvec)) & (index % 1 == 0)).all()
    expected = sum(d.log_prob(params[..., p], action[..., a]) for d, p, a in parts)
    torch.testing.assert_close(distribution.log_prob(params, action), expected)
    torch.testing.assert_close(log_prob, expected)
    entropy = sum(d.entropy(params[..., p]) for d, p, _ in parts)
    torch.testing.assert_close(distribution.entropy(params), entropy)


@pytest.mark.parametrize("distribution", [*CASES, *HYBRIDS])
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


@pytest.mark.parametrize("distribution", PLAIN)
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


@pytest.mark.parametrize("distribution", [*CASES, *HYBRIDS])
def test_vmap_over_policies(distribution):
    params = params_of(distribution, 0, 3, N)
    action, _ = distribution.sample(params, None)
    for function, args in ((distribution.log_prob, (params, action)), (distribution.entropy, (params,))):
        torch.testing.assert_close(torch.func.vmap(function)(*args), function(*args))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_an_impossible_action_is_never_drawn(monkeypatch, uniform):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    logits = torch.tensor([-1e9, 0.3, 0.1, 0.2, -1e9])
    action, log_prob = Categorical((5,)).sample(logits, None)
    assert action.item() == (1 if uniform == 0 else 3)
    assert log_prob.item() > -5


def test_a_tanh_between_equal_bounds_gives_the_bound():
    one = make_distribution((), 2, low=(-1.0, 3.0), high=(1.0, 3.0), tanh=True)
    params = torch.zeros(4, 4, requires_grad=True)
    drawn, log_prob = one.sample(params, torch.Generator().manual_seed(0))
    assert (one.delivered(drawn.numpy())[:, 1] == 3).all()
    torch.testing.assert_close(one.log_prob(params, drawn), log_prob)
    (one.log_prob(params, drawn) + one.entropy(params)).sum().backward()
    assert params.grad.isfinite().all()


def test_constants_that_a_recording_may_read_are_never_let_go():
    like = torch.zeros(1)
    kept = [constant((float(n), 0.5), like) for n in range(100)]
    assert all(constant((float(n), 0.5), like) is one for n, one in enumerate(kept))


@pytest.mark.parametrize(
    "distribution",
    [
        Categorical((3, 2)),
        DiagonalGaussian(2),
        DiagonalGaussian(2, (-1.0, 0.0), (1.0, 5.0)),
        DiagonalGaussian(2, (5.0, -1.0), (35.0, 1.0), (20.0, 0.0), (15.0, 1.0)),
        *DELIVERED,
    ],
    ids=repr,
)
def test_what_is_delivered_is_the_same_wherever_actions_lie(distribution):
    params = 2 * torch.randn(500, distribution.param_size, generator=torch.Generator().manual_seed(3))
    action, _ = distribution.sample(params, torch.Generator().manual_seed(4))
    here = distribution.delivered_here(action)
    wanted = torch.from_numpy(distribution.delivered(action.numpy()))
    assert here.dtype == wanted.dtype
    # The tanh of numpy and of torch differ in the last bit.
    torch.testing.assert_close(here, wanted, rtol=0, atol=1e-6 if "Tanh" in repr(distribution) else 0)
