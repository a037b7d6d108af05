"""Rules of exploration: how the values of a member that changes are moved.

The protocol, how a rule is built, what moves one value, and the rules of Sample Factory and of Jaderberg et al.
Pure: seeded Python, no process, no file, no torch.
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
    """Makes new values from old ones: returns a new dictionary and leaves the old one alone.

    A dataclass; fields with `init=False` are its state (`state.py`). One that learns from the comparisons is also
    `Learning`.
    """

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the values of a member at the start of the run, other than member 0, which keeps the defaults."""

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the values to go on with; equal to `values` if nothing was drawn to change."""


Specs = Mapping[str, HyperSpec]


@dataclass(frozen=True)
class ExploreRule:
    """How a rule of exploration is built from the options and the specs of the tuned values."""

    build: Callable[[PbtConfig, Specs], Explore]
    options: tuple[str, ...] = ()
    """Names of the options that `build` reads (beside `pbt.exploit`)."""
    help: str = ""
    """What it does; "" if the option's own help says so."""


class FromPriors:
    """A rule whose members start from the priors."""

    tuned: Specs

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)


class ByChance:
    """A rule without a state whose `mutate` may draw no change. It is asked again for a copy: see `changed_copy`."""


DRAWS = 1000
"""For one copy. At a probability of 0.01 for a single value, 4 copies of 100,000 still remain as they were."""


def changed_copy(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the values of a copy: of a rule that goes `ByChance`, the first draw in which at least one value moves.

    A copy without a change would be its donor's twin, and a comparison of the two nothing but noise. Where nothing can
    move (a probability of 0, equal bounds) the values stay.
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
    """A rule whose `mutate` may draw values anew, from anywhere in their range. It is called for copies alone.

    A copy gives up nothing by it. A member that keeps its weights would be thrown off the values that they were
    learned with (Ray and Jaderberg et al. 2017, section 4.1.1, resample copies alone).
    """

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the values of a member that keeps its weights; none is drawn anew."""


def mutated(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the values of a member that keeps its weights and mutates."""
    return rule.perturb(values, rng) if isinstance(rule, Resampling) else rule.mutate(values, rng)


@runtime_checkable
class Pairing(Protocol):
    """A rule that makes the values of a copy from its own and its donor's. `mutate` is called for the other members."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return the values that a member goes on with from the weights of a better one."""


@runtime_checkable
class Learning(Protocol):
    """A rule that is passed every comparison before it mutates, and what came of it afterwards."""

    def before(self, members: Sequence[MemberReport]) -> None:
        """Observe the members that are about to be decided on."""

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Observe how they changed. members: of the whole report."""


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


def _scaled(x: float, factor: float, bound: float, *, multiply: bool) -> float:
    if x == 0:
        return ZERO_STEP * (factor - 1) * bound
    return x * factor if multiply else x / factor


@dataclass(frozen=True)
class Perturb(ByChance):
    """Multiply or divide (evenly likely) by a uniform factor, each value on its own (Sample Factory's rule).

    A value with a range of the user's own (`HyperSpec.drawn`) has no known size to stay near. It starts drawn from its
    prior, and copies draw it anew from time to time, as all values in Ray's rule (see `Resample`).

    tuned: name -> spec of the values that may change; all others stay as they are.
    mutation_rate: probability that one value changes in `mutate`.
    factor_min, factor_max: bounds of the factor, at least 1. At exactly 1 nothing but an integer moves.
    reset_probability: probability that a value that changes returns to its default (Sample Factory: 0.01).
    anew: probability that a copy draws a value with a range of the user's own anew.
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
        """Change every tuned value once, by a squared factor: members start apart, around the defaults."""

        def move(spec: HyperSpec, value: float) -> float:
            return sample_prior(spec, rng) if spec.drawn else self._perturbed(spec, value, rng, power=2)

        return move_each(self.tuned, values, move)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw values with a range of the user's own anew with probability `anew`; perturb the others."""
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
    """A rule that changes each value on its own, with a probability."""

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
        """Return a value that is no choice, changed."""


@dataclass(frozen=True)
class PerturbFactors(EachByChance):
    """Multiply by one of a set of factors, each value on its own: x1.2 or x0.8 (Jaderberg et al. 2017, 4.1.1; Ray).

    The paper's GANs use (2.0, 0.5). Beyond the bounds the limit holds; an integer moves by at least 1 unless that
    limit stops it. probability: of one value to change (1 in the paper).
    """

    tuned: Mapping[str, HyperSpec]
    factors: tuple[float, ...] = option((1.2, 0.8), at_least=1e-6)
    probability: float = option(1.0, at_least=0, at_most=1)
    categories: Categories = "adjacent"

    def moved(self, spec: HyperSpec, value: float, rng: Random) -> float:
        """Multiply it by one of the factors."""
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
"""Ray's, of each value (`resample_probability`)."""


def probability(pbt: PbtConfig, usual: float) -> float:
    """Return the probability that the user gives for a change of a value, else the usual one."""
    return usual if pbt.explore_probability is None else pbt.explore_probability


PERTURB = ExploreRule(
    _perturb,
    ("pbt.mutation_rate", "pbt.perturb_min", "pbt.perturb_max", "pbt.reset_probability", PROBABILITY),
)
FACTORS = ExploreRule(_factors, ("pbt.factors", PROBABILITY))
