"""How values change: mutation of a member's hypers and shaping, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pbt_rl.pbt.hypers import HyperSpec, Values

ZERO_STEP = 0.1
"""A value of 0 moves by this share of (factor - 1) of the bound that it moves towards."""


class Explore(Protocol):
    """Makes new values from old ones. Answers a new dictionary and leaves the old one alone."""

    def initial(self, values: Values, rng: Random) -> Values:
        """Values of a member at the start of the run, other than member 0, which keeps the defaults."""

    def mutate(self, values: Values, rng: Random) -> Values:
        """Values to go on with; equal to `values` where nothing was drawn to change."""


@dataclass(frozen=True)
class Perturb:
    """Multiply or divide (evenly likely) by a uniform factor, each value on its own (Sample Factory's rule).

    tuned: name -> spec of the values that may change; all others stay as they are.
    mutation_rate: probability that one value changes in `mutate`.
    factor_min, factor_max: bounds of the factor, at least 1. At exactly 1 nothing but an integer moves.
    """

    tuned: Mapping[str, HyperSpec]
    mutation_rate: float
    factor_min: float
    factor_max: float

    def initial(self, values: Values, rng: Random) -> Values:
        """Change every tuned value once, by a squared factor: members start apart, around the defaults."""
        return {
            name: self._perturbed(name, value, rng, power=2) if name in self.tuned else value
            for name, value in values.items()
        }

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with probability `mutation_rate`."""
        return {
            name: self._perturbed(name, value, rng)
            if name in self.tuned and rng.random() < self.mutation_rate
            else value
            for name, value in values.items()
        }

    def _perturbed(self, name: str, value: float, rng: Random, power: int = 1) -> float:
        factor = rng.uniform(self.factor_min, self.factor_max) ** power
        return perturb(self.tuned[name], value, factor, multiply=rng.random() < 0.5)


def perturb(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Move a value by a factor > 1 on its scale; the result is within the bounds.

    - `linear`, `log`: the factor acts on the value and keeps its sign. `one_minus`: on 1 - value.
    - `integer`: on the value, rounded; it moves by at least 1.
    - 0 gives a factor nothing to act on. It moves to ZERO_STEP * (factor - 1) of the upper bound where the
      factor would multiply, of the lower one where it would divide (for `one_minus`: 1 - value does).
    - A value that stands at the bound it is pushed against moves the other way instead, so that it always
      moves unless the bounds are equal.

    Raises ValueError if `value` is NaN.
    """
    value = spec.clamp(value)
    moved = _move(spec, value, factor, multiply=multiply)
    return moved if moved != value else _move(spec, value, factor, multiply=not multiply)


def _move(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    if spec.scale == "one_minus":
        return spec.clamp(
            1 - _scaled(1 - value, factor, 1 - spec.low if multiply else 1 - spec.high, multiply=multiply)
        )
    moved = _scaled(value, factor, spec.high if multiply else spec.low, multiply=multiply)
    if spec.scale == "integer" and round(moved) == value:
        moved = value + (1 if multiply == (value >= 0) else -1)
    return spec.clamp(moved)


def _scaled(x: float, factor: float, bound: float, *, multiply: bool) -> float:
    if x == 0:
        return ZERO_STEP * (factor - 1) * bound
    return x * factor if multiply else x / factor
