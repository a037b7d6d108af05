"""How one value moves: by a factor on its scale, to another choice, to a draw from its prior. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Literal

from pbt_rl.pbt.hypers import HyperSpec, Values, sample_prior

ZERO_STEP = 0.1
"""A value of 0 moves by this share of (factor - 1) of the bound that it moves towards."""

Categories = Literal["adjacent", "uniform"]
"""Where a choice goes: to a neighbour (Ray; at the edge it may stay), or to any, itself included (Orion).
A choice of two, and so a boolean, always flips (Sample Factory)."""


def from_priors(tuned: Mapping[str, HyperSpec], values: Values, rng: Random) -> Values:
    """Draw every tuned value from its prior; the others stay."""
    return move_each(tuned, values, lambda spec, _: sample_prior(spec, rng))


def move_each(
    tuned: Mapping[str, HyperSpec], values: Values, move: Callable[[HyperSpec, float], float]
) -> Values:
    """Move every tuned value, in the order of `values`; the others stay."""
    return {name: move(tuned[name], value) if name in tuned else value for name, value in values.items()}


def move_choice(spec: HyperSpec, value: float, categories: Categories, rng: Random) -> float:
    """Move an index into choices: see `Categories`."""
    at, last = int(spec.clamp(value)), len(spec.choices) - 1
    if last == 1:
        return float(1 - at)
    if categories == "uniform":
        return float(rng.randint(0, last))
    return float(min(max(at + rng.choice((-1, 1)), 0), last))


def perturb(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Move a value by a factor > 1 on its scale; the result is within the bounds.

    A value that stands at the bound it is pushed against moves the other way instead, so that it always moves
    unless the bounds are equal. Raises ValueError if `value` is NaN.
    """
    value = spec.clamp(value)
    moved = spec.clamp(moved_by(spec, value, factor, multiply=multiply))
    return moved if moved != value else spec.clamp(moved_by(spec, value, factor, multiply=not multiply))


def moved_by(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Move a value by a factor >= 1 on its scale; the result may be out of bounds.

    - `linear`, `log`: the factor acts on the value and keeps its sign. `one_minus`: on 1 - value.
    - `integer`: on the value, rounded; it moves by at least 1.
    - 0 gives a factor nothing to act on. It moves to ZERO_STEP * (factor - 1) of the upper bound if the
      factor would multiply, of the lower one if it would divide (for `one_minus`: 1 - value does).
    """
    value = spec.clamp(value)
    if spec.scale == "one_minus":
        return 1 - _scaled(1 - value, factor, 1 - spec.low if multiply else 1 - spec.high, multiply=multiply)
    moved = _scaled(value, factor, spec.high if multiply else spec.low, multiply=multiply)
    if spec.scale == "integer":
        moved = float(round(moved))
        if moved == value:
            moved = value + (1 if multiply == (value >= 0) else -1)
    return moved


def bounded(spec: HyperSpec, value: float, volatility: float, rng: Random) -> float:
    """Return the nearest allowed value, but |N(0, volatility)| inside of a limit that was exceeded (Orion)."""
    if volatility and not spec.low <= value <= spec.high:
        inwards = abs(rng.gauss(0, volatility))
        value = spec.high - inwards if value > spec.high else spec.low + inwards
    return spec.clamp(value)


def _scaled(x: float, factor: float, bound: float, *, multiply: bool) -> float:
    if x == 0:
        return ZERO_STEP * (factor - 1) * bound
    return x * factor if multiply else x / factor
