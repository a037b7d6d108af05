"""A learner that loads torch while its run is still being planned: the start of a run waits for either, not for both.

Imports nothing that takes long.
"""

from __future__ import annotations

import os
from typing import Any

from pbt_rl.procs.child import Waiting

LEARNER = "pbt_rl.learner.learner"
SpareLearner = Waiting[Any, Any]


def spare_learner() -> SpareLearner | None:
    """Start a learner that waits for its setup; None if there is only one core, on which it would gain nothing."""
    return Waiting(LEARNER) if len(os.sched_getaffinity(0)) > 1 else None
