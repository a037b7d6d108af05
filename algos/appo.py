"""APPO: PPO on rollouts of older weights.

Clipped ratio and value (Schulman et al. 2017), advantages by GAE or corrected by V-trace (Espeholt et al. 2018), as
Sample Factory combines them (Petrenko et al. 2020). The clip is around the policy at the begin of the batch, and the
policy that acted is the denominator of importance alone (Hilton, Cobbe and Schulman 2022, "Batch size-invariance for
policy optimization", section 3): else several batches of old rollouts would share one trust region.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .algorithm import Algorithm, Hypers, LossInputs, Present, UpdateSettings
from .batch import Samples
from .losses import (
    COMMON_STATISTICS,
    Scalar,
    Stats,
    clamp,
    explained_variance,
    masked,
    mean,
    normalize_advantage,
)
from .optim import ADAM
from .returns import Trajectories, gae, vtrace

_MAX_LOG_RATIO = 20.0
"""exp() of more overflows after a few products, and one overflow turns a masked gradient into NaN."""
MAX_IMPORTANCE = 2.0
"""Limit on the weight of a sample, as that of V-trace on its ratios: without one a few samples decide a step."""


def ppo_loss(
    s: LossInputs,
    *,
    clip_ratio: Scalar,
    clip_value: Scalar,
    value_coef: Scalar,
    entropy_coef: Scalar,
    kl_coef: Scalar,
) -> tuple[Tensor, Stats]:
    """PPO with clipped ratio and clipped value: (loss, stats), all 0-d float32.

        importance = min(exp(old_log_prob - acting_log_prob), MAX_IMPORTANCE)
        ratio = exp(log_prob - old_log_prob)
        policy_loss = -mean(importance * min(ratio * A, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * A))
        V_clip = old_value + clip(value - old_value, -clip_value, clip_value)
        value_loss = 0.5 * mean(max((value - target)^2, (V_clip - target)^2))
        kl = mean(ratio - 1 - log(ratio))
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy) + kl_coef * kl

    (Schulman et al. 2017, Eq. 7 and 9; the value is clipped as in its reference implementation. The importance is
    pi_prox / pi_behav of Hilton et al. 2022, Eq. 3; 1 where `old` means acting time.) Coefficients are floats or 0-d
    tensors. Stats are detached; see `APPO.statistics`.

    `kl` is KL(old || new) by the actions taken (Schulman's k3): never negative, and as an average over actions of the
    old policy it has the divergence's value and its gradient. So nothing of the old policy is kept but log_prob.
    By expm1, because ratio - 1 has lost the digits that matter where the policy has hardly moved.
    """
    log_ratio = masked(s.log_prob - s.old_log_prob, s.valid).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    advantage = masked(s.advantage, s.valid)
    old_value, target = masked(s.old_value, s.valid), masked(s.target, s.valid)
    value = masked(s.value, s.valid)

    ratio = log_ratio.exp()
    clipped_ratio = clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
    older = masked(s.old_log_prob - s.acting_log_prob, s.valid)
    importance = older.clamp(max=_MAX_LOG_RATIO).exp().clamp(max=MAX_IMPORTANCE)
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    policy_loss = -mean(importance * surrogate, s.valid)

    clipped_value = old_value + clamp(value - old_value, -clip_value, clip_value)
    error = torch.maximum((value - target).square(), (clipped_value - target).square())
    value_loss = 0.5 * mean(error, s.valid)

    entropy, kl = mean(s.entropy, s.valid), mean(torch.expm1(log_ratio) - log_ratio, s.valid)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy + kl_coef * kl
    stats = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "kl": kl.detach(),
        "clip_fraction": mean(((ratio - 1).abs() > clip_ratio).float(), s.valid).detach(),
        "explained_variance": explained_variance(old_value, target, s.valid),
    }
    return loss, stats


def appo_loss(s: LossInputs, hypers: Hypers, settings: UpdateSettings) -> tuple[Tensor, Stats]:
    """`ppo_loss` of advantages that are normalised per minibatch if the run is set so."""
    if settings.normalize_advantage:
        s = s._replace(advantage=normalize_advantage(s.advantage, s.valid))
    return ppo_loss(s, **hypers)


def gae_of_batch(s: Samples, hypers: Hypers, settings: UpdateSettings) -> Tensor | None:
    """Advantages by the old values, [G, T, B]; None if V-trace needs the present policy."""
    if settings.use_vtrace:
        return None
    value_T1 = torch.cat([s.value, s.last_value.unsqueeze(1)], dim=1)
    of = Trajectories(s.reward, value_T1, s.terminated, s.truncated, s.valid)
    return gae(of, hypers["gamma"], hypers["gae_lambda"], hypers["unroll"])


def vtrace_targets(
    s: Samples, hypers: Hypers, present: Present, _settings: UpdateSettings
) -> tuple[Tensor, Tensor]:
    """V-trace by the present values, but for the last bootstrap: see `Samples.last_value`.

    Its observation belongs to the next rollout, so it takes the value of acting time, at most the policy lag old.
    """
    names = ("gamma", "gae_lambda", "vtrace_rho", "vtrace_c", "unroll")
    gamma, lam, rho_limit, c_limit, unroll = (hypers[name] for name in names)
    value_T1 = torch.cat([present.value, s.last_value.unsqueeze(1)], dim=1)
    of = Trajectories(s.reward, value_T1, s.terminated, s.truncated, present.valid)
    log_ratio = torch.where(present.valid, present.log_prob - s.log_prob, 0.0)
    target, advantage = vtrace(of, log_ratio, gamma, lam, rho_limit, c_limit, unroll)
    # The surrogate multiplies by the ratio itself; V-trace's advantage already holds it, clipped: take it out.
    rho = torch.minimum(log_ratio.exp(), rho_limit[:, None, None])
    return target, advantage / rho.clamp(min=1e-6)


APPO = Algorithm(
    loss=appo_loss,
    targets=vtrace_targets,
    fixed_advantage=gae_of_batch,
    optimizer=ADAM,
    loss_hypers=("clip_ratio", "clip_value", "value_coef", "entropy_coef", "kl_coef"),
    learns_single_steps=True,
    proximal=True,
    statistics=COMMON_STATISTICS
    | {
        "kl": "KL(old || new) estimated as mean(ratio - 1 - log ratio), never negative (Schulman's k3)",
        "clip_fraction": "share of samples whose ratio is outside the clip",
        "explained_variance": "share of the targets' variance that the old values explain",
    },
)
