"""Action distributions over flat parameters `params [..., D]`, the output of a network's heads.

Each distribution is a small frozen object without tensors. Actions have a last axis of A components: int32 if all
components are discrete, float32 otherwise. Rollouts store actions as sampled; `delivered` converts sampled actions for
the environment. `log_prob` and `entropy` sum over the independent components and work under torch.func.vmap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from .kernels import has_kernels, kernel

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
Numbers = Callable[[tuple[float, ...]], Tensor]


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
    """Independent normals; params are means, then log stds.

    For a sample u, the environment receives clip(centre + half * u, low, high). The policy learns from u.

    components: A, number of action components.
    low, high: bounds, infinite on a side without a bound. Empty tuples: no clipping.
    centre, half: scaling of u. Empty tuples: no scaling.
    """

    components: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    centre: tuple[float, ...] = ()
    half: tuple[float, ...] = ()

    @property
    def param_size(self) -> int:
        return 2 * self.components

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        shape = (*params.shape[:-1], self.components)
        noise = torch.randn(shape, generator=generator, device=params.device, dtype=params.dtype)
        return self.by_kernel(params, noise) if has_kernels(params) else self.by_tensors(params, noise)

    def by_tensors(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on any device. noise: [..., A], standard normal."""
        mean, log_std = params.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise), _normal_log_prob(noise, log_std)

    def by_kernel(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on a CPU by a numba kernel."""
        action, log_prob = torch.empty(noise.shape), torch.empty(noise.shape[:-1])
        _draw_normals(
            params.detach().reshape(-1, self.param_size).numpy(),
            noise.view(-1, self.components).numpy(),
            action.view(-1, self.components).numpy(),
            log_prob.view(-1).numpy(),
        )
        return action, log_prob

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return _normal_log_prob((action - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy, [...]: the sum of 0.5 log(2 pi e) + log std over the components."""
        return (params.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        if self.centre:
            action = np.array(self.centre, np.float32) + np.array(self.half, np.float32) * action
        if not self.low:
            return action
        cut: NDArray[Any] = np.clip(action, np.array(self.low, np.float32), np.array(self.high, np.float32))
        return cut

    def delivered_here(self, action: Tensor) -> Tensor:
        return self._bounded(action, partial(constant, like=action))

    def greedy(self, params: Tensor) -> Tensor:
        """Return the environment's actions for the means.

        `constant` is not called, because exports do not support it.
        """
        mean = params.chunk(2, -1)[0]
        return self._bounded(mean, mean.new_tensor)

    def _bounded(self, action: Tensor, numbers: Numbers) -> Tensor:
        if self.centre:
            action = numbers(self.centre) + numbers(self.half) * action
        return action.clamp(numbers(self.low), numbers(self.high)) if self.low else action


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return a tensor of these values with the dtype and device of `like`."""
    return _constant_on(values, like.dtype, like.device)


@cache
def _constant_on(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create each constant once, because an upload is not allowed during a CUDA graph capture.

    The cache keeps all tensors, because captured graphs read the tensors in place.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def _normal_log_prob(standardized: Tensor, log_std: Tensor) -> Tensor:
    return -(0.5 * standardized.square() + log_std + _HALF_LOG_2_PI).sum(-1)


class Distribution(Protocol):
    """Interface of an action distribution over network outputs."""

    @property
    def param_size(self) -> int:
        """Size D of the last axis of `params`."""

    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Sample (action [..., A], log_prob [...]) without gradients.

        On one device, equal generator states and equal params give equal samples. generator: None means torch's default
        generator.
        """

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Return the log probability (density) [...] of actions [..., A]. Discrete actions may have any dtype."""

    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy [...] in nats."""

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        """Convert sampled actions [..., A] to the environment's actions, within its bounds."""

    def delivered_here(self, action: Tensor) -> Tensor:
        """Do the same as `delivered` for a tensor, on the tensor's device and without synchronisation."""

    def greedy(self, params: Tensor) -> Tensor:
        """Return the environment's greedy actions [..., A], converted as by `delivered`.

        Discrete components: the most probable index. Continuous components: the mean.
        """


@kernel
def _draw_categories(
    logits: NDArray[np.float32],
    nvec: NDArray[np.int64],
    uniform: NDArray[np.float32],
    action: NDArray[np.int32],
    log_prob: NDArray[np.float32],
) -> None:
    weight = np.empty(nvec.max(), np.float64)
    for row in range(logits.shape[0]):
        log_prob_row = 0.0
        start = 0
        for component in range(nvec.shape[0]):
            size = nvec[component]
            top = logits[row, start]
            for j in range(1, size):
                top = max(top, logits[row, start + j])
            total = 0.0
            for j in range(size):
                weight[j] = math.exp(logits[row, start + j] - top)
                total += weight[j]
            threshold = uniform[row, component] * total
            cumulative, chosen = 0.0, 0
            for j in range(size - 1):
                cumulative += weight[j]
                chosen += cumulative <= threshold
            action[row, component] = chosen
            log_prob_row += logits[row, start + chosen] - top - math.log(total)
            start += size
        log_prob[row] = log_prob_row


@dataclass(frozen=True)
class Categorical:
    """Independent categoricals; params are the concatenated logits of all components, D = sum(nvec)."""

    nvec: tuple[int, ...]

    @property
    def param_size(self) -> int:
        return sum(self.nvec)

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Sample by inverting the cumulative distribution at one uniform number per component.

        The uniform number is multiplied by the last cumulative sum, because rounding may make this sum differ from 1.
        Therefore an action of probability 0 is never sampled.
        """
        shape = (*params.shape[:-1], len(self.nvec))
        uniform = torch.rand(shape, generator=generator, device=params.device, dtype=torch.float32)
        return self.by_kernel(params, uniform) if has_kernels(params) else self.by_tensors(params, uniform)

    def by_tensors(self, params: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on any device. uniform: [..., A], float32 in [0, 1)."""
        actions, log_prob = [], None
        for i, log_p in enumerate(self._log_softmax(params)):
            cumulative = log_p.exp().cumsum(-1)
            threshold = uniform[..., i : i + 1] * cumulative[..., -1:]
            action = (cumulative[..., :-1] <= threshold).sum(-1, keepdim=True)
            actions.append(action)
            part = log_p.gather(-1, action)
            log_prob = part if log_prob is None else log_prob + part
        assert log_prob is not None
        return torch.cat(actions, -1).to(torch.int32), log_prob.squeeze(-1)

    def by_kernel(self, params: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sample` on a CPU by a numba kernel."""
        action, log_prob = torch.empty(uniform.shape, dtype=torch.int32), torch.empty(params.shape[:-1])
        columns = len(self.nvec)
        _draw_categories(
            params.detach().reshape(-1, self.param_size).numpy(),
            np.array(self.nvec),
            uniform.view(-1, columns).numpy(),
            action.view(-1, columns).numpy(),
            log_prob.view(-1).numpy(),
        )
        return action, log_prob

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        chosen = [
            log_p.gather(-1, index)
            for log_p, index in zip(self._log_softmax(params), torch.split(action.long(), 1, -1), strict=True)
        ]
        return torch.cat(chosen, -1).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.stack([-(log_p.exp() * log_p).sum(-1) for log_p in self._log_softmax(params)]).sum(0)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        return action

    def delivered_here(self, action: Tensor) -> Tensor:
        return action

    def greedy(self, params: Tensor) -> Tensor:
        parts = [logits.argmax(-1) for logits in torch.split(params, list(self.nvec), -1)]
        return torch.stack(parts, -1).to(torch.int32)

    def _log_softmax(self, params: Tensor) -> list[Tensor]:
        return [log_softmax(logits, -1) for logits in torch.split(params, list(self.nvec), -1)]


@dataclass(frozen=True)
class TanhGaussian:
    """Normals squashed into bounds by tanh (Haarnoja et al. 2018, appendix C).

        a = (low + high) / 2 + (high - low) / 2 * tanh(u),   u ~ N(mean, std)

    Params are means, then log stds. Rollouts store u, because computing u from a loses digits near the bounds.
    `log_prob` is the log density of a.

    The entropy has no closed form, because it contains the mean of log |da / du| over a normal. This mean is computed
    by Gauss-Hermite quadrature with NODES points. The error per component is below 0.0001 nats for stds up to 1, 0.002
    up to 1.5 and 0.01 up to 2. For mean 0, the entropy is largest at a std of about 0.9.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    NODES: ClassVar[int] = 12

    @property
    def param_size(self) -> int:
        return 2 * len(self.low)

    @property
    def _normals(self) -> DiagonalGaussian:
        return DiagonalGaussian(len(self.low))

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Sample u; return u and the log density of a."""
        drawn, log_prob = self._normals.sample(params, generator)
        return drawn, log_prob - self._log_slope(drawn).sum(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self._normals.log_prob(params, action) - self._log_slope(action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy of a, [...]: the entropy of u plus the mean of log |da / du| over u."""
        points, weights = np.polynomial.hermite_e.hermegauss(self.NODES)
        mean, log_std = params.chunk(2, -1)
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * constant(tuple(points), params)
        slopes = self._log_slope(u.movedim(-1, 0))
        share = constant(tuple(weights / weights.sum()), params).view(-1, *(1,) * mean.dim())
        return self._normals.entropy(params) + (slopes * share).sum(0).sum(-1)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bent: NDArray[Any] = np.clip((low + high) / 2 + (high - low) / 2 * np.tanh(action), low, high)
        return bent

    def delivered_here(self, action: Tensor) -> Tensor:
        return self._bent(action, partial(constant, like=action))

    def greedy(self, params: Tensor) -> Tensor:
        mean = params.chunk(2, -1)[0]
        return self._bent(mean, mean.new_tensor)

    def _bent(self, u: Tensor, numbers: Numbers) -> Tensor:
        low, high = numbers(self.low), numbers(self.high)
        return torch.clamp((low + high) / 2 + (high - low) / 2 * u.tanh(), low, high)

    def _log_slope(self, u: Tensor) -> Tensor:
        """Return log |da / du| per component. log(1 - tanh(u)^2) is written in a form that is accurate for large u."""
        # A component with equal bounds has no density, so any constant works.
        bounds = zip(self.low, self.high, strict=True)
        halves = tuple(math.log((high - low) / 2) if high > low else 0.0 for low, high in bounds)
        return constant(halves, u) + 2 * (math.log(2) - u - softplus(-2 * u))


@dataclass(frozen=True)
class Hybrid:
    """Discrete components followed by continuous components, in actions and in params."""

    discrete: Categorical
    continuous: Distribution

    @property
    def param_size(self) -> int:
        return self.discrete.param_size + self.continuous.param_size

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Sample indices, then continuous values, all float32."""
        logits, rest = self._params(params)
        index, log_prob = self.discrete.sample(logits, generator)
        number, density = self.continuous.sample(rest, generator)
        return torch.cat((index.to(number.dtype), number), -1), log_prob + density

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        (logits, rest), (index, number) = self._params(params), self._actions(action)
        return self.discrete.log_prob(logits, index) + self.continuous.log_prob(rest, number)

    def entropy(self, params: Tensor) -> Tensor:
        logits, rest = self._params(params)
        return self.discrete.entropy(logits) + self.continuous.entropy(rest)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        columns = len(self.discrete.nvec)
        numbers = self.continuous.delivered(action[..., columns:])
        return np.concatenate((action[..., :columns], numbers), -1)

    def delivered_here(self, action: Tensor) -> Tensor:
        index, number = self._actions(action)
        return torch.cat((index, self.continuous.delivered_here(number)), -1)

    def greedy(self, params: Tensor) -> Tensor:
        logits, rest = self._params(params)
        numbers = self.continuous.greedy(rest)
        return torch.cat((self.discrete.greedy(logits).to(numbers.dtype), numbers), -1)

    def _params(self, params: Tensor) -> tuple[Tensor, Tensor]:
        size = self.discrete.param_size
        return params[..., :size].contiguous(), params[..., size:].contiguous()

    def _actions(self, action: Tensor) -> tuple[Tensor, Tensor]:
        columns = len(self.discrete.nvec)
        return action[..., :columns], action[..., columns:]


ACTION_MASK = "action_mask"
"""Name of the observation that lists the allowed discrete actions."""
_IMPOSSIBLE = -1e9
"""Logit of a masked action. The probability is exactly 0 in float32. Unlike -inf, this value times 0 is not NaN."""


def mask_logits(logits: Tensor, mask: Tensor, nvec: tuple[int, ...]) -> Tensor:
    """Mask logits so that masked actions have probability 0 and gradient 0.

    If a component is fully masked, its action 0 gets probability 1. Log probability, entropy and gradients of this
    component are then 0.

    logits: [..., D] float32, components concatenated, D = sum(nvec).
    mask: [..., D], 0 = masked.
    """
    parts = []
    for allowed in torch.split(mask != 0, list(nvec), -1):
        nothing = ~allowed.any(-1, keepdim=True)
        parts.append(torch.cat((allowed[..., :1] | nothing, allowed[..., 1:]), -1))
    return torch.where(torch.cat(parts, -1), logits, _IMPOSSIBLE)


def make_distribution(
    nvec: tuple[int, ...],
    n_continuous: int,
    *,
    low: tuple[float, ...] = (),
    high: tuple[float, ...] = (),
    units: tuple[tuple[float, ...], tuple[float, ...]] = ((), ()),
    tanh: bool = False,
) -> Distribution:
    """Build the distribution of discrete components (`nvec`), continuous components, or both.

    nvec: sizes of the discrete components. n_continuous: number of continuous components.
    low, high: bounds of the continuous components, infinite on a side without a bound. Empty tuples: unbounded.
    units: (centres, half widths) of the continuous components. A sample u is scaled to centre + half width * u.
    tanh: if True, samples are squashed into the bounds by tanh instead of clipped. All bounds must then be finite, and
    `units` is ignored.
    """
    assert nvec or n_continuous, "an action has at least one component"
    assert len(low) == len(high)
    assert not tanh or (len(low) == n_continuous and all(map(math.isfinite, (*low, *high)))), (
        "tanh needs finite bounds for every continuous component"
    )
    if not n_continuous:
        return Categorical(nvec)
    centre, half = units
    if not any(centre) and all(width == 1 for width in half):
        centre, half = (), ()  # identity
    if all(map(math.isinf, (*low, *high))):
        low, high = (), ()  # no bounds
    normals = DiagonalGaussian(n_continuous, low, high, centre, half)
    continuous: Distribution = TanhGaussian(low, high) if tanh else normals
    return Hybrid(Categorical(nvec), continuous) if nvec else continuous
