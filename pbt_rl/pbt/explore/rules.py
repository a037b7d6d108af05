"""How values change: mutation of a member's hypers and shaping, within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol, runtime_checkable

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import Decision, MemberReport
from pbt_rl.pbt.exploit.base import Stateful
from pbt_rl.pbt.hypers import HyperSpec, Values, sample_prior

ZERO_STEP = 0.1
"""A value of 0 moves by this share of (factor - 1) of the bound that it moves towards."""

Categories = Literal["adjacent", "uniform"]
"""Where a choice goes: to a neighbour (Ray; at the edge it may stay), or to any, itself included (Orion).
A choice of two, and so a boolean, always flips (Sample Factory)."""


class Explore(Protocol):
    """Makes new values from old ones. Answers a new dictionary and leaves the old one alone.

    A rule that keeps state is also `Stateful`, one that learns from the comparisons is `Learning`.
    """

    def initial(self, values: Values, rng: Random) -> Values:
        """Values of a member at the start of the run, other than member 0, which keeps the defaults."""

    def mutate(self, values: Values, rng: Random) -> Values:
        """Values to go on with; equal to `values` where nothing was drawn to change."""


@runtime_checkable
class Learning(Stateful, Protocol):
    """A rule that is told of every comparison before it mutates, and of the decisions after it."""

    def before(self, members: Sequence[MemberReport]) -> None:
        """`members` are about to be decided on."""

    def after(self, members: Sequence[MemberReport], decisions: Sequence[Decision]) -> None:
        """What was decided on them."""


@dataclass(frozen=True)
class Perturb:
    """Multiply or divide (evenly likely) by a uniform factor, each value on its own (Sample Factory's rule).

    tuned: name -> spec of the values that may change; all others stay as they are.
    mutation_rate: probability that one value changes in `mutate`.
    factor_min, factor_max: bounds of the factor, at least 1. At exactly 1 nothing but an integer moves.
    reset_probability: probability that a value that changes returns to its default (Sample Factory: 0.01).
    """

    tuned: Mapping[str, HyperSpec]
    mutation_rate: float
    factor_min: float
    factor_max: float
    reset_probability: float = 0.0
    categories: Categories = "uniform"

    def initial(self, values: Values, rng: Random) -> Values:
        """Change every tuned value once, by a squared factor: members start apart, around the defaults."""
        return _each(self.tuned, values, lambda spec, value: self._perturbed(spec, value, rng, power=2))

    def mutate(self, values: Values, rng: Random) -> Values:
        """Change each tuned value with probability `mutation_rate`."""

        def move(spec: HyperSpec, value: float) -> float:
            if rng.random() >= self.mutation_rate:
                return value
            if self.reset_probability and rng.random() < self.reset_probability:
                return spec.default
            return self._perturbed(spec, value, rng)

        return _each(self.tuned, values, move)

    def _perturbed(self, spec: HyperSpec, value: float, rng: Random, power: int = 1) -> float:
        if spec.scale == "choice":
            return move_choice(spec, value, self.categories, rng)
        factor = rng.uniform(self.factor_min, self.factor_max) ** power
        return perturb(spec, value, factor, multiply=rng.random() < 0.5)


@dataclass(frozen=True)
class PerturbFactors:
    """Multiply by one of a set of factors, each value on its own: x1.2 or x0.8 (Jaderberg et al. 2017, 4.1.1; Ray).

    The paper's GANs use (2.0, 0.5). Out of the bounds the limit holds; an integer moves by at least 1 unless that
    limit stops it. probability: that one value changes (all of them in the paper).
    """

    tuned: Mapping[str, HyperSpec]
    factors: tuple[float, ...] = (1.2, 0.8)
    probability: float = 1.0
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

        return _each(self.tuned, values, move)


@dataclass(frozen=True)
class MultiplyOrDivide:
    """Multiply or divide by one factor, evenly likely, each value on its own (Orion's `PerturbExplore`; IMPALA).

    volatility: a value that leaves its bounds is set to the limit less or plus |N(0, volatility)|, in the value's
    own unit (Orion: 1e-4); 0 gives the limit itself. Integers move by at least 1 unless a limit stops them.
    probability: that one value changes (Orion: 1; IMPALA: 1/3).
    """

    tuned: Mapping[str, HyperSpec]
    factor: float = 1.2
    volatility: float = 0.0
    probability: float = 1.0
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

        return _each(self.tuned, values, move)


@dataclass(frozen=True)
class Resample:
    """Draw each value anew from its prior with `probability`, on its own (Ray: 0.25 *per hyperparameter*).

    otherwise: what happens to the values that are not drawn anew (Ray: `PerturbFactors`); None leaves them.
    """

    tuned: Mapping[str, HyperSpec]
    probability: float = 0.25
    otherwise: Explore | None = None

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw some values anew, and let `otherwise` change the others."""
        others = self.otherwise.mutate(values, rng) if self.otherwise else values
        return _each(
            self.tuned,
            others,
            lambda spec, value: sample_prior(spec, rng) if rng.random() < self.probability else value,
        )


@dataclass(frozen=True)
class ResampleAll:
    """Draw the *whole configuration* anew with `probability` (Orion's `ResampleExplore`: 0.2)."""

    tuned: Mapping[str, HyperSpec]
    probability: float = 0.2

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw all tuned values anew, or none."""
        return self.initial(values, rng) if rng.random() < self.probability else dict(values)


@dataclass(frozen=True)
class CustomExplore:
    """A user's function: `function(values, rng)` answers new values. It usually stands last in a pipeline (Ray).

    table: what its answers are clamped to; values outside of the table are taken as they come. All randomness must
    come from `rng`, or a run cannot be replayed. Raises ConfigError for an answer with other names or with NaN.
    """

    function: Callable[[Values, Random], Values]
    table: Mapping[str, HyperSpec] = field(default_factory=dict)

    def initial(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Leave the values alone."""
        return dict(values)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Ask the function."""
        answer = self.function(dict(values), rng)
        if not isinstance(answer, Mapping) or answer.keys() != values.keys():
            raise ConfigError(
                f"the custom explore function answered {answer!r}: it must return a value for each of {list(values)}"
            )
        broken = [name for name, value in answer.items() if math.isnan(value)]
        if broken:
            raise ConfigError(f"the custom explore function answered NaN for {', '.join(broken)}")
        return {
            name: self.table[name].clamp(answer[name]) if name in self.table else answer[name]
            for name in values
        }


@dataclass(frozen=True)
class ExplorePipeline:
    """Rules in turn. until_change: stop at the first that changes anything (Orion); else all of them (Ray).

    Orion's default is `(ResampleAll(tuned, 0.2), MultiplyOrDivide(tuned, 1.2, volatility=1e-4))` until a change.
    The first rule says how members begin.
    """

    rules: tuple[Explore, ...]
    until_change: bool

    def initial(self, values: Values, rng: Random) -> Values:
        """As the first rule does."""
        return self.rules[0].initial(values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """One rule after the other."""
        now = dict(values)
        for rule in self.rules:
            now = rule.mutate(now, rng)
            if self.until_change and now != values:
                break
        return now

    def before(self, members: Sequence[MemberReport]) -> None:
        """Tell the rules that learn."""
        for rule in self._learning():
            rule.before(members)

    def after(self, members: Sequence[MemberReport], decisions: Sequence[Decision]) -> None:
        """Tell the rules that learn."""
        for rule in self._learning():
            rule.after(members, decisions)

    def _learning(self) -> list[Learning]:
        return [rule for rule in self.rules if isinstance(rule, Learning)]

    def state_dict(self) -> dict[str, Any]:
        """The rules' states, by their slot."""
        return {str(i): r.state_dict() for i, r in enumerate(self.rules) if isinstance(r, Stateful)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for i, rule in enumerate(self.rules):
            if isinstance(rule, Stateful):
                rule.load_state_dict(state[str(i)])


def from_priors(tuned: Mapping[str, HyperSpec], values: Values, rng: Random) -> Values:
    """Draw every tuned value from its prior; the others stay."""
    return _each(tuned, values, lambda spec, _: sample_prior(spec, rng))


def _each(
    tuned: Mapping[str, HyperSpec], values: Values, move: Callable[[HyperSpec, float], float]
) -> Values:
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
    - 0 gives a factor nothing to act on. It moves to ZERO_STEP * (factor - 1) of the upper bound where the
      factor would multiply, of the lower one where it would divide (for `one_minus`: 1 - value does).
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
    """Nearest allowed value, but |N(0, volatility)| inside of a limit that was exceeded (Orion)."""
    if volatility and not spec.low <= value <= spec.high:
        inwards = abs(rng.gauss(0, volatility))
        value = spec.high - inwards if value > spec.high else spec.low + inwards
    return spec.clamp(value)


def _scaled(x: float, factor: float, bound: float, *, multiply: bool) -> float:
    if x == 0:
        return ZERO_STEP * (factor - 1) * bound
    return x * factor if multiply else x / factor
