"""Explore rules: mutation of values.

Contains the protocol of explore rules, the registry entry, mutations of a single value, and the rules of Sample Factory
and of Jaderberg et al. (2017). Pure: seeded Python without processes, files or torch.
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
    """Explore rule. Implement the rule as a dataclass.

    Methods must return new values and must not modify their arguments. Fields with `init=False` are state, which is
    saved with the run. A rule that learns from comparisons also implements `Learning`.
    """

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the start values of a member.

        Called at the start of a run for all members except member 0, and later for restarted members. values: values of
        member 0 at the start of a run, defaults for a restarted member.
        """

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the mutated values, which may equal `values`."""


Specs = Mapping[str, HyperSpec]


@dataclass(frozen=True)
class ExploreRule:
    """Registry entry of an explore rule."""

    build: Callable[[PbtConfig, Specs], Explore]
    """Function (options, specs of the tuned values) -> rule."""
    options: tuple[str, ...] = ()
    """Names of the options that `build` reads, except `pbt.exploit`."""
    help: str = ""
    """Help text. "" if the docstring of --pbt.explore describes the rule."""


class FromPriors:
    """Base of rules that draw all start values from the priors."""

    tuned: Specs

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw each tuned value from its prior."""
        return from_priors(self.tuned, values, rng)


class ByChance:
    """Base of stateless rules whose `mutate` may, by chance, leave all values unchanged.

    For a copy, `changed_copy` calls `mutate` until a value changes, at most DRAWS times.
    """


DRAWS = 1000
"""Maximum number of calls of `mutate` per copy. If a single value changes with probability 0.01, 4 of 100,000 copies
stay unchanged."""


def changed_copy(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the mutated values of a copy. For a `ByChance` rule, mutate until a value changes, at most DRAWS times.

    An unchanged copy would equal its donor, and only chance would decide their next comparison. If no value can change
    (probability 0, equal bounds), the copy stays unchanged.
    """
    moved = rule.mutate(values, rng)
    if isinstance(rule, ByChance) or isinstance(getattr(rule, "made", None), ByChance):
        for _ in range(DRAWS - 1):
            if moved != values:
                break
            moved = rule.mutate(values, rng)
    return moved


@runtime_checkable
class Resampling(Protocol):
    """Explore rule whose `mutate` may redraw values. `mutate` is only called for copies.

    For other members, `perturb` is called, because values should change little while the weights stay the same. Ray
    and Jaderberg et al. (2017), section 4.1.1, redraw only values of copies.
    """

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the mutated values of a member that keeps its weights. No value is redrawn."""


def mutated(rule: Explore, values: Values, rng: Random) -> Values:
    """Return the mutated values of a member that keeps its weights."""
    return rule.perturb(values, rng) if isinstance(rule, Resampling) else rule.mutate(values, rng)


@runtime_checkable
class Pairing(Protocol):
    """Explore rule that combines the values of member and donor. Without a donor, `mutate` is called."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return all values of a copy.

        member: id of the copy. own: the member's values before the replacement. better: the donor's values.
        """


@runtime_checkable
class Learning(Protocol):
    """Explore rule that observes comparisons."""

    def before(self, members: Sequence[MemberReport]) -> None:
        """Observe the members that may change, before the mutations of a comparison."""

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Observe the changes of a comparison, or the repairs of broken members (`Broken`), after they were decided.

        members: all members of the report.
        """


ZERO_STEP = 0.1
"""A mutation moves the value 0 by this fraction of (factor - 1) * bound (see `moved_by`)."""

Categories = Literal["adjacent", "uniform"]
"""Kind of mutation of a value with the scale `choice`. `adjacent`: the value moves to a neighbouring choice. At the
first or the last choice, the value may also stay (Ray). `uniform`: the new value is any choice, including the present
choice (Orion). A value with two choices, such as a boolean, always flips (Sample Factory).
"""


def from_priors(tuned: Mapping[str, HyperSpec], values: Values, rng: Random) -> Values:
    """Return `values` with each tuned value drawn from its prior."""
    return move_each(tuned, values, lambda spec, _: sample_prior(spec, rng))


def move_each(
    tuned: Mapping[str, HyperSpec], values: Values, move: Callable[[HyperSpec, float], float]
) -> Values:
    """Return `values` with each tuned value replaced by `move(spec, value)`. The calls follow the order of `values`."""
    return {name: move(tuned[name], value) if name in tuned else value for name, value in values.items()}


def move_choice(spec: HyperSpec, value: float, categories: Categories, rng: Random) -> float:
    """Return the mutated index of a value with the scale `choice`.

    categories: kind of mutation, `adjacent` or `uniform` (see `Categories`).
    """
    at, last = int(spec.clamp(value)), len(spec.choices) - 1
    if last == 1:
        return float(1 - at)
    if categories == "uniform":
        return float(rng.randint(0, last))
    return float(min(max(at + rng.choice((-1, 1)), 0), last))


def perturb(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Multiply or divide a value by a factor >= 1 on its scale, within the bounds. Raises ValueError for NaN.

    If a bound prevents a change, the opposite operation is applied. With a factor above 1, the value only stays
    unchanged if the bounds are equal.
    """
    value = spec.clamp(value)
    moved = spec.clamp(moved_by(spec, value, factor, multiply=multiply))
    return moved if moved != value else spec.clamp(moved_by(spec, value, factor, multiply=not multiply))


def moved_by(spec: HyperSpec, value: float, factor: float, *, multiply: bool) -> float:
    """Clip a value to its bounds, and multiply or divide it by a factor >= 1 on its scale.

    The result is possibly out of bounds.

    - `linear`, `log`: multiply or divide the value. The sign stays the same.
    - `one_minus`: multiply or divide 1 - value.
    - `integer`: multiply or divide the value, and round. The value changes by at least 1.
    - If the number that is multiplied (the value, or 1 - value) is 0, it moves to ZERO_STEP * (factor - 1) * bound,
      because a factor has no effect on 0. The bound of multiplication is `high` (`one_minus`: 1 - `low`), and the bound
      of division is `low` (`one_minus`: 1 - `high`).
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
    """Sample Factory's rule: multiply or divide values by a random factor.

    Values with a user-defined range (`HyperSpec.drawn`) start at a draw from their prior. Copies redraw these values
    with probability `anew`, as in Ray's rule (`Resample`).

    tuned: name -> spec of the values that may change.
    mutation_rate: probability that a value changes.
    factor_min, factor_max: range of the factor, which is drawn uniformly. A factor of 1 only changes integers.
    reset_probability: probability that a changing value returns to its default (Sample Factory: 0.01).
    categories: kind of mutation of values with the scale `choice`, see `Categories`.
    anew: probability that a copy redraws a value with a user-defined range.
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
        """Return `values` with each tuned value changed by a squared random factor.

        The factor is squared to spread the start values around the defaults. Values with a user-defined range are drawn
        from their priors instead. Choices change as in a mutation.
        """

        def move(spec: HyperSpec, value: float) -> float:
            return sample_prior(spec, rng) if spec.drawn else self._perturbed(spec, value, rng, power=2)

        return move_each(self.tuned, values, move)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Redraw values with a user-defined range, each with probability `anew`.

        Change each of the remaining values with probability `mutation_rate`.
        """
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
    """Base of rules that change each value independently with `probability`. categories: see `Categories`."""

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
    """Rule of Ray and of Jaderberg et al. (2017), section 4.1.1: multiply each value by a random element of `factors`.

    Results are clipped to the bounds. An integer changes by at least 1 unless a bound prevents the change.
    factors: 1.2 and 0.8 in the paper; 2.0 and 0.5 for the paper's GANs.
    probability: probability that a value changes (1 in the paper). categories: see `Categories`.
    """

    tuned: Mapping[str, HyperSpec]
    factors: tuple[float, ...] = option((1.2, 0.8), at_least=1e-6)
    probability: float = option(1.0, at_least=0, at_most=1)
    categories: Categories = "adjacent"

    def moved(self, spec: HyperSpec, value: float, rng: Random) -> float:
        """Multiply the value by a random factor."""
        factor = rng.choice(self.factors)
        up = factor >= 1
        return spec.clamp(moved_by(spec, value, factor if up else 1 / factor, multiply=up))


def _perturb(pbt: PbtConfig, tuned: Specs) -> Explore:
    factors, anew = (pbt.perturb_min, pbt.perturb_max), probability(pbt, ANEW)
    return Perturb(tuned, pbt.mutation_rate, *factors, pbt.reset_probability, anew=anew)


def _factors(pbt: PbtConfig, tuned: Specs) -> Explore:
    return PerturbFactors(tuned, pbt.factors, change_probability(pbt))


PROBABILITY = "pbt.explore_probability"
ANEW = 0.25
"""Probability that a copy redraws a value (default of Ray's `resample_probability`)."""


def probability(pbt: PbtConfig, usual: float) -> float:
    """Return --pbt.explore-probability, or `usual` if the option is not set."""
    return usual if pbt.explore_probability is None else pbt.explore_probability


def change_probability(pbt: PbtConfig) -> float:
    """Return --pbt.explore-probability. If the option is not set, return the default of the exploit rule."""
    rule = EXPLOIT_RULES.get(pbt.exploit)
    return probability(pbt, 1.0 if rule is None else rule.explore_probability)


PERTURB = ExploreRule(
    _perturb,
    ("pbt.mutation_rate", "pbt.perturb_min", "pbt.perturb_max", "pbt.reset_probability", PROBABILITY),
)
FACTORS = ExploreRule(_factors, ("pbt.factors", PROBABILITY))
