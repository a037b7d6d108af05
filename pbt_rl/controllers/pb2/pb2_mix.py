"""PB2-Mix: PB2 for choices too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pbt_rl.controllers.explore import ExploreRule
from pbt_rl.controllers.hypers import Values, sample_prior
from pbt_rl.controllers.pb2.bandit import probabilities, updated
from pbt_rl.controllers.pb2.pb2 import LEAST_DATA, Datum, Pb2, from_unit


@dataclass
class Pb2Mix(Pb2):
    """PB2-Mix (Parker-Holder et al. 2021, algorithm 1): choices by a bandit of their own, numbers by PB2's given those.

    Each choice has weights that TV.EXP3.M learns from the improvements of a comparison (`bandit.py`), brought to 0..1
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
        chosen = {name: self._draw(name, rng) for name in self._choices}
        fixed = tuple(chosen.values())
        if not self._numbers:
            point = fixed
        elif len(self._data) < LEAST_DATA:
            point = self._point(values | {n: sample_prior(s, rng) for n, s in self._numbers.items()} | chosen)
        else:
            point = self._best_point(rng, fixed)
        self._pending.append(point)
        numbers = {
            n: from_unit(s, share) for (n, s), share in zip(self._numbers.items(), point, strict=False)
        }
        return values | numbers | chosen


PB2_MIX = ExploreRule(lambda _, tuned: Pb2Mix(tuned), help="that, of choices too (needs the extra `search`).")
