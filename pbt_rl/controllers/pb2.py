"""PB2: explore rule that chooses values with a bandit, from the improvements under earlier values."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import score
from pbt_rl.controllers.explore import ExploreRule, from_priors
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior, scale_within
from pbt_rl.controllers.state import TRANSIENT
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import option

LEAST_DATA = 3
"""Minimum number of observations for the model. With fewer observations, values are drawn from their priors."""


@dataclass(frozen=True)
class Datum:
    """Observation of a member in one interval between two comparisons.

    frames: frames of the member at the end of the interval. point: tuned values except choices and values with equal
    bounds, each mapped to 0..1 on its scale. improvement: increase of the objective per million frames.
    """

    frames: int
    point: tuple[float, ...]
    improvement: float


@dataclass
class Pb2:
    """Population-Based Bandits (Parker-Holder et al. 2020, algorithm 1) as a stateful explore rule.

    Each comparison gives at most one observation per member (`Datum`). A Gaussian process over (time, values) with a
    forgetting kernel (`FadingKernel`) is fitted to the improvements.

    `mutate` returns the values with the highest upper confidence bound: mean + sqrt(beta) std. For n observations, beta
    is 0.2 log(0.4 n). This formula is from the authors' first source code. Ray uses 0.2 + log(0.4 n), which explores
    more. For the std, values that were chosen earlier in the same comparison count as observed. The maximum is searched
    among random points, and then among random points around the best point.

    In the first interval of a copy, the improvement is measured from the donor's objective. If this objective is
    unknown (a remembered state, a restart), the interval is not observed. Values with the scale `choice` are drawn
    from their priors, because choices have no distances.
    tuned: name -> spec of the values that may change.
    window: maximum number of latest observations that are used. candidates: number of random points per search step.

    A bit for bit audit requires the versions of scikit-learn and BLAS that the run used.
    """

    tuned: Mapping[str, HyperSpec]
    window: int = option(200, at_least=LEAST_DATA)
    candidates: int = option(1000, at_least=1)
    _data: list[Datum] = field(default_factory=list, init=False)
    _start: dict[int, tuple[int, float]] = field(default_factory=dict, init=False)
    """Member -> (frames, objective) at the start of its present interval."""
    _frames: int = field(default=0, init=False)
    _pending: list[tuple[float, ...]] = field(default_factory=list, init=False)
    """Points chosen in the present comparison."""
    _space: dict[str, tuple[float, float]] = field(init=False)
    """Name of each dimension of a point -> bounds."""
    _surrogate: Any = field(default=None, init=False, metadata=TRANSIENT)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(
                "--pbt.explore pb2 requires scikit-learn: pip install 'pbt-rl[search]', or use another rule"
            )
        # Not fields, because they are derived from `tuned` and must not be saved.
        self._choices = {n: s for n, s in self.tuned.items() if s.scale == "choice"}
        self._numbers = {n: s for n, s in self.tuned.items() if s.scale != "choice" and s.low < s.high}
        self._space = self._bounds()

    def _bounds(self) -> dict[str, tuple[float, float]]:
        return {n: (s.low, s.high) for n, s in self._numbers.items()}

    def restored(self) -> None:
        """Raise ValueError if the restored data are for other values or bounds than those of this run."""
        points = [*(d.point for d in self._data), *self._pending]
        if self._space != self._bounds() or any(len(point) != len(self._space) for point in points):
            raise ValueError(
                f"the saved data of PB2 are for the values {', '.join(self._space) or 'none'}, but --pbt.tune now has "
                f"other values or bounds: use the --pbt.tune of the saved run"
            )

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw each tuned value from its prior. Values with equal bounds stay unchanged."""
        return from_priors(self._choices | self._numbers, values, rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """Add an observation for each member whose objectives at the start and end of its interval are finite.

        Each member with a finite objective then starts its next interval.
        """
        for m in members:
            start, objective = self._start.pop(m.member, None), score(m)
            self._frames = max(self._frames, m.frames)
            if math.isnan(objective):
                continue
            self._start[m.member] = m.frames, objective
            if start is not None and m.frames > start[0]:
                rise = (objective - start[1]) / (m.frames - start[0]) * 1e6
                if math.isfinite(rise):
                    self._data.append(Datum(m.frames, self._point(m.values), rise))
        del self._data[: -self.window]
        self._pending = []
        self._surrogate = None

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Start the next interval of each copied member at its donor's objective.

        The next interval of a restarted member, and of a copy of a remembered state, is not observed.
        """
        by_member, compared = {m.member: m for m in members}, dict(self._start)
        for change in changes:
            if change.weights == "keep":
                continue
            self._start.pop(change.member, None)
            if change.source is not None and not change.remembered:
                donor = by_member[change.source[0]]
                # Prefer the objective of this comparison, because `members` also contain older episodes.
                frames, objective = compared.get(donor.member, (-1, math.nan))
                objective = objective if frames == donor.frames else score(donor)
                if not math.isnan(objective):
                    self._start[change.member] = by_member[change.member].frames, objective

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the values with the highest upper confidence bound.

        With fewer than `LEAST_DATA` observations, draw the values from their priors.
        """
        point: tuple[float, ...] = ()
        if self._numbers and len(self._data) < LEAST_DATA:
            point = self._point({n: sample_prior(s, rng) for n, s in self._numbers.items()})
        elif self._numbers:
            point = self._best_point(rng)
        self._pending.append(point)
        chosen = {n: from_unit(s, share) for (n, s), share in zip(self._numbers.items(), point, strict=True)}
        return values | chosen | {n: sample_prior(s, rng) for n, s in self._choices.items()}

    def perturb(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Return the values unchanged, because values that the model chooses may be far from the present values."""
        return dict(values)

    def _point(self, values: Values) -> tuple[float, ...]:
        return tuple(to_unit(s, values[n]) for n, s in self._numbers.items())

    def _best_point(self, rng: Random) -> tuple[float, ...]:
        """Return the values with the highest upper confidence bound, as a `Datum.point`."""
        import numpy as np  # noqa: PLC0415 - needs the optional extra

        from pbt_rl.controllers.gaussian_process import Surrogate  # noqa: PLC0415 - needs the optional extra

        first = self._data[0].frames
        span = max(self._frames - first, 1)

        def rows(points: Any, frames: Any) -> Any:
            times = (np.asarray(frames) - first) / span
            return np.column_stack([np.broadcast_to(times, len(points)), points])

        if self._surrogate is None:
            X = rows([d.point for d in self._data], [d.frames for d in self._data])
            self._surrogate = Surrogate(X, np.array([d.improvement for d in self._data]))
        pending = rows(self._pending, self._frames) if self._pending else None
        beta = max(0.0, 0.2 * math.log(0.4 * len(self._data)))
        bound = self._surrogate.bound(beta, pending)
        shape = self.candidates, len(self._numbers)
        numbers = np.reshape([rng.random() for _ in range(math.prod(shape))], shape)
        for spread in (0.1, 0.02, 0.0):
            best = numbers[np.argmax(bound(rows(numbers, self._frames)))]
            if spread:
                steps = np.reshape([rng.gauss(0, spread) for _ in range(math.prod(shape))], shape)
                numbers = np.vstack([best, np.clip(best + steps, 0.0, 1.0)])
        return tuple(best.tolist())


def to_unit(spec: HyperSpec, value: float) -> float:
    """Return the position of a value between its bounds: 0..1, linear on its scale."""
    low, high, at = (_stretched(spec, x) for x in (spec.low, spec.high, spec.clamp(value)))
    return (at - low) / (high - low)


def from_unit(spec: HyperSpec, share: float) -> float:
    """Return the value at a position 0..1 between its bounds (see `to_unit`). Integers are rounded."""
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


PB2 = ExploreRule(
    lambda _, tuned: Pb2(tuned),
    help="choose the values by a Gaussian process (Parker-Holder et al. 2020; requires the extra `search`).",
)
