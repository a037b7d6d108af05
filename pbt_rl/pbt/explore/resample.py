"""Values drawn anew from their priors: each on its own, or the whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.pbt.explore.base import Explore
from pbt_rl.pbt.explore.moves import from_priors, move_each
from pbt_rl.pbt.hypers import HyperSpec, Values, sample_prior
from pbt_rl.pbt.settings import within


@dataclass(frozen=True)
class Resample:
    """Draw each value anew from its prior with `probability`, on its own (Ray: 0.25 *per hyperparameter*).

    otherwise: the rule for the values that are not drawn anew (Ray: `PerturbFactors`); None leaves them.
    """

    tuned: Mapping[str, HyperSpec]
    probability: float = field(default=0.25, metadata=within(0, 1))
    otherwise: Explore | None = None

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw some values anew, and let `otherwise` change the others."""
        others = self.otherwise.mutate(values, rng) if self.otherwise else values
        return move_each(
            self.tuned,
            others,
            lambda spec, value: sample_prior(spec, rng) if rng.random() < self.probability else value,
        )


@dataclass(frozen=True)
class ResampleAll:
    """Draw the *whole configuration* anew with `probability` (Orion's `ResampleExplore`: 0.2)."""

    tuned: Mapping[str, HyperSpec]
    probability: float = field(default=0.2, metadata=within(0, 1))

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw all tuned values anew, or none."""
        return self.initial(values, rng) if rng.random() < self.probability else dict(values)
