"""Means of losses over the valid samples [N] of one policy. The pack loops or vmaps over policies.

Nothing branches on a value or leaves the device, so all of it runs under torch.func.vmap and in a captured graph.
Invalid samples change neither a loss nor its gradients, whatever they hold, NaN included. Without any valid sample
all is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scalar = float | Tensor
Stats = dict[str, Tensor]

COMMON_STATISTICS = {
    "policy_loss": "loss of the policy",
    "value_loss": "loss of the value, in the network's unit",
    "entropy": "entropy of the policy, in nats",
    "explained_variance": "share of the targets' variance that the values explain",
}
"""Statistics that an actor-critic loss reports."""
VARIANCE_MIN = 1e-8
"""Of targets that vary."""


def masked(x: Tensor, valid: Tensor) -> Tensor:
    """Put 0 in place of invalid samples. A select, not a product: 0 * NaN is NaN, in the gradient too."""
    return torch.where(valid, x, 0.0)


def shares(valid: Tensor) -> Tensor:
    """Weights of a mean over the valid samples, [N] float32: equal, their sum is 1; all are 0 if none is valid."""
    return valid / valid.sum().clamp_min(1)


def mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid samples, 0-d."""
    return (masked(x, valid) * shares(valid)).sum()


def clamp(x: Tensor, low: Scalar, high: Scalar) -> Tensor:
    """Limit x to low..high, which are both floats or both tensors."""
    return torch.clamp(x, low, high)  # type: ignore[arg-type]  # torch types the two cases apart


def normalize_advantage(advantage: Tensor, valid: Tensor) -> Tensor:
    """Shift and scale to mean 0 and deviation 1 over all valid samples of one policy; the others become 0."""
    apart, variance = _moments(masked(advantage, valid), valid)
    return masked(apart, valid) / (variance.sqrt() + 1e-8)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var[target - value] / Var[target] over valid samples, 0-d; 0 if the targets do not vary."""
    _, (of_target, of_error) = _moments(masked(torch.stack((target, target - value)), valid), valid)
    return torch.where(of_target > VARIANCE_MIN, 1 - of_error / of_target.clamp_min(VARIANCE_MIN), 0.0)


def _moments(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances from the mean [..., N] and the variance [...] of numbers that are 0 where not valid."""
    share = shares(valid)
    apart = x - (x * share).sum(-1, keepdim=True)
    return apart, (apart.square() * share).sum(-1)
