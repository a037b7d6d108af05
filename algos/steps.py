"""Optimiser steps of a group over one batch, call by call (`PlainSteps`), or as an extra carries them out (`Stepping`).

What changes from one step to the next is data that lies in place: hypers, learning rates and the slots that may learn
are tensors, statistics go to a row of the log, which may be named by a counter on the device. So steps can be repeated
as they were asked for once. Nothing in a step waits for the device.

Axes: G policies of one group, P policies, S steps of a batch, V statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Samples
from .losses import Stats

Program = Callable[[Samples], Stats]
"""One optimiser step on these samples; returns its statistics, [G] each."""
Orders = Sequence[Tensor | None]
"""Rows of each step, on the CPU; None: all of them."""


class StepLog:
    """Statistics of all steps of a batch, [S, P, V] on the device, until somebody asks for them."""

    def __init__(self, steps: int, policies: int, device: torch.device) -> None:
        self._shape, self._device = (steps, policies), device
        self.names: tuple[str, ...] = ()
        self._values_SPV = torch.empty(0)

    @torch.no_grad()
    def write(self, step: int | Tensor, span: slice, stats: Mapping[str, Tensor]) -> None:
        """Note the statistics of a step. step: its number, or [1] on the device."""
        if not self.names:
            self.names = tuple(stats)
            self._values_SPV = torch.zeros((*self._shape, len(self.names)), device=self._device)
        row_GV = torch.stack([stats[name].float() for name in self.names], 1)
        if isinstance(step, Tensor):
            self._values_SPV[:, span].index_copy_(0, step, row_GV.unsqueeze(0))
        else:
            self._values_SPV[step, span] = row_GV

    def read(self, steps: int, span: slice, name: str) -> Tensor:
        """Return one statistic of the first steps, [steps, G], on the device."""
        return self._values_SPV[:steps, span, self.names.index(name)].contiguous()

    def fetch(self) -> NDArray[np.float32]:
        """Return everything, [S, P, V], on the host, which waits for the device."""
        return self._values_SPV.cpu().numpy()


class Steps(Protocol):
    """The optimiser steps of one group."""

    def begin(self, samples: Samples, orders: Orders) -> None:
        """Take up a batch."""

    def run(self, step: int) -> None:
        """Carry out one step of it."""

    def end(self) -> None:
        """Let go of the batch: each group's part of it takes as much memory as a member's whole state, or more."""


class PlainSteps:
    """Steps call by call."""

    def __init__(self, span: slice, program: Program, log: StepLog) -> None:
        self._span, self._program, self._log = span, program, log
        self._samples: Samples | None = None
        self._orders: Orders = ()

    def begin(self, samples: Samples, orders: Orders) -> None:
        """See `Steps`."""
        self._samples, self._orders = samples, orders

    def run(self, step: int) -> None:
        """See `Steps`."""
        samples, order = self._samples, self._orders[step]
        assert samples is not None, "no batch was begun"
        part = samples if order is None else samples.columns(order.to(samples.valid.device))
        self._log.write(step, self._span, self._program(part))

    def end(self) -> None:
        """See `Steps`."""
        self._samples, self._orders = None, ()


class Stepping:
    """How optimiser steps are carried out: call by call. An extra may do it otherwise on a device."""

    obs: dict[str, Tensor] | None = None
    """Where the observations of a group's batch lie, if in one place: name -> [G, T, B, ...], made with the first."""

    def steps(self, span: slice, program: Program, log: StepLog, number: int) -> Steps:  # noqa: ARG002 - for those who do otherwise
        """Return the steps of a group. number: of steps of a batch."""
        return PlainSteps(span, program, log)
