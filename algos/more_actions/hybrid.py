"""Actions that are discrete and continuous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..distributions import Categorical, Distribution


@dataclass(frozen=True)
class Hybrid:
    """Discrete components, then continuous ones; params are those of the one, then those of the other."""

    discrete: Categorical
    continuous: Distribution

    @property
    def param_size(self) -> int:
        """Sum of both."""
        return self.discrete.param_size + self.continuous.param_size

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Draw indices, then numbers, all float32."""
        logits, rest = self._params(params)
        (index, log_prob), (number, density) = (
            self.discrete.sample(logits, generator),
            self.continuous.sample(rest, generator),
        )
        return torch.cat((index.to(number.dtype), number), -1), log_prob + density

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Add the log density of the numbers to the log probability of the indices."""
        (logits, rest), (index, number) = self._params(params), self._actions(action)
        return self.discrete.log_prob(logits, index) + self.continuous.log_prob(rest, number)

    def entropy(self, params: Tensor) -> Tensor:
        """Add both."""
        logits, rest = self._params(params)
        return self.discrete.entropy(logits) + self.continuous.entropy(rest)

    def kl(self, params_old: Tensor, params_new: Tensor) -> Tensor:
        """Add both."""
        (logits, rest), (logits_new, rest_new) = self._params(params_old), self._params(params_new)
        return self.discrete.kl(logits, logits_new) + self.continuous.kl(rest, rest_new)

    def delivered(self, action: NDArray[Any]) -> NDArray[Any]:
        """Keep the indices, and the numbers within their bounds."""
        columns = len(self.discrete.nvec)
        numbers = self.continuous.delivered(action[..., columns:])
        return np.concatenate((action[..., :columns], numbers), -1)

    def delivered_here(self, action: Tensor) -> Tensor:
        """Keep the indices, and the numbers within their bounds."""
        index, number = self._actions(action)
        return torch.cat((index, self.continuous.delivered_here(number)), -1)

    def greedy(self, params: Tensor) -> Tensor:
        """Join both, float32."""
        logits, rest = self._params(params)
        numbers = self.continuous.greedy(rest)
        return torch.cat((self.discrete.greedy(logits).to(numbers.dtype), numbers), -1)

    def _params(self, params: Tensor) -> tuple[Tensor, Tensor]:
        size = self.discrete.param_size
        return params[..., :size].contiguous(), params[..., size:].contiguous()

    def _actions(self, action: Tensor) -> tuple[Tensor, Tensor]:
        columns = len(self.discrete.nvec)
        return action[..., :columns], action[..., columns:]
