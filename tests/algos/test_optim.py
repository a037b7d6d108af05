import numpy as np
import pytest
import torch

from pbt_rl.algos import optim

G, N = 3, 50
RATE = torch.tensor([1e-3, 1e-2, 3e-2])
BETA1 = torch.tensor([0.9, 0.5, 0.99])
BETA2 = torch.tensor([0.999, 0.9, 0.99])
ALPHA = torch.tensor([0.99, 0.8, 0.95])
NO_LIMIT = torch.full((G,), 1e9)


def adam(param, grad, mean, square, steps, scale, rate, beta1, beta2):
    """Step by the kernel."""
    gradients = optim.Gradients(param, grad, scale, rate, steps)
    optim.ADAM.step(gradients, [mean, square], {"adam_beta1": beta1, "adam_beta2": beta2})


def rmsprop(param, grad, square, scale, rate, alpha):
    """Likewise."""
    gradients = optim.Gradients(param, grad, scale, rate, torch.ones(len(scale)))
    optim.RMSPROP.step(gradients, [square], {"rmsprop_alpha": alpha})


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(step: int) -> torch.Tensor:
    return numbers(G, N, seed=10 + step) * torch.tensor([[0.1], [1.0], [20.0]])


def run_adam(param, steps, *, kernel: bool, scale=None, updates=None):
    mean, square = torch.zeros_like(param), torch.zeros_like(param)
    scale = torch.ones(G) if scale is None else scale
    for step in range(steps):
        count = torch.full((G,), step + 1.0, dtype=torch.float64) if updates is None else updates
        if kernel:
            adam(param, gradients(step), mean, square, count, scale, RATE, BETA1, BETA2)
        else:
            step_G = (RATE.double() / (1 - BETA1.double() ** count)).float()
            root_G = (1 - BETA2.double() ** count).rsqrt().float()
            optim.adam_torch(param, gradients(step), mean, square, scale, step_G, BETA1, BETA2, root_G)
    return param, mean, square


@pytest.mark.parametrize("kernel", [True, False])
def test_adam_rows_equal_torch_optim_adam(kernel):
    param = numbers(G, N)
    alone = [torch.nn.Parameter(row.clone()) for row in param]
    optimizers = [
        torch.optim.Adam([p], lr=float(RATE[g]), betas=(float(BETA1[g]), float(BETA2[g])), eps=optim.ADAM_EPS)
        for g, p in enumerate(alone)
    ]
    for step in range(20):
        for g, (p, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
            p.grad = gradients(step)[g]
            optimizer.step()
    run_adam(param, 20, kernel=kernel)
    torch.testing.assert_close(param, torch.stack([p.detach() for p in alone]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [True, False])
def test_rmsprop_rows_have_epsilon_inside_the_root(kernel):
    param = numbers(G, N)
    expected, square_expected = param.double().numpy(), np.zeros((G, N))
    square = torch.zeros_like(param)
    rate, alpha = RATE.double().numpy()[:, None], ALPHA.double().numpy()[:, None]
    for step in range(20):
        g = gradients(step).double().numpy()
        square_expected = alpha * square_expected + (1 - alpha) * g**2
        expected = expected - rate * g / np.sqrt(square_expected + optim.RMSPROP_EPS)
        do = rmsprop if kernel else optim.rmsprop_torch
        do(param, gradients(step), square, torch.ones(G), RATE, ALPHA)
    np.testing.assert_allclose(param.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(square.numpy(), square_expected, rtol=1e-5, atol=1e-6)


def test_grad_scale_limits_each_row_like_torch_clips_one_policy():
    grad = gradients(0)
    limits = torch.tensor([0.3, 1e9, 5.0])
    norm, scale = optim.grad_scale(grad, limits)
    for g in range(G):
        p = torch.nn.Parameter(torch.zeros(N))
        p.grad = grad[g].clone()
        torch.testing.assert_close(norm[g], torch.nn.utils.clip_grad_norm_([p], float(limits[g])))
        torch.testing.assert_close(grad[g] * scale[g], p.grad)
    assert scale[1] == 1
    assert scale[0] < 1
    assert scale[2] < 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_gets_scale_zero(bad):
    grad = gradients(0)
    grad[1, 7] = bad
    norm, scale = optim.grad_scale(grad, NO_LIMIT)
    assert not torch.isfinite(norm[1])
    assert scale.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("rule", ["adam", "rmsprop"])
def test_row_with_scale_zero_is_left_untouched_bit_for_bit(kernel, rule):
    def step(bad: bool):
        param, mean, square = numbers(G, N), numbers(G, N, seed=1), numbers(G, N, seed=2).abs()
        before = [x.clone() for x in (param, mean, square)]
        grad = gradients(0)
        if bad:
            grad[1, 7] = torch.nan
        _, scale = optim.grad_scale(grad, NO_LIMIT)
        if rule == "rmsprop":
            do = rmsprop if kernel else optim.rmsprop_torch
            do(param, grad, square, scale, RATE, ALPHA)
        elif kernel:
            adam(param, grad, mean, square, torch.full((G,), 5.0).double(), scale, RATE, BETA1, BETA2)
        else:
            optim.adam_torch(param, grad, mean, square, scale, RATE, BETA1, BETA2, torch.ones(G))
        return before, [param, mean, square]

    before, after = step(bad=True)
    _, healthy = step(bad=False)
    for x0, x1, good in zip(before, after, healthy, strict=True):
        assert torch.equal(x0[1], x1[1])
        assert torch.equal(x1[[0, 2]], good[[0, 2]])
    assert not torch.equal(before[0][0], after[0][0])
