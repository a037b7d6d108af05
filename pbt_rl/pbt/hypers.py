"""The table of hyperparameters: each is declared once, here, with all that anyone needs to know of it.

The same declaration is a field of the command line (`--hypers.learning-rate`), a `[P]` tensor on the device,
and what a controller may mutate. Reward shaping is the table's other half: its names come from the
environment and are written `shaping.NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pbt_rl.errors import ConfigError

Scale = Literal["linear", "log", "one_minus", "integer"]
Values = dict[str, float]
"""A member's values: the name of a hyper or `shaping.NAME` -> number."""

SHAPING = "shaping."


@dataclass(frozen=True)
class HyperSpec:
    """How one value may change.

    scale: what a factor acts on. `linear` and `log`: the value; `one_minus`: 1 - value (gamma, betas);
    `integer`: the value, rounded, and it always moves by at least one. Priors are uniform on the scale.
    tuned: whether a controller changes it unless the user says otherwise.
    """

    name: str
    default: float
    low: float
    high: float
    scale: Scale
    tuned: bool

    def clamp(self, value: float) -> float:
        """Nearest allowed value; on the `integer` scale a whole number.

        NaN raises ValueError: it would pass through min and max.
        """
        if math.isnan(value):
            raise ValueError(f"{self.name} is NaN; it must be within {self.low:g}..{self.high:g}")
        if self.scale == "integer":
            return float(round(min(max(value, math.ceil(self.low)), math.floor(self.high))))
        return min(max(value, self.low), self.high)


def _hyper(default: float, low: float, high: float, scale: Scale, *, tuned: bool) -> Any:
    return field(default=default, metadata={"range": (low, high), "scale": scale, "tuned": tuned})


@dataclass(frozen=True)
class Hypers:
    """Hyperparameters that PBT may change; these are the values of member 0 at the start."""

    learning_rate: float = _hyper(2.5e-4, 1e-6, 1e-2, "log", tuned=True)
    """Step size of the optimiser."""
    entropy_coef: float = _hyper(0.01, 1e-5, 0.3, "log", tuned=True)
    """Weight of the entropy bonus."""
    value_coef: float = _hyper(0.5, 0.05, 5.0, "log", tuned=True)
    """Weight of the value loss."""
    clip_ratio: float = _hyper(0.1, 0.01, 0.5, "log", tuned=True)
    """PPO: clip of the probability ratio, 1 +- this."""
    clip_value: float = _hyper(1.0, 0.01, 10.0, "log", tuned=True)
    """PPO: clip of the change of the (normalised) value."""
    max_grad_norm: float = _hyper(0.5, 0.01, 100.0, "log", tuned=True)
    """Limit of the gradient's norm."""
    gamma: float = _hyper(0.99, 0.8, 0.9999, "one_minus", tuned=False)
    """Discount a step."""
    gae_lambda: float = _hyper(0.95, 0.5, 0.9999, "one_minus", tuned=False)
    """Lambda of GAE and of V-trace."""
    adam_beta1: float = _hyper(0.9, 0.5, 0.99, "one_minus", tuned=False)
    """Adam: decay of the mean."""
    adam_beta2: float = _hyper(0.999, 0.9, 0.99999, "one_minus", tuned=False)
    """Adam: decay of the square."""
    rmsprop_alpha: float = _hyper(0.99, 0.8, 0.9999, "one_minus", tuned=False)
    """RMSProp (a3c): decay of the square."""
    vtrace_rho: float = _hyper(1.0, 0.1, 10.0, "linear", tuned=False)
    """V-trace: clip of the importance weight of the error."""
    vtrace_c: float = _hyper(1.0, 0.1, 10.0, "linear", tuned=False)
    """V-trace: clip of the trace's weight."""
    unroll: int = _hyper(32, 2, 1024, "integer", tuned=False)
    """Steps that a return looks ahead; no more than --learner.rollout has."""

    def __post_init__(self) -> None:
        for spec in hyper_table(self).values():
            if not spec.low <= spec.default <= spec.high:
                raise ConfigError(
                    f"--hypers.{spec.name.replace('_', '-')} {spec.default:g} is out of bounds: "
                    f"use a value within {spec.low:g}..{spec.high:g}"
                )


def hyper_table(hypers: Hypers) -> dict[str, HyperSpec]:
    """Name -> spec of every hyper, with the values of `hypers` as defaults."""
    table = {}
    for f in fields(hypers):
        low, high = f.metadata["range"]
        value = float(getattr(hypers, f.name))
        table[f.name] = HyperSpec(f.name, value, low, high, f.metadata["scale"], f.metadata["tuned"])
    return table


def shaping_table(defaults: Mapping[str, float]) -> dict[str, HyperSpec]:
    """`shaping.NAME` -> spec of an environment's shaping. All of it is tuned; it may move a hundredfold.

    A factor never turns a sign, so the bounds keep the sign of the default; a default of 0 may leave it in
    either direction, up to 1.
    """
    table = {}
    for name, value in defaults.items():
        ends = (value / 100, value * 100) if value else (-1.0, 1.0)
        key = SHAPING + name
        table[key] = HyperSpec(key, float(value), min(ends), max(ends), "linear", tuned=True)
    return table
