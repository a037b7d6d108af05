"""Explore rules of IMPALA, Ray and Orion, and pairwise learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.controllers.explore import (
    ANEW,
    PROBABILITY,
    ByChance,
    Categories,
    EachByChance,
    Explore,
    ExploreRule,
    FromPriors,
    PerturbFactors,
    Specs,
    change_probability,
    move_choice,
    move_each,
    moved_by,
    mutated,
    probability,
)
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.options.declare import option


@dataclass(frozen=True)
class ExplorePipeline(ByChance):
    """Sequence of rules (Orion). As soon as a rule has changed any value of the member, its result is used.

    `rules[0]` determines the start values. Orion's default is `(ResampleAll(tuned, 0.2), MultiplyOrDivide(tuned, 1.2,
    volatility=1e-4))`.
    """

    rules: tuple[Explore, ...]

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the start values of `rules[0]`."""
        return self.rules[0].initial(values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the result of the first rule that changes a value."""
        moved = (rule.mutate(values, rng) for rule in self.rules)
        return next((new for new in moved if new != values), dict(values))

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the result of the first rule that changes a value. No value is redrawn."""
        moved = (mutated(rule, values, rng) for rule in self.rules)
        return next((new for new in moved if new != values), dict(values))


@dataclass(frozen=True)
class Resample(FromPriors, ByChance):
    """Ray's resampling: redraw each value from its prior with `probability`, independently of the others.

    otherwise: rule for values that are not redrawn (Ray: `PerturbFactors`). None: these values stay unchanged.
    """

    tuned: Mapping[str, HyperSpec]
    probability: float = option(0.25, at_least=0, at_most=1)
    otherwise: Explore | None = None

    def mutate(self, values: Values, rng: Random) -> Values:
        """Redraw each value with `probability`, and apply `otherwise` to the remaining values."""
        others = self.otherwise.mutate(values, rng) if self.otherwise else values
        return move_each(
            self.tuned,
            others,
            lambda spec, value: sample_prior(spec, rng) if rng.random() < self.probability else value,
        )

    def perturb(self, values: Values, rng: Random) -> Values:
        """Apply `otherwise` to all values."""
        return mutated(self.otherwise, values, rng) if self.otherwise else dict(values)


@dataclass(frozen=True)
class MultiplyOrDivide(EachByChance):
    """Multiplication or division of each value by a constant factor (Orion's `PerturbExplore`; IMPALA).

    Multiplication and division are equally likely. An integer changes by at least 1 unless a bound prevents the change.
    volatility: a value that leaves its bounds is set to the bound, and moved inwards by a half-normal draw.
    `volatility` is the std of the normal distribution, in the unit of the value (Orion: 1e-4).
    probability: probability that a value changes (Orion: 1; IMPALA: 1/3). categories: mutation of choices.
    """

    tuned: Mapping[str, HyperSpec]
    factor: float = option(1.2, at_least=1)
    volatility: float = option(0.0, at_least=0)
    probability: float = option(1.0, at_least=0, at_most=1)
    categories: Categories = "uniform"

    def moved(self, spec: HyperSpec, value: float, rng: Random) -> float:
        """Multiply or divide the value.

        A result out of bounds is set to the bound, and moved inwards (see `volatility`).
        """
        moved = moved_by(spec, value, self.factor, multiply=rng.random() < 0.5)
        if self.volatility and not spec.low <= moved <= spec.high:
            inwards = abs(rng.gauss(0, self.volatility))
            moved = spec.high - inwards if moved > spec.high else spec.low + inwards
        return spec.clamp(moved)


@dataclass(frozen=True)
class ResampleAll(FromPriors, ByChance):
    """Orion's `ResampleExplore`: with `probability`, redraw *all* tuned values together from their priors."""

    tuned: Mapping[str, HyperSpec]
    probability: float = option(0.2, at_least=0, at_most=1)

    def mutate(self, values: Values, rng: Random) -> Values:
        """With `probability`, redraw all tuned values. Otherwise, return the values unchanged."""
        return self.initial(values, rng) if rng.random() < self.probability else dict(values)

    def perturb(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Return the values unchanged."""
        return dict(values)


def _multiply_or_divide(pbt: PbtConfig, tuned: Specs) -> Explore:
    return MultiplyOrDivide(tuned, probability=change_probability(pbt))


def _resample(pbt: PbtConfig, tuned: Specs) -> Explore:
    return Resample(tuned, probability(pbt, ANEW), PerturbFactors(tuned, pbt.factors))


def _resample_all(pbt: PbtConfig, tuned: Specs) -> Explore:
    otherwise = MultiplyOrDivide(tuned, volatility=1e-4)
    return ExplorePipeline((ResampleAll(tuned, probability(pbt, 0.2)), otherwise))


MULTIPLY_OR_DIVIDE = ExploreRule(
    _multiply_or_divide, (PROBABILITY,), help="multiply or divide each value by 1.2 (IMPALA)."
)
RESAMPLE = ExploreRule(
    _resample,
    ("pbt.factors", PROBABILITY),
    help="redraw each value from its prior, or change the value as `factors` does (Ray).",
)
RESAMPLE_ALL = ExploreRule(
    _resample_all,
    (PROBABILITY,),
    help="redraw all values from their priors, or multiply or divide each value by 1.2 (Orion).",
)


# -- pairwise learning --------------------------------------------------------------------------------------


@dataclass
class PairwiseLearning(FromPriors):
    """Pairwise learning of GPBT-PL (Bai and Cheng 2024, arXiv 2404.08233, section IV; details from the authors' code).

    Member l copies the weights of its donor w. Each value of l is redrawn with `probability`. The remaining values move
    from h_l, the value of l, towards h_w, the value of w:

            v <- inertia r1 v + pull r2 (h_w - h_l)          r1, r2 uniform in 0..1, per value
            h <- h_l + v, clipped to the bounds

    The velocity v is in the unit of the value, and starts at 0. A redrawn value keeps its velocity. A value with the
    scale `choice` moves to a neighbour of the donor's choice (`adjacent` in `explore.Categories`). A member without a
    donor keeps its values.
    In the paper, the worst quarter copies members of the best quarter: --pbt.exploit truncation --pbt.replace-fraction
    0.25 --pbt.replace-gap 0.
    """

    tuned: Mapping[str, HyperSpec]
    probability: float = option(0.25, at_least=0, at_most=1)
    inertia: float = option(1.0, at_least=0)
    pull: float = option(1.0, at_least=0)
    _velocity: dict[int, dict[str, float]] = field(default_factory=dict, init=False)

    def mutate(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Return the values unchanged. Only called for members without a donor."""
        return dict(values)

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return all values of a copy. own: the member's values before the replacement. better: the donor's values.

        member: id of the member, which has its own velocity.
        """
        velocity = self._velocity.setdefault(member, {})
        learned = dict(better)
        for name, spec in self.tuned.items():
            if rng.random() < self.probability:
                learned[name] = sample_prior(spec, rng)
            elif spec.scale == "choice":
                learned[name] = move_choice(spec, better[name], "adjacent", rng)
            else:
                pulled = self.pull * rng.random() * (better[name] - own[name])
                velocity[name] = self.inertia * rng.random() * velocity.get(name, 0.0) + pulled
                learned[name] = spec.clamp(own[name] + velocity[name])
        return learned


PAIRWISE = ExploreRule(
    lambda pbt, tuned: PairwiseLearning(tuned, probability(pbt, 0.25)),
    (PROBABILITY,),
    help="a copy keeps its own values, and moves them towards the values of its donor (GPBT-PL).",
)
