"""Distributions of continuous actions: normals, cut off at bounds. See distributions.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import has_kernels, kernel

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


@kernel
def _draw_normals(
    params: NDArray[np.float32],
    noise: NDArray[np.float32],
    action: NDArray[np.float32],
    log_prob: NDArray[np.float32],
) -> None:
    components = noise.shape[1]
    for row in range(noise.shape[0]):
        log_prob_row = 0.0
        for j in range(components):
            log_std = params[row, components + j]
            action[row, j] = params[row, j] + noise[row, j] * math.exp(log_std)
            log_prob_row -= 0.5 * noise[row, j] ** 2 + log_std + _HALF_LOG_2_PI
        log_prob[row] = log_prob_row


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normals; params are means, then log deviations.

    low, high: bounds at which draws are cut off on their way to the environment; infinite: not on that side; empty:
    none. centre, half: what
    becomes of a draw u before that, centre + half * u; empty: nothing. The policy learns from the draw itself.
    """

    components: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    centre: tuple[float, ...] = ()
    half: tuple[float, ...] = ()

    @property
    def param_size(self) -> int:
        """One mean and one log deviation per component."""
        return 2 * self.components

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Shift and scale standard normal noise."""
        noise = torch.randn(
            (*params.shape[:-1], self.components),
            generator=generator,
            device=params.device,
            dtype=params.dtype,
        )
        return self.by_kernel(params, noise) if has_kernels(params) else self.by_tensors(params, noise)

    def by_tensors(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on any device; noise: [..., A] standard normal."""
        mean, log_std = params.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise), _normal_log_prob(noise, log_std)

    def by_kernel(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on a CPU."""
        action, log_prob = torch.empty(noise.shape), torch.empty(noise.shape[:-1])
        _draw_normals(
            params.detach().reshape(-1, self.param_size).numpy(),
            noise.view(-1, self.components).numpy(),
            action.view(-1, self.components).numpy(),
            log_prob.view(-1).numpy(),
        )
        return action, log_prob

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Return the log density of the normals."""
        mean, log_std = params.chunk(2, -1)
        return _normal_log_prob((action - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor) -> Tensor:
        """Sum 0.5 log(2 pi e) + log deviation."""
        return (params.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, params_old: Tensor, params_new: Tensor) -> Tensor:
        """Sum the closed form for two normals."""
        (mean, log_std), (mean_new, log_std_new) = params_old.chunk(2, -1), params_new.chunk(2, -1)
        scale = (-2 * log_std_new).exp()
        squares = ((2 * log_std).exp() + (mean - mean_new).square()) * scale
        return (log_std_new - log_std + 0.5 * squares - 0.5).sum(-1)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        """Scale to the environment's unit and cut off at the bounds."""
        if self.centre:
            action = np.array(self.centre, np.float32) + np.array(self.half, np.float32) * action
        if not self.low:
            return action
        cut: NDArray[Any] = np.clip(action, np.array(self.low, np.float32), np.array(self.high, np.float32))
        return cut

    def delivered_here(self, action: Tensor) -> Tensor:
        """Scale to the environment's unit and cut off at the bounds."""
        if self.centre:
            action = constant(self.centre, action) + constant(self.half, action) * action
        return action.clamp(constant(self.low, action), constant(self.high, action)) if self.low else action

    def greedy(self, params: Tensor) -> Tensor:
        """Return the means, scaled and cut off at the bounds; without constants that are kept, for exports."""
        mean = params.chunk(2, -1)[0]
        if self.centre:
            mean = mean.new_tensor(self.centre) + mean.new_tensor(self.half) * mean
        return mean.clamp(*(mean.new_tensor(bound) for bound in (self.low, self.high))) if self.low else mean


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return numbers in the dtype and on the device of a tensor."""
    return _constant_on(values, like.dtype, like.device)


@cache
def _constant_on(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make them once: to bring them to a device waits for it, and no recorded call may.

    None is let go: recordings read them where they lie.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def _normal_log_prob(standardized: Tensor, log_std: Tensor) -> Tensor:
    return -(0.5 * standardized.square() + log_std + _HALF_LOG_2_PI).sum(-1)
