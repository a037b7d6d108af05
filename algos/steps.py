"""Optimiser steps of a group over one batch, of two kinds with one interface.

    PlainSteps       every call of a step is made when its turn comes: on a CPU, and where nothing can be recorded
    RecordedSteps    the calls of a step are recorded once and replayed by a single call from then on (recording.py)

A replay repeats the same calls on the same memory, so whatever changes from one step to the next is data that lies in
place: samples and the order of their rows are staged, hypers, learning rates and the slots that may learn are tensors,
statistics go to a row of the log that a counter on the device names. So a new hyper, another member in a slot or other
weights record nothing anew. Nothing in a step waits for the device.

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
from .recording import NotRecordedError, Recorder, Recording, Replays
from .streams import for_upload

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


class Staging:
    """Samples that lie in one place, batch after batch. Groups of one size share it: they learn one after the other."""

    def __init__(self) -> None:
        self.obs: dict[str, Tensor] = {}
        """Name -> [G, T, B, ...], as stored; made with the first batch."""
        self.samples: Samples | None = None

    def take(self, samples: Samples) -> Samples:
        """Copy a batch to its place. Its observations lie there already."""
        if self.samples is None:
            self.samples = samples.emptied()
        self.samples.copy_from(samples)
        return self.samples


class RecordedSteps:
    """Steps that are recorded, those of each number of rows apart from the others."""

    def __init__(
        self,
        span: slice,
        program: Program,
        log: StepLog,
        recorder: Recorder,
        staging: Staging,
        steps: int,
        replays: Replays,
    ) -> None:
        self._replays = replays
        self._span, self._program, self._log = span, program, log
        self._recorder: Recorder | None = recorder
        self._staging, self._steps = staging, steps
        self._order_SN = self._step_1 = torch.empty(0)
        self._sizes: list[int] = []
        self._recordings: dict[int, Recording] = {}

    def begin(self, samples: Samples, orders: Orders) -> None:
        """See `Steps`."""
        device = self._staging.take(samples).valid.device
        columns = samples.valid.shape[2]
        self._sizes = [columns if order is None else len(order) for order in orders]
        if not self._step_1.numel():
            self._step_1 = torch.zeros(1, dtype=torch.int64, device=device)
            self._order_SN = torch.zeros((self._steps, columns), dtype=torch.int64, device=device)
        self._step_1.zero_()
        if columns not in self._sizes:
            packed = torch.zeros(self._order_SN.shape, dtype=torch.int64)
            for row, order in zip(packed, orders, strict=False):
                assert order is not None
                row[: len(order)] = order
            self._order_SN.copy_(for_upload(packed, device), non_blocking=True)

    def run(self, step: int) -> None:
        """See `Steps`."""
        size = self._sizes[step]
        recording = self._recordings.setdefault(size, Recording(lambda: self._one(size)))
        try:
            recording.run(self._recorder)
        except NotRecordedError as error:
            self._replays.fail("optimiser steps", error)
            self._recorder = None
            self._one(size)
        self._replays.count(replayed=recording.replays)

    def end(self) -> None:
        """See `Steps`. The staged samples stay: replays read them where they lie."""

    def _one(self, size: int) -> None:
        """Carry out the step whose number lies on the device, and count it."""
        samples = self._staging.samples
        assert samples is not None, "no batch was begun"
        if size < samples.valid.shape[2]:
            samples = samples.columns(self._order_SN.index_select(0, self._step_1)[0, :size])
        self._log.write(self._step_1, self._span, self._program(samples))
        self._step_1 += 1
