"""Fixed opponent for Doom duels that does not move and shoots straight ahead.

pbt-rl eval runs/x --episodes 40 --against scripts.examples.sentry:sentry
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Act = Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_]], NDArray[Any]]
ATTACK = 3
"""Index of the trigger in an action, after walking, strafing and turning. The value 0 means no action."""


def sentry(spec: Any) -> Act:
    """Create an opponent that stays at its start and shoots."""

    def act(_obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> NDArray[np.int32]:
        action = np.zeros((len(first), spec.action.components), np.int32)
        action[:, ATTACK] = 1
        return action

    return act
