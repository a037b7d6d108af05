"""The last action and reward as an observation of any environment, for networks that are fed them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import (
    LAST,
    ArraySpec,
    EnvSpec,
    MatchupSource,
    SavesState,
    Seated,
    StepArrays,
    Unit,
    cpu_clock,
)


def with_last(spec: EnvSpec) -> EnvSpec:
    """Add LAST to the observations, unless the environment gives it itself."""
    if LAST in spec.obs:
        return spec
    numbers = sum(spec.action.nvec) + len(spec.action.low)
    return replace(spec, obs={**spec.obs, LAST: ArraySpec((numbers + 1,), "float32")})


class LastUnit:
    """A unit that also writes LAST: the one-hot last choices, continuous components as they are, then the reward.

    The reward is that for learning, clipped to -1..1. Zeros where an episode begins.
    """

    def __init__(self, unit: Unit) -> None:
        assert LAST not in unit.spec.obs, "the environment gives the last action and reward itself"
        self._unit = unit
        self.spec, self.rows = with_last(unit.spec), unit.rows
        self.cpu_ns = cpu_clock(unit)
        """See `base.cpu_clock`."""
        nvec = unit.spec.action.nvec
        self._starts_A = np.cumsum((0, *nvec[:-1])) if nvec else np.zeros(0, np.int64)
        self._choices = sum(nvec)
        self._every_row = np.arange(self.rows)[:, None]
        self._given: StepArrays | None = None

    def reset(self, out: StepArrays) -> None:
        self._unit.reset(self._inner_of(out))
        out.obs[LAST][:] = 0

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        self._unit.step(action, self._inner_of(out))
        last = out.obs[LAST]
        last[:] = 0
        discrete = len(self._starts_A)
        last[self._every_row, self._starts_A + action[:, :discrete].astype(np.int64)] = 1
        last[:, self._choices : -1] = action[:, discrete:]
        np.clip(out.reward, -1, 1, out=last[:, -1])
        last[out.first] = 0

    def _inner_of(self, out: StepArrays) -> StepArrays:
        """Return the arrays that the unit itself writes. Made once: a unit is given the same arrays in every step."""
        if self._given is not out:
            own = {name: array for name, array in out.obs.items() if name != LAST}
            self._given, self._inner = out, replace(out, obs=own)
        return self._inner

    def close(self) -> None:
        self._unit.close()

    def follow(self, matchups: MatchupSource) -> None:
        assert isinstance(self._unit, Seated), "only units of several seats follow matchups"
        self._unit.follow(matchups)

    def save_state(self) -> dict[str, Any] | None:
        """What this class adds is in the observation that was delivered."""
        return self._unit.save_state() if isinstance(self._unit, SavesState) else None

    def restore_state(self, state: dict[str, Any]) -> None:
        assert isinstance(self._unit, SavesState)
        self._unit.restore_state(state)
