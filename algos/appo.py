"""APPO: asynchronous PPO, on rollouts that older weights may have sampled.

The ratio is clipped (Schulman et al. 2017). The value is clipped as in the authors' reference implementation.
Advantages come from GAE or V-trace (Espeholt et al. 2018), as in Sample Factory (Petrenko et al. 2020).

By default, the clip is centred on the policy before the update (Hilton, Cobbe and Schulman 2022, "Batch size-invariance
for policy optimization", section 2). An importance weight then corrects for the older behaviour policy. With a clip
around the behaviour policy (`--learner.no-proximal`), successive batches of old rollouts may be clipped around the same
old policy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from .algorithm import Algorithm, Hypers, LossInputs, Present, UpdateSettings
from .batch import Samples
from .kernels import has_kernels, kernel
from .losses import (
    COMMON_STATISTICS,
    VARIANCE_MIN,
    Scalar,
    Stats,
    explained_variance,
    masked,
    normalize_advantage,
    shares,
)
from .optim import ADAM
from .returns import Trajectories, gae, vtrace

_MAX_LOG_RATIO = 20.0
"""Limit of |log ratio|. Products of larger ratios overflow float32, which turns a masked gradient into NaN."""
MAX_IMPORTANCE = 2.0
"""Upper limit of importance weights. V-trace limits its ratios for the same reason: without a limit, a few samples
dominate a step."""
_MAX_LOG_IMPORTANCE = math.log(MAX_IMPORTANCE)
STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "explained_variance")
"""Statistics of `ppo_loss`, in this order; see `APPO.statistics`."""


def ppo_loss(
    s: LossInputs,
    *,
    clip_ratio: Scalar,
    clip_value: Scalar,
    value_coef: Scalar,
    entropy_coef: Scalar,
    kl_coef: Scalar,
) -> tuple[Tensor, Stats]:
    """Return the PPO loss with clipped ratio and clipped value, and statistics, all 0-d float32.

        importance = min(exp(old_log_prob - acting_log_prob), MAX_IMPORTANCE)
        ratio = exp(log_prob - old_log_prob)
        policy_loss = -mean(importance * min(ratio * A, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * A))
        V_clip = old_value + clip(value - old_value, -clip_value, clip_value)
        value_loss = 0.5 * mean(max((value - target)^2, (V_clip - target)^2))
        kl = mean(ratio - 1 - log(ratio))
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy) + kl_coef * kl

    Sources: Schulman et al. 2017, Eq. 7 and 9; value clipping as in the authors' reference implementation. The
    importance weight is pi_prox / pi_behav of Hilton et al. 2022, section 2, with an upper limit. It is 1 if the `old`
    inputs come from the behaviour policy. Coefficients are floats or 0-d tensors. Stats are detached; see
    `APPO.statistics`.

    `kl` estimates KL(old || new) from the actions taken (Schulman's k3) and is never negative. Value and gradient of
    the estimate are unbiased for actions of the old policy. Of the old policy, the estimate needs only the log_prob of
    these actions, not the distribution. The code uses expm1, because ratio - 1 loses significant digits if the policy
    has hardly changed.

    There are two implementations: `_by_tensors` for any device and `_ppo` for CPUs. Change both together:
    tests/algos/test_losses.py compares them.
    """
    coefs = (clip_ratio, clip_value, value_coef, entropy_coef, kl_coef)
    if has_kernels(s.log_prob):
        of_coefs = torch.stack([torch.as_tensor(x, dtype=torch.float32) for x in coefs])
        fixed = torch.stack((s.old_log_prob, s.old_value, s.acting_log_prob, s.target, s.advantage))
        loss, means, _ = _ByKernel.apply(s.log_prob, s.entropy, s.value, fixed, s.valid, of_coefs)  # type: ignore[no-untyped-call] # torch's has no annotations
    else:
        loss, means = _by_tensors(s, *coefs)
    return loss, dict(zip(STATISTICS, means, strict=True))


def _by_tensors(
    s: LossInputs,
    clip_ratio: Scalar,
    clip_value: Scalar,
    value_coef: Scalar,
    entropy_coef: Scalar,
    kl_coef: Scalar,
) -> tuple[Tensor, Tensor]:
    """Compute `ppo_loss` by tensor operations, on any device. Return (0-d loss, STATISTICS [6])."""
    numbers = (
        s.log_prob,
        s.entropy,
        s.value,
        s.old_log_prob,
        s.old_value,
        s.acting_log_prob,
        s.target,
        s.advantage,
    )
    log_prob, entropy, value, old_log_prob, old_value, acting_log_prob, target, advantage = masked(
        torch.stack(numbers), s.valid
    )
    log_ratio = (log_prob - old_log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    moved = log_ratio.expm1()
    # min(ratio A, clip(ratio) A) limits the ratio above where A >= 0, and below where A < 0.
    with torch.no_grad():
        importance = (old_log_prob - acting_log_prob).clamp(max=_MAX_LOG_IMPORTANCE).exp()
        least = torch.where(advantage < 0, -clip_ratio, -1.0)
        most = torch.where(advantage >= 0, clip_ratio, math.inf)
    surrogate = (moved.clamp(least, most) + 1) * (importance * advantage)
    kl = moved - log_ratio

    # The gradient of the value is 0 where the clipped value has the larger error.
    change, wanted = value - old_value, target - old_value
    with torch.no_grad():
        clipped = torch.clamp(change, -clip_value, clip_value) - wanted  # type: ignore[arg-type] # floats or tensors
    error = change - wanted
    squares = torch.where(clipped.abs() > error.abs(), clipped, error).square()

    share = shares(s.valid)
    of_each = 0.5 * value_coef * squares - surrogate - entropy_coef * entropy + kl_coef * kl
    with torch.no_grad():
        outside = (moved.abs() > clip_ratio).float()
        means = (torch.stack((-surrogate, 0.5 * squares, entropy, kl, outside)) * share).sum(-1)
        explained = explained_variance(old_value, target, s.valid)
    return (of_each * share).sum(), torch.cat((means, explained.unsqueeze(0)))


class _ByKernel(torch.autograd.Function):
    """`ppo_loss` and its gradients as one CPU kernel instead of a hundred tensor operations.

    Axes: ... policies (no axis, or one under vmap), N samples of a policy.

    Inputs: log_prob, entropy, value and valid [..., N]. fixed [5, ..., N]: old_log_prob, old_value, acting_log_prob,
    target and advantage. coefs [5, ...]: the coefficients in the order of the arguments of `ppo_loss`.
    Outputs: loss [...], STATISTICS [6, ...], gradients [3, ..., N] of log_prob, entropy and value.
    """

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob, entropy, value, fixed, valid, coefs = inputs
        learned = torch.stack((log_prob, entropy, value))
        loss, slopes = log_prob.new_empty(log_prob.shape[:-1]), torch.empty_like(learned)
        means = log_prob.new_empty((len(STATISTICS), *loss.shape))
        size = log_prob.shape[-1]
        _ppo(
            learned.view(3, -1, size).numpy(),
            fixed.reshape(5, -1, size).numpy(),
            valid.reshape(-1, size).numpy(),
            coefs.reshape(5, -1).numpy(),
            loss.view(-1).numpy(),
            means.view(len(STATISTICS), -1).numpy(),
            slopes.view(3, -1, size).numpy(),
        )
        return loss, means, slopes

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (*(slopes * grads[0].unsqueeze(-1)).unbind(), None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Any, tuple[int, int, int]]:
        """Move the policy axis directly before N. In the coefficients, move the policy axis to the end."""
        behind = (0, 0, 0, 1, 0, 1)
        size = info.batch_size
        moved = [
            x.unsqueeze(to).expand(*x.shape[:to], size, *x.shape[to:]) if of is None else x.movedim(of, to)
            for x, of, to in zip(inputs, in_dims, behind, strict=True)
        ]
        return _ByKernel.apply(*moved), (0, 1, 1)  # type: ignore[no-untyped-call] # torch's has no annotations


@kernel
def _ppo(
    learned: NDArray[np.float32],
    fixed: NDArray[np.float32],
    valid: NDArray[np.bool_],
    coefs: NDArray[np.float32],
    loss: NDArray[np.float32],
    means: NDArray[np.float32],
    slopes: NDArray[np.float32],
) -> None:
    """Write loss, STATISTICS (`means`) and gradients (`slopes`) of P policies. Sums are float64.

    Shapes: as in `_ByKernel`, with the axis P in place of "...".

    Let r = ratio - 1, w = importance * A, and n the number of valid samples; d r / d log_prob = r + 1. Gradients:

        n * d loss / d log_prob   kl_coef * r - w * (r + 1). The second term is 0 if the clipped ratio is in effect.
                                  Both terms are 0 if |log ratio| > _MAX_LOG_RATIO
        n * d loss / d entropy    -entropy_coef
        n * d loss / d value      value_coef * (value - target); 0 where V_clip has the larger error
    """
    for p in range(valid.shape[0]):
        log_prob, entropy, value = learned[0, p], learned[1, p], learned[2, p]
        old_log_prob, old_value, acting_log_prob = fixed[0, p], fixed[1, p], fixed[2, p]
        target, advantage = fixed[3, p], fixed[4, p]
        count, targets, errors = 0, 0.0, 0.0
        for i in range(valid.shape[1]):
            if valid[p, i]:
                count += 1
                targets += target[i]
                errors += target[i] - old_value[i]
        part = 1.0 / max(count, 1)
        mean_target, mean_error = targets * part, errors * part
        clip_ratio, clip_value = float(coefs[0, p]), float(coefs[1, p])
        value_coef, entropy_coef, kl_coef = float(coefs[2, p]), float(coefs[3, p]), float(coefs[4, p])
        surrogates = squares = entropies = kls = of_target = of_error = 0.0
        outside = 0
        for i in range(valid.shape[1]):
            slopes[0, p, i] = slopes[1, p, i] = slopes[2, p, i] = 0.0
            if not valid[p, i]:
                continue
            log_ratio = float(log_prob[i]) - old_log_prob[i]
            free = not abs(log_ratio) > _MAX_LOG_RATIO
            if not free:
                log_ratio = math.copysign(_MAX_LOG_RATIO, log_ratio)
            moved = math.expm1(log_ratio)
            older = float(old_log_prob[i]) - acting_log_prob[i]
            weight = advantage[i] * math.exp(min(older, _MAX_LOG_IMPORTANCE))
            limited = (advantage[i] >= 0 and moved > clip_ratio) or (advantage[i] < 0 and moved < -clip_ratio)
            surrogates += weight * (1 + (math.copysign(clip_ratio, moved) if limited else moved))
            kls += moved - log_ratio
            outside += abs(moved) > clip_ratio
            if free:
                slope = kl_coef * moved - (0.0 if limited else weight * (moved + 1))
                slopes[0, p, i] = slope * part
            entropies += entropy[i]
            slopes[1, p, i] = -entropy_coef * part
            change, wanted = float(value[i]) - old_value[i], float(target[i]) - old_value[i]
            clipped = min(max(change, -clip_value), clip_value) - wanted
            if abs(clipped) > abs(change - wanted):
                squares += clipped * clipped
            else:
                squares += (change - wanted) * (change - wanted)
                slopes[2, p, i] = value_coef * (change - wanted) * part
            of_target += (target[i] - mean_target) ** 2
            of_error += (wanted - mean_error) ** 2
        means[0, p], means[1, p], means[2, p] = -surrogates * part, 0.5 * squares * part, entropies * part
        means[3, p], means[4, p] = kls * part, outside * part
        means[5, p] = 1 - of_error / of_target if of_target * part > VARIANCE_MIN else 0.0
        loss[p] = part * (0.5 * value_coef * squares - surrogates - entropy_coef * entropies + kl_coef * kls)


def appo_loss(s: LossInputs, hypers: Hypers, settings: UpdateSettings) -> tuple[Tensor, Stats]:
    """Compute `ppo_loss`. Normalise advantages per minibatch if `normalize_advantage` of the settings is set."""
    if settings.normalize_advantage:
        s = s._replace(advantage=normalize_advantage(s.advantage, s.valid))
    return ppo_loss(s, **hypers)


def gae_of_batch(s: Samples, hypers: Hypers, settings: UpdateSettings) -> Tensor | None:
    """Return GAE advantages from the stored values, [G, T, B] in reward units. G: policies of a group.

    With V-trace, return None, because V-trace needs the current policy.
    """
    if settings.use_vtrace:
        return None
    value_T1 = torch.cat([s.value, s.last_value.unsqueeze(1)], dim=1)
    of = Trajectories(s.reward, value_T1, s.terminated, s.truncated, s.valid)
    return gae(of, hypers["gamma"], hypers["gae_lambda"], hypers["unroll"])


def vtrace_targets(
    s: Samples, hypers: Hypers, present: Present, _settings: UpdateSettings
) -> tuple[Tensor, Tensor]:
    """Return (V-trace targets, advantages) from current values, [G, T, B] each, in reward units.

    G: policies of a group. The bootstrap value after the last step is `s.last_value`, which is not recomputed for each
    minibatch.
    """
    names = ("gamma", "gae_lambda", "vtrace_rho", "vtrace_c", "unroll")
    gamma, lam, rho_limit, c_limit, unroll = (hypers[name] for name in names)
    value_T1 = torch.cat([present.value, s.last_value.unsqueeze(1)], dim=1)
    of = Trajectories(s.reward, value_T1, s.terminated, s.truncated, present.valid)
    log_ratio = torch.where(present.valid, present.log_prob - s.log_prob, 0.0)
    target, advantage = vtrace(of, log_ratio, gamma, lam, rho_limit, c_limit, unroll)
    # Divide V-trace's clipped ratio out of the advantage, because the surrogate loss multiplies by the ratio.
    rho = torch.minimum(log_ratio.exp(), rho_limit[:, None, None])
    return target, advantage / rho.clamp(min=1e-6)


APPO = Algorithm(
    loss=appo_loss,
    targets=vtrace_targets,
    fixed_advantage=gae_of_batch,
    optimizer=ADAM,
    loss_hypers=("clip_ratio", "clip_value", "value_coef", "entropy_coef", "kl_coef"),
    proximal=True,
    statistics=COMMON_STATISTICS
    | {
        "kl": "KL(old || new) estimated as mean(ratio - 1 - log ratio), never negative (Schulman's k3)",
        "clip_fraction": "fraction of samples with a ratio outside the clip range",
        "explained_variance": "fraction of the targets' variance explained by the old values",
    },
)
