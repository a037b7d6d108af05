"""The buttons of a player of Doom, and its measurements and events from game variables, for all kinds of games.

Axes: R players, V game variables, E events, A action components.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import vizdoom
from numpy.typing import NDArray

from .scenarios import EVENTS, MEASURED, MEASURED_ARMS, OWN_REWARD, SLOTS, Scenario

MOST_MEASURED = 4.0
"""Measurements are cut to 0..this."""
POSSESSIONS = ("HEALTH", "ARMOR", "AMMO", "WEAPON")
"""Game variables (by their beginning) that a new life brings: their change is no event in the step of a death, nor
in one that began dead."""


class Buttons:
    """The buttons of a scenario, and which of them an action presses."""

    def __init__(self, scenario: Scenario) -> None:
        self.names = sorted({b for choices in scenario.actions for choice in choices for b in choice})
        self._pressed = [
            np.array([[choice.get(b, 0.0) for b in self.names] for choice in choices])
            for choices in scenario.actions
        ]

    def pressed(self, action_A: NDArray[Any]) -> list[float]:
        """Return the engine's input: 1 for each button held down, degrees per tic for turning by degrees."""
        held = [table[choice] for table, choice in zip(self._pressed, action_A.tolist(), strict=True)]
        return [float(value) for value in np.sum(held, axis=0)]


class Senses:
    """Reads the game variables of a scenario's players, and derives measurements and events.

    also: variables that are to be read whether anything of this needs them or not.
    """

    def __init__(self, scenario: Scenario, also: tuple[str, ...] = ()) -> None:
        scale = _scales(scenario)
        self._arms, self._scale = scenario.arms, list(scale.values())
        self.events = [n for n in scenario.shaping if n != OWN_REWARD]
        watched = {v for n in self.events for v in EVENTS[n].variables}
        self.names = sorted(
            {*scale, *watched, *also, "KILLCOUNT", "FRAGCOUNT", "DEATHCOUNT", "HEALTH", "SELECTED_WEAPON"}
        )
        self._variables = [getattr(vizdoom.GameVariable, n) for n in self.names]
        self._measured = [self.names.index(n) for n in scale]
        self._owned_V = np.array([n.startswith(POSSESSIONS) for n in self.names])
        self._change_VE = np.array(
            [
                [(-1.0 if EVENTS[e].down else 1.0) * (v in EVENTS[e].variables) for e in self.events]
                for v in self.names
            ]
        ).reshape(len(self.names), len(self.events))

    def read(self, game: Any) -> list[float]:
        """Return the present values [V] of a game's player."""
        return [game.get_game_variable(v) for v in self._variables]

    def of(self, name: str, values_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one variable [R]."""
        column: NDArray[np.float64] = values_RV[:, self.names.index(name)]
        return column

    def happened(self, before_RV: NDArray[np.float64], after_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the amount [R, E] of each event between two readings."""
        change_RV = after_RV - before_RV
        reborn_R = (self.of("DEATHCOUNT", change_RV) > 0) | (self.of("HEALTH", before_RV) <= 0)
        change_RV *= ~np.outer(reborn_R, self._owned_V)
        events: NDArray[np.float64] = np.maximum(change_RV @ self._change_VE, 0.0)
        return events

    def measurements(self, values_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measurements [R, `measurements(scenario)`], within 0..MOST_MEASURED."""
        measured = values_RV[:, self._measured] / self._scale
        if self._arms:
            slot_R = self.of("SELECTED_WEAPON", values_RV)
            measured = np.concatenate((measured, slot_R[:, None] == np.array(SLOTS)), axis=1)
        return np.clip(measured, 0.0, MOST_MEASURED)


def measurements(scenario: Scenario) -> int:
    """Return the size of the observation "measurements"."""
    return len(_scales(scenario)) + (len(SLOTS) if scenario.arms else 0)


def _scales(scenario: Scenario) -> dict[str, float]:
    return {**MEASURED, **(MEASURED_ARMS if scenario.arms else {})}
