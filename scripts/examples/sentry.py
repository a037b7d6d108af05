"""Two fixed opponents for duels of Doom, neither of which moves: one shoots straight ahead, the other does nothing.

pbt-rl eval runs/x --episodes 40 --against scripts.examples.sentry:sentry
pbt-rl eval runs/x --episodes 40 --against scripts.examples.sentry:statue
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Act = Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_]], NDArray[Any]]
ATTACK = 3
"""Component of an action that is the trigger, after walking, strafing and turning; in each 0 is to do nothing."""


def sentry(spec: Any) -> Act:
    """It shoots where it came into the world."""
    return standing(spec, attacks=True)


def statue(spec: Any) -> Act:
    """It waits to be shot."""
    return standing(spec, attacks=False)


def standing(spec: Any, *, attacks: bool) -> Act:
    """Make a player that stands."""

    def act(_obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> NDArray[np.int32]:
        action = np.zeros((len(first), spec.action.components), np.int32)
        action[:, ATTACK] = attacks
        return action

    return act
