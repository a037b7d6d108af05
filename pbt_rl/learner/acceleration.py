"""What makes a learner faster on a device; on a CPU every call is made when its turn comes."""

# ruff: noqa: ARG002 - what nothing is done with here, `graphs` uses

from __future__ import annotations

from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Any

import torch

from pbt_rl.algos.pack import Packing
from pbt_rl.algos.update import Stepping
from pbt_rl.algos.weights import Streams
from pbt_rl.controllers.hypers import Values
from pbt_rl.learner.setup import LearnerSetup

if TYPE_CHECKING:
    from pbt_rl.learner.sampler import Sampler
    from pbt_rl.learner.samplers import AnySampler
    from pbt_rl.learner.trainer import Trainer


class Acceleration:
    """Of one learner. This one accelerates nothing; see `graphs.device`."""

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


def acceleration() -> Acceleration:
    """Return that of one learner, which accelerates on a GPU only."""
    from pbt_rl.learner.cuda.device import CudaAcceleration  # noqa: PLC0415 - a subclass

    return CudaAcceleration()
