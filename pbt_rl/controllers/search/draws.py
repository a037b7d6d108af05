"""Configurations of a search: drawn from the prior, or the points of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from random import Random

from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.errors import ConfigError

Sampling = Callable[[Mapping[str, HyperSpec], int, Random], list[Values]]
"""(specs of the searched values, how many, generator) -> that many configurations."""


def draw_random(specs: Mapping[str, HyperSpec], number: int, rng: Random) -> list[Values]:
    """Draw every value from its prior, on its own."""
    return [{name: sample_prior(spec, rng) for name, spec in specs.items()} for _ in range(number)]


def draw_grid(specs: Mapping[str, HyperSpec], number: int, rng: Random) -> list[Values]:
    """Return points of the smallest grid that has `number` of them, in an order drawn from `rng`.

    A grid grows by one level at a time, over the specs in their order and again from the first; a spec that
    still has one level keeps its default. A grid that can grow no more (a few categories) is used repeatedly.
    """
    levels = grid_levels(specs, number)
    points = [dict(zip(specs, point, strict=True)) for point in product(*levels)]
    rng.shuffle(points)
    return [dict(points[i % len(points)]) for i in range(number)]


def grid_levels(specs: Mapping[str, HyperSpec], number: int) -> list[list[float]]:
    """Return the levels of every spec, least first, so that the grid has at least `number` points if it can."""
    most = [_distinct(spec) for spec in specs.values()]
    sizes = [1] * len(most)
    while math.prod(sizes) < number and sizes != most:
        for i, limit in enumerate(most):
            if sizes[i] < limit and math.prod(sizes) < number:
                sizes[i] += 1
    return [
        [spec.clamp(spec.default)]
        if size == 1
        else [prior_quantile(spec, (i + 0.5) / size) for i in range(size)]
        for spec, size in zip(specs.values(), sizes, strict=True)
    ]


def prior_quantile(spec: HyperSpec, share: float) -> float:
    """Return the value below which this share (0 to 1) of the prior lies. See `sample_prior` for the priors."""
    prior = spec.start
    if prior.choices:
        return spec.clamp(prior.choices[min(int(share * len(prior.choices)), len(prior.choices) - 1)])
    if prior.scale in ("log", "one_minus"):
        mirrored = prior.scale == "one_minus"
        sign = -1 if prior.high < 0 else 1
        ends = (1 - prior.low, 1 - prior.high) if mirrored else (sign * prior.low, sign * prior.high)
        if min(ends) <= 0:
            raise ConfigError(
                f"{spec.name} {prior.low:g}..{prior.high:g} has no grid on the scale {prior.scale}: "
                f"give {'an upper end below 1' if mirrored else 'ends on one side of 0'}, or the scale linear"
            )
        at = math.exp((1 - share) * math.log(ends[0]) + share * math.log(ends[1]))
        return spec.clamp(1 - at if mirrored else sign * at)
    if prior.scale == "linear":
        return spec.clamp(prior.low + share * (prior.high - prior.low))
    low = math.ceil(prior.low)
    return spec.clamp(low + math.floor(share * (math.floor(prior.high) - low + 1)))


def _distinct(spec: HyperSpec) -> float:
    """Return how many levels the spec can have."""
    prior = spec.start
    if prior.choices:
        return len(prior.choices)
    if prior.low == prior.high:
        return 1
    if prior.scale in ("log", "one_minus", "linear") and spec.scale != "integer":
        return math.inf
    return math.floor(prior.high) - math.ceil(prior.low) + 1
