"""Sample Factory's perturbation by uniform factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.errors import require
from pbt_rl.pbt.explore.moves import Categories, move_choice, move_each, perturb
from pbt_rl.pbt.hypers import HyperSpec, Values, sample_prior
from pbt_rl.pbt.settings import within


@dataclass(frozen=True)
class Perturb:
    """Multiply or divide (evenly likely) by a uniform factor, each value on its own (Sample Factory's rule).

    tuned: name -> spec of the values that may change; all others stay as they are.
    mutation_rate: probability that one value changes in `mutate`.
    factor_min, factor_max: bounds of the factor, at least 1. At exactly 1 nothing but an integer moves.
    reset_probability: probability that a value that changes returns to its default (Sample Factory: 0.01).
    """

    tuned: Mapping[str, HyperSpec]
    mutation_rate: float = field(metadata=within(0, 1))
    factor_min: float = field(metadata=within(1))
    factor_max: float = field(metadata=within(1))
    reset_probability: float = field(default=0.0, metadata=within(0, 1))
    categories: Categories = "uniform"

    def __post_init__(self) -> None:
        require(
            self.factor_max >= self.factor_min,
            "pbt.explore-option",
            f"factor_min={self.factor_min:g}",
            f"give at most factor_max, {self.factor_max:g}",
        )

    def initial(self, values: Values, rng: Random) -> Values:
        """Change every tuned value once, by a squared factor: members start apart, around the defaults.

        A value with a range of the user's own (`HyperSpec.drawn`) is drawn from its prior.
        """

        def move(spec: HyperSpec, value: float) -> float:
            return sample_prior(spec, rng) if spec.drawn else self._perturbed(spec, value, rng, power=2)

        return move_each(self.tuned, values, move)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with probability `mutation_rate`."""

        def move(spec: HyperSpec, value: float) -> float:
            if rng.random() >= self.mutation_rate:
                return value
            if self.reset_probability and rng.random() < self.reset_probability:
                return spec.clamp(spec.default)
            return self._perturbed(spec, value, rng)

        return move_each(self.tuned, values, move)

    def _perturbed(self, spec: HyperSpec, value: float, rng: Random, power: int = 1) -> float:
        if spec.scale == "choice":
            return move_choice(spec, value, self.categories, rng)
        factor = rng.uniform(self.factor_min, self.factor_max) ** power
        return perturb(spec, value, factor, multiply=rng.random() < 0.5)
