"""Explore rules: how the values of a changing member move.

Contains the protocol, the registry entry, the moves of a single value, and the rules of Sample Factory and of Jaderberg
et al. Pure: seeded Python without processes, files or torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, runtime_checkable

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.errors import require
from pbt_rl.options.declare import option
from pbt_rl.registry import EXPLOIT_RULES


class Explore(Protocol):
    """Explore rule: a dataclass that makes new values from old ones without modifying them.

    Fields with `init=False` are its state (see `state.py`). A rule that learns from comparisons also implements
    `Learning`.
    """

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the first values of a member. Not called for member 0."""

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the new values. They equal `values` if no change was drawn."""


Specs = Mapping[str, HyperSpec]


@dataclass(frozen=True)
class ExploreRule:
    """Registry entry of an explore rule."""

    build: Callable[[PbtConfig, Specs], Explore]
    options: tuple[str, ...] = ()
    """Names of the options that `build` reads (besides `pbt.exploit`)."""
    help: str = ""
    """Description. "" if the help text of the option contains it."""


class FromPriors:
    """Rule whose members start from the priors."""

    tuned: Specs

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw each tuned value from its prior."""
        return from_priors(self.tuned, values, rng)


class ByChance:
    """Stateless rule whose `mutate` may draw no change. `changed_copy` repeats it for a copy."""


DRAWS = 1000
"""Draws per copy. At a probability of 0.01 for a single value, 4 copies in 100,000 stay unchanged."""


def changed_copy(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the values of a copy. A rule that is `ByChance` draws until at least one value moves.

    An unchanged copy would duplicate its donor, and a comparison of the two would measure only noise. Values that
    cannot move (a probability of 0, equal bounds) stay.
    """
    moved = rule.mutate(values, rng)
    if isinstance(rule, ByChance):
        for _ in range(DRAWS - 1):
            if moved != values:
                break
            moved = rule.mutate(values, rng)
    return moved


@runtime_checkable
class Resampling(Protocol):
    """Rule whose `mutate` may draw values anew, from anywhere in their range. Called for copies only.

    A copy loses nothing by this. A member that keeps its weights would lose the values that it learned them with. (Ray
    and Jaderberg et al. 2017, section 4.1.1, resample copies only.)
    """

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the values of a member that keeps its weights; none drawn anew."""


def mutated(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the mutated values of a member that keeps its weights."""
    return rule.perturb(values, rng) if isinstance(rule, Resampling) else rule.mutate(values, rng)


@runtime_checkable
class Pairing(Protocol):
    """Rule that makes a copy's values from its own and its donor's. Other members use `mutate`."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return the values of a member that copies the weights of a better one."""


@runtime_checkable
class Learning(Protocol):
    """Rule that receives each comparison before it mutates, and the changes afterwards."""

    def before(self, members: Sequence[MemberReport]) -> None:
        """Observe the members that are about to be decided on."""

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Observe the changes. members: of the whole report."""


ZERO_STEP = 0.1
"""A value of 0 moves by this share of (factor - 1) times the bound that it moves towards."""

Categories = Literal["adjacent", "uniform"]
"""Move of a choice: `adjacent` (Ray; at the edge it may stay) or `uniform` over all, itself included (Orion).
A choice of two, such as a boolean, always flips (Sample Factory)."""


def from_priors(tuned: Mapping[str, HyperSpec], values: Values, rng: Random) -> Values:
    """Draw each tuned value from its prior; keep the others."""
    return move_each(tuned, values, lambda spec, _: sample_prior(spec, rng))


def move_each(
    tuned: Mapping[str, HyperSpec], values: Values, move: Callable[[HyperSpec, float], float]
) -> Values:
    """Move each tuned value, in the order of `values`; keep the others."""
    return {name: move(tuned[name], value) if name in tuned else value for name, value in values.items()}


def move_choice(spec: HyperSpec, value: float, categories: Categories, rng: Random) -> float:
    """Move an index into choices (see `Categories`)."""
    at, last = int(spec.clamp(value)), len(spec.choices) - 1
    if last == 1:
        return float(1 - at)
    if categories == "uniform":
        return float(rng.randint(0, last))
    return float(min(max(at + rng.choice((-1, 1)), 0), last))


def perturb(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Move a value by a factor > 1 on its scale, within the bounds.

    A value at the bound moves the other way instead. So it always moves, unless the bounds are equal. Raises ValueError
    if `value` is NaN.
    """
    value = spec.clamp(value)
    moved = spec.clamp(moved_by(spec, value, factor, multiply=multiply))
    return moved if moved != value else spec.clamp(moved_by(spec, value, factor, multiply=not multiply))


def moved_by(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Move a value by a factor >= 1 on its scale; the result may be out of bounds.

    - `linear`, `log`: the factor acts on the value and keeps its sign. `one_minus`: on 1 - value.
    - `integer`: the factor acts on the value, rounded. The value moves by at least 1.
    - A factor has no effect on 0. So 0 moves to ZERO_STEP * (factor - 1) of the upper bound instead of being
      multiplied, or of the lower one instead of being divided. (`one_minus`: the same for 1 - value.)
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


def _scaled(x: float, factor: float, bound: float, *, multiply: bool) -> float:
    if x == 0:
        return ZERO_STEP * (factor - 1) * bound
    return x * factor if multiply else x / factor


@dataclass(frozen=True)
class Perturb(ByChance):
    """Sample Factory's rule: multiply or divide each value by a random factor.

    A value with a user-defined range (`HyperSpec.drawn`) has no default magnitude to stay near. It starts at a draw
    from its prior, and copies sometimes draw it anew, as Ray's rule does for all values (see `Resample`).

    tuned: name -> spec of the values that may change. All others keep their value.
    mutation_rate: probability that a value changes in `mutate`.
    factor_min, factor_max: range of the uniform factor, at least 1. At exactly 1 only integers move.
    reset_probability: probability that a changing value returns to its default (Sample Factory: 0.01).
    anew: probability that a copy draws a value with a user-defined range anew.
    """

    tuned: Mapping[str, HyperSpec]
    mutation_rate: float = option(at_least=0, at_most=1)
    factor_min: float = option(at_least=1)
    factor_max: float = option(at_least=1)
    reset_probability: float = option(0.0, at_least=0, at_most=1)
    categories: Categories = "uniform"
    anew: float = option(0.0, at_least=0, at_most=1)

    def __post_init__(self) -> None:
        require(
            self.factor_max >= self.factor_min,
            "pbt.explore-option",
            f"factor_min={self.factor_min:g}",
            f"give at most factor_max, {self.factor_max:g}",
        )

    def initial(self, values: Values, rng: Random) -> Values:
        """Change each tuned value once, by a squared factor: members start spread around the defaults."""

        def move(spec: HyperSpec, value: float) -> float:
            return sample_prior(spec, rng) if spec.drawn else self._perturbed(spec, value, rng, power=2)

        return move_each(self.tuned, values, move)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw values with a user-defined range anew with probability `anew`; perturb the others."""
        return self._moved(values, rng, self.anew)

    def perturb(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with probability `mutation_rate`."""
        return self._moved(values, rng, 0.0)

    def _moved(self, values: Values, rng: Random, anew: float) -> Values:
        def move(spec: HyperSpec, value: float) -> float:
            if spec.drawn and anew and rng.random() < anew:
                return sample_prior(spec, rng)
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


class EachByChance(FromPriors, ByChance):
    """Rule that changes each value independently, with a probability."""

    probability: float
    categories: Categories

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with `probability`."""

        def move(spec: HyperSpec, value: float) -> float:
            if rng.random() >= self.probability:
                return value
            if spec.scale == "choice":
                return move_choice(spec, value, self.categories, rng)
            return self.moved(spec, value, rng)

        return move_each(self.tuned, values, move)

    @abstractmethod
    def moved(self, spec: HyperSpec, value: float, rng: Random) -> float:
        """Return the changed value. Not called for choices."""


@dataclass(frozen=True)
class PerturbFactors(EachByChance):
    """Ray's rule: multiply each value by a random one of `factors`.

    Source: Jaderberg et al. (2017), section 4.1.1, with factors 1.2 and 0.8.

    The paper's GANs use (2.0, 0.5). Results are clipped to the bounds. An integer moves by at least 1 unless it is at a
    bound.
    probability: that a value changes (1 in the paper).
    """

    tuned: Mapping[str, HyperSpec]
    factors: tuple[float, ...] = option((1.2, 0.8), at_least=1e-6)
    probability: float = option(1.0, at_least=0, at_most=1)
    categories: Categories = "adjacent"

    def moved(self, spec: HyperSpec, value: float, rng: Random) -> float:
        """Multiply the value by one of the factors."""
        factor = rng.choice(self.factors)
        up = factor >= 1
        return spec.clamp(moved_by(spec, value, factor if up else 1 / factor, multiply=up))


def _perturb(pbt: PbtConfig, tuned: Specs) -> Explore:
    factors, anew = (pbt.perturb_min, pbt.perturb_max), probability(pbt, ANEW)
    return Perturb(tuned, pbt.mutation_rate, *factors, pbt.reset_probability, anew=anew)


def _factors(pbt: PbtConfig, tuned: Specs) -> Explore:
    rule = EXPLOIT_RULES.get(pbt.exploit)
    usual = 1.0 if rule is None else rule.explore_probability
    return PerturbFactors(tuned, pbt.factors, probability(pbt, usual))


PROBABILITY = "pbt.explore_probability"
ANEW = 0.25
"""Ray's default, per value (`resample_probability`)."""


def probability(pbt: PbtConfig, usual: float) -> float:
    """Return --pbt.explore-probability, or the default of the rule."""
    return usual if pbt.explore_probability is None else pbt.explore_probability


PERTURB = ExploreRule(
    _perturb,
    ("pbt.mutation_rate", "pbt.perturb_min", "pbt.perturb_max", "pbt.reset_probability", PROBABILITY),
)
FACTORS = ExploreRule(_factors, ("pbt.factors", PROBABILITY))
