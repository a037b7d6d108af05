"""Losses of one policy over flat samples [N], with their statistics. The pack loops or vmaps over policies.

Coefficients are floats or 0-d tensors; nothing branches on a value or leaves the device, so all of it runs
under torch.func.vmap and in a captured graph. Means are over the samples that `valid` marks: the others
change neither loss nor gradients, whatever they hold, NaN included. Without any valid sample all is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scalar = float | Tensor
Stats = dict[str, Tensor]

_MAX_LOG_RATIO = 20.0
"""exp() of more overflows after a few products, and one overflow turns a masked gradient into NaN."""


def ppo_loss(
    *,
    log_prob_N: Tensor,
    old_log_prob_N: Tensor,
    advantage_N: Tensor,
    value_N: Tensor,
    old_value_N: Tensor,
    target_N: Tensor,
    entropy_N: Tensor,
    valid_N: Tensor,
    clip_ratio: Scalar,
    clip_value: Scalar,
    value_coef: Scalar,
    entropy_coef: Scalar,
) -> tuple[Tensor, Stats]:
    """PPO with clipped ratio and clipped value: (loss, stats), all 0-d float32.

        ratio = exp(log_prob - old_log_prob)
        policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * A))
        V_clip = old_value + clip(value - old_value, -clip_value, clip_value)
        value_loss = 0.5 * mean(max((value - target)^2, (V_clip - target)^2))
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    (Schulman et al. 2017, Eq. 7 and 9; the value is clipped as in its reference implementation.) log_prob,
    value and entropy carry gradients; `old` ones are those of acting time. Values, old values and targets are
    in one, normalised, unit. Stats (detached): policy_loss, value_loss, entropy; kl, the k3 estimate of
    KL(old || new), mean(ratio - 1 - log ratio), never negative; clip_fraction, the share of samples
    whose ratio is outside the clip; explained_variance of the targets by the old values.
    """
    log_ratio_N = _masked(log_prob_N - old_log_prob_N, valid_N).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    advantage_N = _masked(advantage_N, valid_N)
    old_value_N, target_N = _masked(old_value_N, valid_N), _masked(target_N, valid_N)
    value_N = _masked(value_N, valid_N)

    ratio_N = log_ratio_N.exp()
    clipped_ratio_N = _clamp(ratio_N, 1 - clip_ratio, 1 + clip_ratio)
    policy_loss = -_mean(torch.minimum(ratio_N * advantage_N, clipped_ratio_N * advantage_N), valid_N)

    clipped_value_N = old_value_N + _clamp(value_N - old_value_N, -clip_value, clip_value)
    error_N = torch.maximum((value_N - target_N).square(), (clipped_value_N - target_N).square())
    value_loss = 0.5 * _mean(error_N, valid_N)

    entropy = _mean(entropy_N, valid_N)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    stats = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "kl": _mean(ratio_N - 1 - log_ratio_N, valid_N).detach(),
        "clip_fraction": _mean(((ratio_N - 1).abs() > clip_ratio).float(), valid_N).detach(),
        "explained_variance": explained_variance(old_value_N, target_N, valid_N),
    }
    return loss, stats


def a3c_loss(
    *,
    log_prob_N: Tensor,
    advantage_N: Tensor,
    value_N: Tensor,
    target_N: Tensor,
    entropy_N: Tensor,
    valid_N: Tensor,
    value_coef: Scalar,
    entropy_coef: Scalar,
) -> tuple[Tensor, Stats]:
    """Advantage actor-critic (Mnih et al. 2016, section 4): (loss, stats), all 0-d float32.

        policy_loss = -mean(log_prob * A)
        value_loss = 0.5 * mean((value - target)^2)
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    A mean, where the paper and GA3C sum over the steps: the learning rate then does not depend on how many
    steps a batch has. Arguments and stats as in `ppo_loss`, without those of its clipping; the explained
    variance is that of the present values.
    """
    advantage_N, target_N = _masked(advantage_N, valid_N), _masked(target_N, valid_N)
    value_N = _masked(value_N, valid_N)
    policy_loss = -_mean(log_prob_N * advantage_N, valid_N)
    value_loss = 0.5 * _mean((value_N - target_N).square(), valid_N)
    entropy = _mean(entropy_N, valid_N)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    stats = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "explained_variance": explained_variance(value_N.detach(), target_N, valid_N),
    }
    return loss, stats


def normalize_advantage(advantage: Tensor, valid: Tensor) -> Tensor:
    """Shift and scale to mean 0 and deviation 1 over all valid samples of one policy; the others become 0."""
    mean, variance = _moments(advantage, valid)
    return _masked((advantage - mean) / (variance.sqrt() + 1e-8), valid)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var[target - value] / Var[target] over valid samples, 0-d; 0 where the targets do not vary."""
    _, of_target = _moments(target, valid)
    _, of_error = _moments(target - value, valid)
    return torch.where(of_target > 1e-8, 1 - of_error / of_target.clamp_min(1e-8), 0.0)


def _masked(x: Tensor, valid: Tensor) -> Tensor:
    """0 where invalid. A select, not a product: 0 * NaN is NaN, in the gradient too."""
    return torch.where(valid, x, 0.0)


def _mean(x: Tensor, valid: Tensor) -> Tensor:
    return _masked(x, valid).sum() / valid.sum().clamp_min(1)


def _moments(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    mean = _mean(x, valid)
    return mean, _mean((x - mean).square(), valid)


def _clamp(x: Tensor, low: Scalar, high: Scalar) -> Tensor:
    return torch.clamp(x, low, high)  # type: ignore[arg-type]  # both are floats or both are tensors
