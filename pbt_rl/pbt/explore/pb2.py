"""PB2: values are chosen by a bandit that has seen what they did, not drawn blindly."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import Decision, MemberReport, Replace, Restart
from pbt_rl.pbt.exploit.base import score
from pbt_rl.pbt.explore.rules import from_priors
from pbt_rl.pbt.hypers import HyperSpec, Values, sample_prior

LEAST_DATA = 3
"""Below so many observations values are drawn from their priors."""


@dataclass(frozen=True)
class _Datum:
    """What one interval of one member showed. point: the values, 0..1 on their scales."""

    frames: int
    point: tuple[float, ...]
    improvement: float


class Pb2:
    """Population-Based Bandits (Parker-Holder et al. 2020, algorithm 1), as an explore rule that keeps its data.

    Each comparison tells of every member by how much its objective rose since the last one, a million frames,
    under which values. A Gaussian process over (time, values) with a kernel that forgets (`FadingKernel`) is fitted
    to these improvements. `mutate` answers the values that maximise the upper confidence bound mean +
    sqrt(beta) deviation, where beta = 0.2 log(0.4 n) for n observations (Ray's constants), and the values already
    chosen in the same comparison count as observed. The maximum is searched for at `candidates` points drawn evenly on
    the scales and, in a second draw, around the best of them.

    A copy starts from its donor's objective; where that is not known (a remembered state, a restart), its first
    interval tells nothing. Choices have no distances: they are drawn evenly, the others are chosen by the bandit.
    window: only so many last observations are used. Bit-for-bit replay needs the same scikit-learn and BLAS.
    """

    def __init__(self, tuned: Mapping[str, HyperSpec], *, window: int = 200, candidates: int = 1000) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(
                "PB2 needs scikit-learn: install it with pip install 'pbt-rl[search]', or choose another explore rule"
            )
        self._choices = {n: s for n, s in tuned.items() if s.scale == "choice"}
        self._tuned = {n: s for n, s in tuned.items() if s.scale != "choice" and s.low < s.high}
        self._window = window
        self._candidates = candidates
        self._data: list[_Datum] = []
        self._start: dict[int, tuple[int, float]] = {}
        """Member -> (frames, objective) at the start of its present interval."""
        self._frames = 0
        self._pending: list[tuple[float, ...]] = []
        self._surrogate: Any = None

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self._choices | self._tuned, values, rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """Take in what the members' last intervals showed."""
        for m in members:
            start, objective = self._start.pop(m.member, None), score(m)
            self._frames = max(self._frames, m.frames)
            if math.isnan(objective):
                continue
            self._start[m.member] = m.frames, objective
            if start is not None and m.frames > start[0]:
                rise = (objective - start[1]) / (m.frames - start[0]) * 1e6
                if math.isfinite(rise):
                    self._data.append(_Datum(m.frames, self._point(m.values), rise))
        del self._data[: -self._window]
        self._pending = []
        self._surrogate = None

    def after(self, members: Sequence[MemberReport], decisions: Sequence[Decision]) -> None:
        """Note from where each copy starts."""
        by_member = {m.member: m for m in members}
        for d in decisions:
            if isinstance(d, Restart):
                self._start.pop(d.member, None)
            elif isinstance(d, Replace) and d.copy != "hypers":
                donor = score(by_member[d.donor]) if d.donor_generation is None else math.nan
                self._start.pop(d.member, None)
                if not math.isnan(donor):
                    self._start[d.member] = by_member[d.member].frames, donor

    def mutate(self, values: Values, rng: Random) -> Values:
        """Choose the values that promise most."""
        if not self._tuned:
            point: tuple[float, ...] = ()
        elif len(self._data) < LEAST_DATA:
            point = self._point({n: sample_prior(s, rng) for n, s in self._tuned.items()})
        else:
            point = self._best_point(rng)
        self._pending.append(point)
        chosen = {n: from_unit(s, share) for (n, s), share in zip(self._tuned.items(), point, strict=True)}
        return values | chosen | {n: sample_prior(s, rng) for n, s in self._choices.items()}

    def _point(self, values: Values) -> tuple[float, ...]:
        return tuple(to_unit(s, values[n]) for n, s in self._tuned.items())

    def _best_point(self, rng: Random) -> tuple[float, ...]:
        import numpy as np  # noqa: PLC0415 - with the optional extra

        from pbt_rl.pbt.explore.gaussian_process import Surrogate  # noqa: PLC0415 - needs the optional extra

        first = self._data[0].frames
        span = max(self._frames - first, 1)

        def rows(points: Sequence[tuple[float, ...]], frames: Sequence[int]) -> Any:
            return np.array([((f - first) / span, *p) for f, p in zip(frames, points, strict=True)])

        if self._surrogate is None:
            X = rows([d.point for d in self._data], [d.frames for d in self._data])
            self._surrogate = Surrogate(X, np.array([d.improvement for d in self._data]))
        pending = rows(self._pending, [self._frames] * len(self._pending))
        beta = max(0.0, 0.2 * math.log(0.4 * len(self._data)))
        width = len(self._tuned)
        points = [tuple(rng.random() for _ in range(width)) for _ in range(self._candidates)]
        for spread in (0.1, 0.02, 0.0):
            bounds = self._surrogate(rows(points, [self._frames] * len(points)), beta, pending)
            best = points[int(np.argmax(bounds))]
            points = [best, *(_around(best, spread, rng) for _ in range(self._candidates if spread else 0))]
        return best

    def state_dict(self) -> dict[str, Any]:
        """The observations and where each member's interval began."""
        return {
            "data": [[d.frames, list(d.point), d.improvement] for d in self._data],
            "start": {str(m): list(start) for m, start in self._start.items()},
            "frames": self._frames,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._data = [_Datum(int(frames), tuple(point), float(rise)) for frames, point, rise in state["data"]]
        self._start = {int(m): (int(frames), float(o)) for m, (frames, o) in state["start"].items()}
        self._frames = int(state["frames"])
        self._pending, self._surrogate = [], None


def _around(point: tuple[float, ...], spread: float, rng: Random) -> tuple[float, ...]:
    return tuple(min(max(x + rng.gauss(0, spread), 0.0), 1.0) for x in point)


def to_unit(spec: HyperSpec, value: float) -> float:
    """Where a value stands between its bounds, 0..1, on its scale."""
    low, high, at = (_stretched(spec, x) for x in (spec.low, spec.high, spec.clamp(value)))
    return (at - low) / (high - low)


def from_unit(spec: HyperSpec, share: float) -> float:
    """Inverse of `to_unit`; an integer is rounded."""
    low, high = _stretched(spec, spec.low), _stretched(spec, spec.high)
    at = low + share * (high - low)
    if spec.scale == "log":
        return spec.clamp(math.exp(at) if spec.high > 0 else -math.exp(-at))
    return spec.clamp(1 - math.exp(-at)) if spec.scale == "one_minus" else spec.clamp(at)


def _stretched(spec: HyperSpec, value: float) -> float:
    if spec.scale == "log":
        return math.log(value) if spec.high > 0 else -math.log(-value)
    return -math.log(1 - value) if spec.scale == "one_minus" else value
