"""What makes a learner faster on a device. An extra does that; without one every call is made when its turn comes."""

# ruff: noqa: ARG002 - what nothing is done with here, an extra may use

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Any

import torch

from pbt_rl.algos.pack import Packing
from pbt_rl.algos.update import Stepping
from pbt_rl.algos.weights import Streams
from pbt_rl.extras import load_object, offered
from pbt_rl.learner.setup import LearnerSetup
from pbt_rl.pbt.hypers import Values

if TYPE_CHECKING:
    from pbt_rl.learner.sampler import Sampler
    from pbt_rl.learner.simulators import AnySampler
    from pbt_rl.learner.trainer import Trainer


class Acceleration:
    """Of one learner. This one accelerates nothing; an extra names another class as `ACCELERATES` in its `extra.py`."""

    def streams(self, device: torch.device, *, threads: bool) -> Streams:
        """Return the streams of a device. threads: one thread acts while another learns."""
        return Streams()

    def packing(
        self, setup: LearnerSetup, values: Sequence[Values], connection: Any
    ) -> tuple[Packing | None, str]:
        """Return by which packing a device is fastest, and what to say of it; None: the usual one.

        values: of each slot. connection: to the parent, to go on with if this process has to begin again.
        """
        return None, ""

    def prepare(self, device: torch.device, memories: Iterable[mmap]) -> None:
        """Prepare the memory of mailboxes for copies to a device."""

    def sampler(self, plain: type[Sampler], *, on_policy: bool) -> type[Sampler]:
        """Return what samples of mailboxes. plain: call by call."""
        return plain

    def stepping(self) -> Stepping:
        """Return how optimiser steps are carried out."""
        return Stepping()

    def record(self, sampler: AnySampler, trainer: Trainer) -> str:
        """Prepare turns and steps while there is one thread; what a run reads stays. Return it in words."""
        return ""

    def report(self) -> dict[str, Any]:
        """Return what reports of the learner hold of it, for `RunView.accelerated`; it is pickled."""
        return {}

    def close(self) -> None:
        """Release what would outlast the learner."""


def contention() -> Callable[[], bool] | None:
    """Return what knows whether more threads want cores than there are (`CONTENDED`), made in the thread that acts."""
    return next((load_object(path)() for path in offered("pbt_rl", "CONTENDED")), None)


def acceleration() -> Acceleration:
    """Return that of one learner."""
    declared = offered("pbt_rl", "ACCELERATES")
    made: Acceleration = load_object(declared[0])() if declared else Acceleration()
    return made
