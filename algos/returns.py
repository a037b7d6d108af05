"""GAE and V-trace: advantages and value targets of the rollouts of several policies.

Axes: P policies, T steps of a rollout, B rows. `value` has T + 1 steps, because the last transition bootstraps from the
value of the next observation.

A trace (the sum over later TD errors) ends at transition t in these cases:

    terminated      the next value is 0
    truncated       the next value is the value of the final observation
    invalid         a reset, or a step that the policy does not learn from. Advantage 0, target = value
    unroll          (t + 1) % unroll == 0: bootstrap from the next value

The unroll length is applied as a mask over the fixed T. Therefore the unroll length may differ between policies.

n-step returns are `gae(lam=1) + value[:, :-1]` (Mnih et al. 2016, Algorithm S3, with n decreasing to 1 at the end of an
unroll).

A trace is computed backward over time. On a CPU, `gae` and `vtrace` call a numba kernel, which makes one pass without
the interpreter lock. On other devices they use torch operations, because numba's kernel would need a copy to the host.
Tests compare both implementations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels import kernel

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Trajectories(NamedTuple):
    """Inputs of `gae` and `vtrace`, without gradients. P may be any number of leading axes, except in the kernels."""

    reward_PTB: Tensor
    """Rewards, float32"""
    value_PT1B: Tensor
    """Values of the observations, float32 [P, T+1, B]"""
    terminated_PTB: Tensor
    """bool [P, T, B], as `truncated_PTB` and `valid_PTB`"""
    truncated_PTB: Tensor
    valid_PTB: Tensor


def gae(of: Trajectories, gamma_P: Tensor, lam_P: Tensor, unroll_P: Tensor) -> Tensor:
    """Compute generalised advantage estimates (Schulman et al. 2016, Eq. 16), [P, T, B] float32.

        delta_t = r_t + gamma * (1 - terminated_t) * V_{t+1} - V_t
        A_t = delta_t + gamma * lam * A_{t+1}        (second term only if the trace continues)

    gamma, lam, unroll: [P] on the same device.
    """
    if of.reward_PTB.device.type != "cpu":
        return gae_torch(of, gamma_P, lam_P, unroll_P)
    advantage_PTB = torch.empty(of.reward_PTB.shape, dtype=torch.float32)
    _gae_kernel(*_arrays(of), *_floats(gamma_P, lam_P), unroll_P.long().numpy(), advantage_PTB.numpy())
    return advantage_PTB


def vtrace(
    of: Trajectories,
    log_ratio_PTB: Tensor,
    gamma_P: Tensor,
    lam_P: Tensor,
    rho_P: Tensor,
    c_P: Tensor,
    unroll_P: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace (Espeholt et al. 2018, Eq. 1): (target [P, T, B], advantage [P, T, B]), float32.

        rho_t = min(rho, exp(log_ratio_t))           c_t = lam * min(c, exp(log_ratio_t))     (Remark 2)
        delta_t = rho_t * (r_t + gamma * (1 - terminated_t) * V_{t+1} - V_t)
        v_t = V_t + delta_t + gamma * c_t * (v_{t+1} - V_{t+1})     (last term only if the trace continues)
        advantage_t = rho_t * (r_t + gamma * (1 - terminated_t) * v_{t+1} - V_t)       (section 4.2)

    If the trace ends at t, v_{t+1} in the advantage is V_{t+1}.

    log_ratio: [P, T, B], log(pi(a) / mu(a)) of the learner's policy pi and the behaviour policy mu.
    rho, c: [P], upper limits of the importance weights. Other arguments: see `gae`.
    """
    hypers = (gamma_P, lam_P, rho_P, c_P)
    if of.reward_PTB.device.type != "cpu":
        return vtrace_torch(of, log_ratio_PTB, *hypers, unroll_P)
    target_PTB, advantage_PTB = torch.empty((2, *of.reward_PTB.shape), dtype=torch.float32)
    numbers = _floats(log_ratio_PTB, *hypers)
    _vtrace_kernel(*_arrays(of), *numbers, unroll_P.long().numpy(), target_PTB.numpy(), advantage_PTB.numpy())
    return target_PTB, advantage_PTB


def gae_torch(of: Trajectories, gamma_P: Tensor, lam_P: Tensor, unroll_P: Tensor) -> Tensor:
    """Compute `gae` on any device: one fused multiply-add per step."""
    gamma = gamma_P[..., None, None]
    value_PTB, next_PTB, goes_on_PTB = _parts(of, unroll_P)
    delta_PTB = torch.where(of.valid_PTB, of.reward_PTB + gamma * next_PTB - value_PTB, 0.0)
    decay_PTB = torch.where(goes_on_PTB & of.valid_PTB, gamma * lam_P[..., None, None], 0.0)
    return _backward_sum(delta_PTB, decay_PTB)


def vtrace_torch(
    of: Trajectories,
    log_ratio_PTB: Tensor,
    gamma_P: Tensor,
    lam_P: Tensor,
    rho_P: Tensor,
    c_P: Tensor,
    unroll_P: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute `vtrace` on any device."""
    gamma, lam, rho_limit, c_limit = (x[..., None, None] for x in (gamma_P, lam_P, rho_P, c_P))
    value_PTB, next_PTB, goes_on_PTB = _parts(of, unroll_P)
    ratio_PTB = log_ratio_PTB.exp()
    rho_PTB = torch.minimum(ratio_PTB, rho_limit)
    c_PTB = lam * torch.minimum(ratio_PTB, c_limit)
    delta_PTB = torch.where(of.valid_PTB, rho_PTB * (of.reward_PTB + gamma * next_PTB - value_PTB), 0.0)
    decay_PTB = torch.where(goes_on_PTB & of.valid_PTB, gamma * c_PTB, 0.0)
    correction_PTB = _backward_sum(delta_PTB, decay_PTB)  # v_t - V_t

    after_PTB = torch.cat((correction_PTB[..., 1:, :], torch.zeros_like(correction_PTB[..., :1, :])), -2)
    ahead_PTB = torch.where(goes_on_PTB & of.valid_PTB, rho_PTB * gamma * after_PTB, 0.0)
    return value_PTB + correction_PTB, delta_PTB + ahead_PTB


def _parts(of: Trajectories, unroll_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, next values, and a mask of transitions after which the trace continues, [P, T, B] each.

    The mask ignores `valid_PTB`.
    """
    following_PTB = torch.where(of.terminated_PTB, 0.0, of.value_PT1B[..., 1:, :])
    ended_PTB = of.terminated_PTB | of.truncated_PTB
    step_T1 = torch.arange(1, ended_PTB.shape[-2] + 1, device=ended_PTB.device)[:, None]
    goes_on_PTB = (step_T1 % unroll_P[..., None, None] != 0) & ~ended_PTB
    return of.value_PT1B[..., :-1, :], following_PTB, goes_on_PTB


def _backward_sum(delta_PTB: Tensor, decay_PTB: Tensor) -> Tensor:
    """Compute x_t = delta_t + decay_t * x_{t+1} backward along T, starting from 0."""
    carry = torch.zeros_like(delta_PTB[..., 0, :])
    out = []
    for delta, decay in zip(reversed(delta_PTB.unbind(-2)), reversed(decay_PTB.unbind(-2)), strict=True):
        carry = torch.addcmul(delta, decay, carry)
        out.append(carry)
    return torch.stack(out[::-1], -2)


def _floats(*tensors: Tensor) -> tuple[Floats, ...]:
    """Convert tensors to contiguous float32 arrays. With other types, numba would compile each kernel again."""
    return tuple(np.ascontiguousarray(x.numpy(), np.float32) for x in tensors)


def _arrays(of: Trajectories) -> tuple[Floats | Bools, ...]:
    return (*_floats(*of[:2]), *(np.ascontiguousarray(x.numpy(), np.bool_) for x in of[2:]))


@kernel
def _gae_kernel(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    gamma: Floats,
    lam: Floats,
    unroll: NDArray[np.int64],
    advantage: Floats,
) -> None:
    policies, steps, rows = reward.shape
    zero = np.float32(0)
    for p in range(policies):
        carry = np.zeros(rows, np.float32)  # A_{t+1}
        for t in range(steps - 1, -1, -1):
            boundary = (t + 1) % unroll[p] == 0
            for b in range(rows):
                next_value = zero if terminated[p, t, b] else value[p, t + 1, b]
                delta = reward[p, t, b] + gamma[p] * next_value - value[p, t, b]
                cut = boundary or terminated[p, t, b] or truncated[p, t, b]
                ahead = zero if cut else gamma[p] * lam[p] * carry[b]
                carry[b] = delta + ahead if valid[p, t, b] else zero
                advantage[p, t, b] = carry[b]


@kernel
def _vtrace_kernel(
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    log_ratio: Floats,
    gamma: Floats,
    lam: Floats,
    rho: Floats,
    c: Floats,
    unroll: NDArray[np.int64],
    target: Floats,
    advantage: Floats,
) -> None:
    policies, steps, rows = reward.shape
    zero = np.float32(0)
    for p in range(policies):
        carry = np.zeros(rows, np.float32)  # v_{t+1} - V_{t+1}
        for t in range(steps - 1, -1, -1):
            boundary = (t + 1) % unroll[p] == 0
            for b in range(rows):
                ratio = np.exp(log_ratio[p, t, b])
                rho_t = min(rho[p], ratio)
                c_t = lam[p] * min(c[p], ratio)
                next_value = zero if terminated[p, t, b] else value[p, t + 1, b]
                delta = rho_t * (reward[p, t, b] + gamma[p] * next_value - value[p, t, b])
                cut = boundary or terminated[p, t, b] or truncated[p, t, b]
                ahead = zero if cut else gamma[p] * carry[b]
                is_valid = valid[p, t, b]
                advantage[p, t, b] = delta + rho_t * ahead if is_valid else zero
                carry[b] = delta + c_t * ahead if is_valid else zero
                target[p, t, b] = value[p, t, b] + carry[b]
