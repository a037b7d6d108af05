"""A learner that may load torch while its run is still being planned: an extra starts it (`SPARE`).

Imports nothing that takes long.
"""

from __future__ import annotations

from typing import Any

from pbt_rl.extras import offered

LEARNER = "pbt_rl.learner.learner"
SpareLearner = Any
"""A `Child` that waits. `set_up(label, setup, fds, log)`: what a child is told at its start; `discard()`: end it."""


def spare_learner() -> SpareLearner | None:
    """Start a learner that waits for its setup; None if there is nothing to gain, or nobody who does."""
    return next((start(LEARNER) for start in offered("pbt_rl", "SPARE")), None)
