"""PB2 and PB2-Mix: bandits choose the values from what earlier ones achieved.

The bandit of choices is TV.EXP3.M, over categories that change their worth, with several plays at a time:
Parker-Holder et al. (2021), "Tuning Mixed Input Hyperparameters on the Fly for Efficient Population Based AutoRL",
algorithm 2, after Uchiya et al. (2010). C categories, B plays in a round, T rounds; weights w sum to 1.

    gamma = sqrt(C ln(C / B) / ((e - 1) B T)) if B < C (at most 1), else MANY_PLAYS_GAMMA, as in the authors' source
    p_c = (1 - gamma) w_c / sum(w) + gamma / C
    w_c <- w_c exp(gamma g_c / (C p_c)) + e / (C T) sum(w)      g_c: sum of the rewards of c's plays, each in 0..1

With B < C no category is to be played more than once in expectation, B p_c <= 1: weights above `cap` are lowered to it,
and those categories get no reward in that round.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import score
from pbt_rl.controllers.explore import ExploreRule, from_priors
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior, scale_within
from pbt_rl.controllers.state import TRANSIENT
from pbt_rl.errors import ConfigError

LEAST_DATA = 3
"""With fewer observations values are drawn from their priors."""


@dataclass(frozen=True)
class Datum:
    """One observation: an interval of a member. point: the values, 0..1 on their scales."""

    frames: int
    point: tuple[float, ...]
    improvement: float


@dataclass
class Pb2:
    """Population-Based Bandits (Parker-Holder et al. 2020, algorithm 1), as an explore rule that keeps its data.

    Each comparison gives one observation per member: the rise of its objective since the last one, per million
    frames, and its values. A Gaussian process over (time, values) with a kernel that forgets (`FadingKernel`) is
    fitted to these improvements. `mutate` returns the values that maximise the upper confidence bound mean +
    sqrt(beta) deviation, with beta = 0.2 log(0.4 n) for n observations (the authors' first source; Ray has 0.2 +
    log(0.4 n), which explores more); the values already chosen in the same comparison count as observed. The maximum
    is searched for at `candidates` points drawn evenly on the scales and, in a second draw, around the best of them.

    A copy starts from its donor's objective; if that is not known (a remembered state, a restart), its
    first interval is no observation. Choices have no distances: they are drawn evenly, the others are chosen by the
    bandit. window: only this many last observations are used. To be decided again bit for bit a run needs the same
    scikit-learn and BLAS.
    """

    tuned: Mapping[str, HyperSpec]
    window: int = field(default=200, metadata={"at_least": LEAST_DATA}, kw_only=True)
    candidates: int = field(default=1000, metadata={"at_least": 1}, kw_only=True)
    _data: list[Datum] = field(default_factory=list, init=False)
    _start: dict[int, tuple[int, float]] = field(default_factory=dict, init=False)
    """Member -> (frames, objective) at the start of its present interval."""
    _frames: int = field(default=0, init=False)
    _pending: list[tuple[float, ...]] = field(default_factory=list, init=False)
    """Points chosen in the present comparison."""
    _space: dict[str, tuple[float, float]] = field(init=False)
    """Bounds of the values that the points are made of."""
    _surrogate: Any = field(default=None, init=False, metadata=TRANSIENT)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(
                "PB2 needs scikit-learn: install it with pip install 'pbt-rl[search]', or choose another explore rule"
            )
        # Derived from `tuned`, so neither settings nor state.
        self._choices = {n: s for n, s in self.tuned.items() if s.scale == "choice"}
        self._numbers = {n: s for n, s in self.tuned.items() if s.scale != "choice" and s.low < s.high}
        self._space = self._bounds()

    def _bounds(self) -> dict[str, tuple[float, float]]:
        return {n: (s.low, s.high) for n, s in self._numbers.items()}

    def restored(self) -> None:
        """Check that the data are of the values that are tuned now. Raises ValueError."""
        points = [*(d.point for d in self._data), *self._pending]
        if self._space != self._bounds() or any(len(point) != len(self._space) for point in points):
            raise ValueError(
                f"the saved data of PB2 are of the values {', '.join(self._space) or 'none'} within their bounds, and "
                f"those tuned now differ: use the --pbt.tune of the run that saved it"
            )

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self._choices | self._numbers, values, rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """Add the members' last intervals to the data."""
        new: list[Datum] = []
        for m in members:
            start, objective = self._start.pop(m.member, None), score(m)
            self._frames = max(self._frames, m.frames)
            if math.isnan(objective):
                continue
            self._start[m.member] = m.frames, objective
            if start is not None and m.frames > start[0]:
                rise = (objective - start[1]) / (m.frames - start[0]) * 1e6
                if math.isfinite(rise):
                    new.append(Datum(m.frames, self._point(m.values), rise))
        self._data += new
        del self._data[: -self.window]
        self._pending = []
        self._surrogate = None
        self._learn(new)

    def _learn(self, new: Sequence[Datum]) -> None:
        """Take in the observations of one comparison, which are among the data now."""

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Note the objective that each copy starts from."""
        by_member = {m.member: m for m in members}
        for change in changes:
            if change.weights == "keep":
                continue
            self._start.pop(change.member, None)
            if change.source is not None and not change.remembered:
                donor = score(by_member[change.source[0]])
                if not math.isnan(donor):
                    self._start[change.member] = by_member[change.member].frames, donor

    def mutate(self, values: Values, rng: Random) -> Values:
        """Choose the most promising values."""
        chosen = self._chosen(values, {}, rng)
        return chosen | {n: sample_prior(s, rng) for n, s in self._choices.items()}

    def _chosen(self, values: Values, fixed: Values, rng: Random) -> Values:
        """Choose the most promising numbers. fixed: the choices that they stand beside."""
        point = tuple(fixed.values())
        if self._numbers and len(self._data) < LEAST_DATA:
            drawn = {n: sample_prior(s, rng) for n, s in self._numbers.items()}
            point = self._point(drawn | fixed)
        elif self._numbers:
            point = self._best_point(rng, point)
        self._pending.append(point)
        shares = zip(self._numbers.items(), point, strict=False)  # behind them stand the choices
        return values | fixed | {n: from_unit(s, share) for (n, s), share in shares}

    def _point(self, values: Values) -> tuple[float, ...]:
        return tuple(to_unit(s, values[n]) for n, s in self._numbers.items())

    def _best_point(self, rng: Random, fixed: tuple[float, ...]) -> tuple[float, ...]:
        """Return the most promising point. fixed: its last coordinates, which are choices."""
        import numpy as np  # noqa: PLC0415 - with the optional extra

        from pbt_rl.controllers.gaussian_process import Surrogate  # noqa: PLC0415 - needs the optional extra

        first = self._data[0].frames
        span = max(self._frames - first, 1)

        def rows(points: Any, frames: Any) -> Any:
            times = (np.asarray(frames) - first) / span
            return np.column_stack([np.broadcast_to(times, len(points)), points])

        if self._surrogate is None:
            X = rows([d.point for d in self._data], [d.frames for d in self._data])
            self._surrogate = Surrogate(X, np.array([d.improvement for d in self._data]), len(fixed))
        pending = rows(self._pending, self._frames) if self._pending else None
        beta = max(0.0, 0.2 * math.log(0.4 * len(self._data)))
        bound = self._surrogate.bound(beta, pending)
        shape = self.candidates, len(self._numbers)
        numbers = np.reshape([rng.random() for _ in range(math.prod(shape))], shape)
        for spread in (0.1, 0.02, 0.0):
            points = np.column_stack([numbers, np.broadcast_to(fixed, (len(numbers), len(fixed)))])
            best = numbers[np.argmax(bound(rows(points, self._frames)))]
            if spread:
                steps = np.reshape([rng.gauss(0, spread) for _ in range(math.prod(shape))], shape)
                numbers = np.vstack([best, np.clip(best + steps, 0.0, 1.0)])
        return (*best.tolist(), *fixed)


def to_unit(spec: HyperSpec, value: float) -> float:
    """Return the position of a value between its bounds, 0..1, on its scale."""
    low, high, at = (_stretched(spec, x) for x in (spec.low, spec.high, spec.clamp(value)))
    return (at - low) / (high - low)


def from_unit(spec: HyperSpec, share: float) -> float:
    """Return the inverse of `to_unit`; an integer is rounded."""
    low, high = _stretched(spec, spec.low), _stretched(spec, spec.high)
    at = low + share * (high - low)
    scale = scale_within(spec.scale, spec.low, spec.high)
    if scale == "log":
        return spec.clamp(math.exp(at) if spec.high > 0 else -math.exp(-at))
    return spec.clamp(1 - math.exp(-at)) if scale == "one_minus" else spec.clamp(at)


def _stretched(spec: HyperSpec, value: float) -> float:
    scale = scale_within(spec.scale, spec.low, spec.high)
    if scale == "log":
        return math.log(value) if spec.high > 0 else -math.log(-value)
    return -math.log(1 - value) if scale == "one_minus" else value


PB2 = ExploreRule(lambda _, tuned: Pb2(tuned), help="a Gaussian process chooses (needs the extra `search`).")


# -- the bandit of choices ----------------------------------------------------------------------------------

MANY_PLAYS_GAMMA = 0.2


def exploration(categories: int, plays: int, rounds: int) -> float:
    """Return gamma."""
    if plays >= categories:
        return MANY_PLAYS_GAMMA
    return min(1.0, math.sqrt(categories * math.log(categories / plays) / ((math.e - 1) * plays * rounds)))


def cap(weights: Sequence[float], plays: int, gamma: float) -> float:
    """Return the largest weight k with B p <= 1: k / (sum of min(w, k)) = (1 / B - gamma / C) / (1 - gamma).

    Infinite if no weight has to be lowered.
    """
    if plays >= len(weights) or gamma >= 1:
        return math.inf
    share = (1 / plays - gamma / len(weights)) / (1 - gamma)
    ordered = sorted(weights, reverse=True)
    if ordered[0] <= share * math.fsum(ordered):
        return math.inf
    for lowered, (_, following) in enumerate(pairwise([*ordered, 0.0]), start=1):
        rest = math.fsum(ordered[lowered:])
        if lowered * share < 1 and share * rest / (1 - lowered * share) >= following:
            return share * rest / (1 - lowered * share)
    return math.inf


def probabilities(weights: Sequence[float], plays: int, rounds: int) -> list[float]:
    """Return p of each category; they sum to 1."""
    gamma = exploration(len(weights), plays, rounds)
    most = cap(weights, plays, gamma)
    lowered = [min(w, most) for w in weights]
    total = math.fsum(lowered)
    return [(1 - gamma) * w / total + gamma / len(weights) for w in lowered]


def updated(weights: Sequence[float], played: Sequence[tuple[int, float]], rounds: int) -> list[float]:
    """Return the weights after a round. played: (category, reward in 0..1) of each play."""
    if not played:
        return list(weights)
    plays, categories = len(played), len(weights)
    gamma = exploration(categories, plays, rounds)
    most, p = cap(weights, plays, gamma), probabilities(weights, plays, rounds)
    lowered = [min(w, most) for w in weights]
    gained = [0.0] * categories
    for category, reward in played:
        if weights[category] < most:
            gained[category] += reward / p[category]
    drift = math.e / (categories * rounds) * math.fsum(lowered)
    raised = [w * math.exp(gamma * g / categories) + drift for w, g in zip(lowered, gained, strict=True)]
    total = math.fsum(raised)
    return [w / total for w in raised]


# -- PB2-Mix ------------------------------------------------------------------------------------------------


@dataclass
class Pb2Mix(Pb2):
    """PB2-Mix (Parker-Holder et al. 2021, algorithm 1): choices by a bandit of their own, numbers by PB2's given those.

    Each choice has weights that TV.EXP3.M learns from the improvements of a comparison (above), brought to 0..1
    by the least and the greatest among the data. The choices of a copy are drawn by their probabilities, each on
    its own. Then the numbers maximise the upper confidence bound of a Gaussian process over time, numbers and choices
    (`MixedKernel`) at these choices. Without choices it is PB2. rounds: T of the bandit, comparisons of the run.
    """

    rounds: int = field(default=100, metadata={"at_least": 1}, kw_only=True)
    _weights: dict[str, list[float]] = field(default_factory=dict, init=False)
    """Of each choice, in the order of its categories; even before anything was learned."""
    _plays: int = field(default=1, init=False)
    """Members in the last comparison that was learned from."""

    def restored(self) -> None:
        """Check that the weights are of the choices that are tuned now. Raises ValueError."""
        super().restored()
        strange = [n for n, w in self._weights.items() if len(w) != len(self._choices[n].choices)]
        if strange:
            raise ValueError(f"the saved weights of {strange[0]} are of other choices")

    def _bounds(self) -> dict[str, tuple[float, float]]:
        return super()._bounds() | {n: (s.low, s.high) for n, s in self._choices.items()}

    def _point(self, values: Values) -> tuple[float, ...]:
        return (*super()._point(values), *(values[n] for n in self._choices))

    def _learn(self, new: Sequence[Datum]) -> None:
        if not new:
            return
        least = min(d.improvement for d in self._data)
        span = max(d.improvement for d in self._data) - least
        self._plays = len(new)
        for at, name in enumerate(self._choices, start=len(self._numbers)):
            played = [(int(d.point[at]), (d.improvement - least) / span if span > 0 else 0.0) for d in new]
            self._weights[name] = updated(self._weights_of(name), played, self.rounds)

    def _weights_of(self, name: str) -> list[float]:
        categories = len(self._choices[name].choices)
        return self._weights.get(name) or [1 / categories] * categories

    def _draw(self, name: str, rng: Random) -> float:
        p = probabilities(self._weights_of(name), self._plays, self.rounds)
        return float(rng.choices(range(len(p)), p)[0])

    def mutate(self, values: Values, rng: Random) -> Values:
        """Draw the choices, then choose the most promising numbers beside them."""
        return self._chosen(values, {name: self._draw(name, rng) for name in self._choices}, rng)


PB2_MIX = ExploreRule(lambda _, tuned: Pb2Mix(tuned), help="that, of choices too (needs the extra `search`).")
