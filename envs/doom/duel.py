"""Duels of Doom: every player of a game for two is a seat.

Observations, actions and rewards are those of games for one player (see `unit`), from each player's own side. A
player's objective is its frags: kills of the opponent, less one per suicide; more frags win. A player that dies is back
after two tics, and the game goes on until its time is over: it always ends truncated.

Axes: S seats (host and guest), V game variables, E events, A action components.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agents.multi_agent import MultiAgentUnit, Scene
from ..base import EnvSpec, ShapingSource
from .game import PICTURE, shrink
from .pair import Pair
from .scenarios import Scenario
from .senses import Buttons, Senses

COUNTED = {"deaths": "DEATHCOUNT", "hits": "HITCOUNT", "damage": "DAMAGECOUNT"}
"""Statistic of an episode -> its game variable."""
AT_ONCE = 4
"""Games whose engines connect to each other at the same time."""


class DuelTable:
    """One game. It takes its seed when it is made, because that is when the engines start."""

    def __init__(self, spec: EnvSpec, scenario: Scenario, seed: int) -> None:
        self._spec, self._limit = spec, scenario.limit
        self._buttons, self._senses = Buttons(scenario), Senses(scenario, also=tuple(COUNTED.values()))
        self._coefficients_SE = np.zeros((spec.seats, len(self._senses.events)))
        self._values_SV = self._start_SV = np.zeros((spec.seats, len(self._senses.names)))
        self._tics = 0
        self.pair = Pair(scenario.config, self._buttons.names, seed)

    def describe(self) -> EnvSpec:
        """See Table."""
        return self._spec

    def shape(self, seat: int, values: Mapping[str, Any]) -> None:
        """See Table."""
        self._coefficients_SE[seat] = [values[name] for name in self._senses.events]

    def reset(self, seed: int | None) -> Scene:
        """See Table."""
        del seed
        self.pair.begin_episode()
        self._tics = 0
        self._values_SV = self._start_SV = self._read()
        return self._scene(np.zeros(self._spec.seats), over=False)

    def advance(self, action: NDArray[Any]) -> Scene:
        """See Table."""
        self.pair.step([self._buttons.pressed(action_A) for action_A in action], self._spec.frame_skip)
        self._tics += self._spec.frame_skip
        before_SV, self._values_SV = self._values_SV, self._read()
        event_SE = self._senses.happened(before_SV, self._values_SV)
        return self._scene((self._coefficients_SE * event_SE).sum(1), over=self._tics >= self._limit)

    def close(self) -> None:
        """See Table."""
        self.pair.close()

    def _read(self) -> NDArray[np.float64]:
        return np.array([self._senses.read(game) for game in self.pair.games])

    def _scene(self, reward: NDArray[np.float64], *, over: bool) -> Scene:
        seats, all_of_them = range(self._spec.seats), np.ones(self._spec.seats, np.bool_)
        measured = self._senses.measurements(self._values_SV).astype(np.float32)
        obs = {}
        for seat, game in enumerate(self.pair.games):
            picture = np.empty(PICTURE, np.uint8)
            shrink(game.get_state().screen_buffer, picture)
            obs[seat] = {"obs": picture, "measurements": measured[seat]}
        gained_SV = self._values_SV - self._start_SV
        frags_S = self._senses.of("FRAGCOUNT", gained_SV)
        counted = {name: self._senses.of(variable, gained_SV) for name, variable in COUNTED.items()}
        return Scene(
            obs,
            active=all_of_them & (not over),
            reward=reward,
            terminated=~all_of_them,
            truncated=all_of_them & over,
            objective={seat: float(frags_S[seat]) for seat in seats},
            stats={seat: {name: float(of_S[seat]) for name, of_S in counted.items()} for seat in seats},
        )


class DuelUnit(MultiAgentUnit):
    """R players in R / 2 games."""

    def __init__(
        self, spec: EnvSpec, scenario: Scenario, rows: int, seed: int, shaping: ShapingSource
    ) -> None:
        seeds = iter(np.random.SeedSequence(seed).generate_state(rows).tolist())
        self._pairs: list[Pair] = []

        def make() -> DuelTable:
            for pair in self._pairs[-AT_ONCE:][:1]:
                pair.found()
            table = DuelTable(spec, scenario, next(seeds))
            self._pairs.append(table.pair)
            return table

        super().__init__(make, rows, seed, shaping)
        try:
            for pair in self._pairs:
                pair.found()
        except BaseException:
            self.close()
            raise

    def cpu_ns(self) -> int:
        """See `base.cpu_clock`: this process and the games."""
        return time.process_time_ns() + sum(pair.cpu_ns() for pair in self._pairs)
