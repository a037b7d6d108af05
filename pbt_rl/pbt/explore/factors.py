"""Perturbation by fixed factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.pbt.explore.moves import Categories, bounded, from_priors, move_choice, move_each, moved_by
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.settings import within


@dataclass(frozen=True)
class PerturbFactors:
    """Multiply by one of a set of factors, each value on its own: x1.2 or x0.8 (Jaderberg et al. 2017, 4.1.1; Ray).

    The paper's GANs use (2.0, 0.5). Beyond the bounds the limit holds; an integer moves by at least 1 unless that
    limit stops it. probability: of one value to change (1 in the paper).
    """

    tuned: Mapping[str, HyperSpec]
    factors: tuple[float, ...] = field(default=(1.2, 0.8), metadata=within(1e-6))
    probability: float = field(default=1.0, metadata=within(0, 1))
    categories: Categories = "adjacent"

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with `probability`."""

        def move(spec: HyperSpec, value: float) -> float:
            if rng.random() >= self.probability:
                return value
            if spec.scale == "choice":
                return move_choice(spec, value, self.categories, rng)
            factor = rng.choice(self.factors)
            up = factor >= 1
            return spec.clamp(moved_by(spec, value, factor if up else 1 / factor, multiply=up))

        return move_each(self.tuned, values, move)


@dataclass(frozen=True)
class MultiplyOrDivide:
    """Multiply or divide by one factor, evenly likely, each value on its own (Orion's `PerturbExplore`; IMPALA).

    volatility: a value that leaves its bounds is set to the limit less or plus |N(0, volatility)|, in the value's
    own unit (Orion: 1e-4); 0 gives the limit itself. Integers move by at least 1 unless a limit stops them.
    probability: of one value to change (Orion: 1; IMPALA: 1/3).
    """

    tuned: Mapping[str, HyperSpec]
    factor: float = field(default=1.2, metadata=within(1))
    volatility: float = field(default=0.0, metadata=within(0))
    probability: float = field(default=1.0, metadata=within(0, 1))
    categories: Categories = "uniform"

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with `probability`."""

        def move(spec: HyperSpec, value: float) -> float:
            if rng.random() >= self.probability:
                return value
            if spec.scale == "choice":
                return move_choice(spec, value, self.categories, rng)
            moved = moved_by(spec, value, self.factor, multiply=rng.random() < 0.5)
            return bounded(spec, moved, self.volatility, rng)

        return move_each(self.tuned, values, move)
