"""Functions for losses over the valid samples [N] of one policy.

The functions run under torch.func.vmap and in CUDA graphs, because they neither branch on a value nor copy data to the
host. Invalid samples, even NaN, affect neither a loss nor its gradients. Without valid samples, results are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scalar = float | Tensor
Stats = dict[str, Tensor]

COMMON_STATISTICS = {
    "policy_loss": "policy loss",
    "value_loss": "value loss, in normalised units",
    "entropy": "entropy of the policy, in nats",
    "explained_variance": "fraction of the targets' variance explained by the values",
}
"""Statistics that every built-in actor-critic loss returns."""
VARIANCE_MIN = 1e-8
"""Targets with at most this variance count as constant."""


def masked(x: Tensor, valid: Tensor) -> Tensor:
    """Replace samples where `valid` (bool) is False by 0.

    Multiplication by the mask does not work, because 0 * NaN is NaN, in values and gradients.
    """
    return torch.where(valid, x, 0.0)


def shares(valid: Tensor) -> Tensor:
    """Return weights [N], float32: 1 / (number of valid samples) for valid samples, 0 for invalid samples."""
    return valid / valid.sum().clamp_min(1)


def mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over the valid samples, 0-d."""
    return (masked(x, valid) * shares(valid)).sum()


def normalize_advantage(advantage: Tensor, valid: Tensor) -> Tensor:
    """Normalise the valid samples of one policy to mean 0 and std 1.

    Invalid samples become 0. If all valid samples are equal, they become 0, too.
    """
    apart, variance = _moments(masked(advantage, valid), valid)
    return masked(apart, valid) / (variance.sqrt() + 1e-8)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Return 1 - Var[target - value] / Var[target] over valid samples, 0-d; 0 if Var[target] <= VARIANCE_MIN."""
    _, (of_target, of_error) = _moments(masked(torch.stack((target, target - value)), valid), valid)
    return torch.where(of_target > VARIANCE_MIN, 1 - of_error / of_target.clamp_min(VARIANCE_MIN), 0.0)


def _moments(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the deviations from the mean [..., N] and the variance [...]. Invalid entries of x must be 0."""
    share = shares(valid)
    apart = x - (x * share).sum(-1, keepdim=True)
    apart = apart - (apart * share).sum(-1, keepdim=True)  # rounding error of the mean
    return apart, (apart.square() * share).sum(-1)
