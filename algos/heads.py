"""Heads of a network: features to the parameters of the action's distribution and to a value, all float32.

Axes: N samples, F features, D distribution parameters.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from .layers import orthogonal
from .own import own_part

Deviation = Literal["free", "state"]
LOG_STD_RANGE = (-5.0, 2.0)
"""Log deviations that are computed from the state are kept within it, so that no observation makes them explode."""
FREE_LOG_STD_RANGE = (math.log(1e-4), math.log(1e4))
"""Those that are parameters may suit actions of any size (the range is Sample Factory's). Beyond it a bonus for
entropy, whose slope never ends, leads to infinite actions; below it draws are too close to their mean for float32."""


class Heads(nn.Module):
    """Policy and value as linear functions of the features, or by modules of the user's own.

    size, critic_size: of the policy's features, and of the critic's. continuous: of the D
    parameters, so many at the end are log deviations. deviation: `free`: they are parameters and depend on nothing;
    `state`: they are functions of the features too. policy, value: `linear`, or `module:factory` (see own.py).
    """

    def __init__(
        self,
        size: int,
        param_size: int,
        continuous: int,
        *,
        critic_size: int | None = None,
        deviation: Deviation = "free",
        policy: str = "linear",
        value: str = "linear",
    ) -> None:
        super().__init__()
        assert param_size >= 2 * continuous, "a normal has a mean and a deviation for each component"
        self.param_size = param_size
        free = continuous if deviation == "free" else 0
        self._limited = continuous - free
        self.policy = _head("policy-head", policy, size, param_size - free, 0.01)
        self.value = _head("value-head", value, size if critic_size is None else critic_size, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(free)) if free else None
        self.auxiliary: nn.Module | None = None
        """Heads of an algorithm's own, for what it learns besides; acting does not use them."""

    def forward(self, features: Tensor, of_critic: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map [..., F] float32 to params [..., D], value [...]. of_critic: features of its own, if it has some."""
        params = self.params(features)
        return params, self.value(features if of_critic is None else of_critic).squeeze(-1)

    def params(self, features: Tensor) -> Tensor:
        """Map [..., F] float32 to params [..., D]."""
        params: Tensor = self.policy(features)
        if self.log_std is not None:
            log_std = self.log_std.clamp(*FREE_LOG_STD_RANGE)
            params = torch.cat((params, log_std.expand(*params.shape[:-1], -1)), -1)
        elif self._limited:
            rest, log_std = params.split((self.param_size - self._limited, self._limited), -1)
            params = torch.cat((rest, log_std.clamp(*LOG_STD_RANGE)), -1)
        return params


def _head(part: str, kind: str, size: int, outputs: int, gain: float) -> nn.Module:
    if ":" in kind:
        own: nn.Module = own_part(part, kind, size, outputs)
        return own
    return orthogonal(nn.Linear(size, outputs), gain)
