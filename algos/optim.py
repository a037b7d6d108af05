"""Adam and RMSProp for stacked policies, with one value of each hyperparameter per policy.

On a CPU a numba kernel updates one policy after another, without the GIL. On other devices one fused kernel (Adam,
fused.py) or torch operations update all policies together.

Axes: G policies to update, N parameters of a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .fused import adam_kernel
from .kernels import finite_kernel

ADAM_EPS = 1e-5
"""Epsilon of Adam, as in PPO's reference implementations. With 1e-6, Breakout is learned more slowly than with 1e-5
(docs/lab/games.md)."""
RMSPROP_EPS = 1e-5
"""Epsilon of RMSProp, added inside the square root, as in A3C and GA3C. GA3C uses 0.1 for losses that are sums over
steps. The gradients of our mean losses are smaller: even with 0.01, toy/identity is not learned."""


@dataclass(frozen=True)
class Gradients:
    """Inputs of one optimiser step of G policies with N parameters each."""

    param_GN: Tensor
    """Parameters, changed in place."""
    grad_GN: Tensor
    scale_G: Tensor
    """Factor of the gradient. Parameters and moments of a policy with factor 0 stay unchanged."""
    learning_rate_G: Tensor
    steps_G: Tensor
    """float64, number of optimiser steps including this one, at least 1."""


OF_ALL_OPTIMIZERS = ("learning_rate", "max_grad_norm")
"""Hyperparameters that every optimiser reads."""


@dataclass(frozen=True)
class Optimizer:
    """Update rule from gradients to parameter steps."""

    moments: tuple[str, ...]
    """Names of the optimiser's state tensors: one number per parameter, initially 0."""
    hypers: tuple[str, ...]
    """Hyperparameters that this optimiser reads in addition to OF_ALL_OPTIMIZERS."""
    step: Callable[[Gradients, list[Tensor], Mapping[str, Tensor]], None]
    """Change parameters and moments ([G, N], in the order of `moments`) in place."""


@finite_kernel
def _adam_policy(
    param: NDArray[np.float32],
    grad: NDArray[np.float32],
    mean: NDArray[np.float32],
    square: NDArray[np.float32],
    scale: np.float32,
    step_size: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    root_correction: np.float32,
    eps: np.float32,
) -> None:
    one = np.float32(1.0)
    for i in range(param.shape[0]):
        g = grad[i] * scale
        m = beta1 * mean[i] + (one - beta1) * g
        v = beta2 * square[i] + (one - beta2) * g * g
        mean[i] = m
        square[i] = v
        param[i] -= step_size * m / (np.sqrt(v) * root_correction + eps)


@finite_kernel
def _rmsprop_policy(
    param: NDArray[np.float32],
    grad: NDArray[np.float32],
    square: NDArray[np.float32],
    scale: np.float32,
    learning_rate: np.float32,
    alpha: np.float32,
    eps: np.float32,
) -> None:
    one = np.float32(1.0)
    for i in range(param.shape[0]):
        g = grad[i] * scale
        v = alpha * square[i] + (one - alpha) * g * g
        square[i] = v
        param[i] -= learning_rate * g / np.sqrt(v + eps)


def grad_scale(grad_GN: Tensor, max_norm_G: Tensor) -> tuple[Tensor, Tensor]:
    """Return each policy's gradient norm and clipping factor: (norm_G, scale_G), float32.

    grad: [G policies, N parameters]. The factor is 0 if the norm is not finite. An optimiser step with factor 0 does
    not change the policy.
    """
    norm_G = torch.linalg.vector_norm(grad_GN, dim=1)
    scale_G = torch.clamp(max_norm_G / (norm_G + 1e-6), max=1.0)
    return norm_G, torch.where(norm_G < math.inf, scale_G, 0.0)


def _adam(g: Gradients, moments: list[Tensor], hypers: Mapping[str, Tensor]) -> None:
    """Step each policy whose factor is not 0 by Adam, in place (Kingma & Ba 2015, Algorithm 1, bias-corrected)."""
    mean_GN, square_GN = moments
    beta1_G, beta2_G = hypers["adam_beta1"], hypers["adam_beta2"]
    # The bias correction 1 - beta^t is exact only if beta has never changed.
    correction1_G, correction2_G = 1 - torch.stack((beta1_G, beta2_G)).double() ** g.steps_G
    step_G = (g.learning_rate_G.double() / correction1_G).float()
    root_G = correction2_G.rsqrt().float()
    of_policy_G = (g.scale_G, step_G, beta1_G, beta2_G, root_G)
    step, _ = adam_on(g.param_GN.device)
    step(g.param_GN, g.grad_GN, mean_GN, square_GN, *of_policy_G)


@cache
def adam_on(device: torch.device) -> tuple[Callable[..., None], str]:
    """Return (Adam step for a device, log line). A GPU uses one fused kernel, if available.

    The step has the arguments of `adam_torch`. On a CPU the log line is empty.
    """
    if device.type == "cpu":
        return _adam_by_kernel, ""
    made = adam_kernel(device, adam_torch, ADAM_EPS)
    if isinstance(made, str):
        return adam_torch, f"Adam runs as many small kernels, which is slower: {made}"
    return made, "Adam runs as one fused kernel"


def _adam_by_kernel(
    param_GN: Tensor, grad_GN: Tensor, mean_GN: Tensor, square_GN: Tensor, *of_policy_G: Tensor
) -> None:
    state = [x.numpy() for x in (param_GN, grad_GN, mean_GN, square_GN)]
    for i, own in enumerate(torch.stack(of_policy_G, 1).numpy()):
        if own[0] > 0:
            _adam_policy(*(x[i] for x in state), *own, np.float32(ADAM_EPS))


def adam_torch(
    param_GN: Tensor,
    grad_GN: Tensor,
    mean_GN: Tensor,
    square_GN: Tensor,
    scale_G: Tensor,
    step_G: Tensor,
    beta1_G: Tensor,
    beta2_G: Tensor,
    root_G: Tensor,
) -> None:
    """Step policies with a nonzero factor `scale_G` by Adam, in place, on any device.

    step_G: learning rate / (1 - beta1^t). root_G: 1 / sqrt(1 - beta2^t). t: number of optimiser steps.
    """
    active_G1 = (scale_G > 0).unsqueeze(1)
    g_GN = torch.where(active_G1, grad_GN, torch.zeros_like(grad_GN)) * scale_G.unsqueeze(1)
    b1_G1, b2_G1 = beta1_G.unsqueeze(1), beta2_G.unsqueeze(1)
    mean_GN.copy_(torch.where(active_G1, b1_G1 * mean_GN + (1 - b1_G1) * g_GN, mean_GN))
    square_GN.copy_(torch.where(active_G1, b2_G1 * square_GN + (1 - b2_G1) * g_GN * g_GN, square_GN))
    change_GN = step_G.unsqueeze(1) * mean_GN / (square_GN.sqrt() * root_G.unsqueeze(1) + ADAM_EPS)
    param_GN.sub_(torch.where(active_G1, change_GN, torch.zeros_like(change_GN)))


def _rmsprop(g: Gradients, moments: list[Tensor], hypers: Mapping[str, Tensor]) -> None:
    """Step each policy whose factor is not 0 by RMSProp, in place, without momentum (Mnih et al. 2016, Eq. S2-S3)."""
    (square_GN,) = moments
    state = (g.param_GN, g.grad_GN, square_GN)
    of_policy_G = (g.scale_G, g.learning_rate_G, hypers["rmsprop_alpha"])
    if g.param_GN.device.type != "cpu":
        rmsprop_torch(*state, *of_policy_G)
        return
    for i, own in enumerate(torch.stack(of_policy_G, 1).numpy()):
        if own[0] > 0:
            _rmsprop_policy(*(x[i].numpy() for x in state), *own, np.float32(RMSPROP_EPS))


def rmsprop_torch(
    param_GN: Tensor,
    grad_GN: Tensor,
    square_GN: Tensor,
    scale_G: Tensor,
    learning_rate_G: Tensor,
    alpha_G: Tensor,
) -> None:
    """Step policies with a nonzero factor `scale_G` by RMSProp, in place, on any device."""
    active_G1 = (scale_G > 0).unsqueeze(1)
    g_GN = torch.where(active_G1, grad_GN, torch.zeros_like(grad_GN)) * scale_G.unsqueeze(1)
    a_G1 = alpha_G.unsqueeze(1)
    square_GN.copy_(torch.where(active_G1, a_G1 * square_GN + (1 - a_G1) * g_GN * g_GN, square_GN))
    change_GN = learning_rate_G.unsqueeze(1) * g_GN / (square_GN + RMSPROP_EPS).sqrt()
    param_GN.sub_(change_GN)


ADAM = Optimizer(("mean", "square"), ("adam_beta1", "adam_beta2"), _adam)
RMSPROP = Optimizer(("square",), ("rmsprop_alpha",), _rmsprop)
