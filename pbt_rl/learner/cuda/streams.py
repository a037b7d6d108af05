"""Separate CUDA streams for the acting and the learning thread.

Kernel launches are asynchronous: the device may run a kernel after the launch has returned. Therefore, locks cannot
order the two threads' work on the device. The learning stream *stages* the published weights, and the acting stream
*takes* the staged weights. Each stream waits for the mark (a CUDA event) of the other stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from pbt_rl.algos.kernels import Mark
from pbt_rl.algos.weights import Serving, Streams, Weights

BRANCHES = 8
"""Maximum number of parallel branches (side streams) of a stream. torch has 32 streams per device and priority, and
more than 8 small kernels hardly fit on a GPU."""


class CudaStreams(Streams):
    """A stream for acting, and a stream for learning. Acting has priority, because actors wait for actions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._acting = torch.cuda.Stream(device, priority=-1)
        self._learning = torch.cuda.Stream(device)
        self._branches: dict[tuple[int, int], torch.cuda.Stream] = {}

    def acting(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._acting)

    def learning(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._learning)

    def serving(self, weights: Weights, state: Mapping[str, Tensor]) -> Serving:
        return StagedServing(weights, state, self)

    @contextmanager
    def branch(self, number: int) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        branch = self._branch(current, number)
        branch.wait_stream(current)
        with torch.cuda.stream(branch):
            yield

    def join(self, number: int) -> None:
        current = torch.cuda.current_stream(self._device)
        for branch in range(number):
            current.wait_stream(self._branch(current, branch))

    def _branch(self, current: torch.cuda.Stream, number: int) -> torch.cuda.Stream:
        """Return a branch of a stream. Each stream has separate branches."""
        key = current.cuda_stream, number % BRANCHES
        if key not in self._branches:
            self._branches[key] = torch.cuda.Stream(self._device, priority=current.priority)
        return self._branches[key]

    def mark(self) -> Mark | None:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def after(self, mark: Mark | None) -> None:
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event), "mark of another device type"
            torch.cuda.current_stream(self._device).wait_event(mark)

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """Copy to the host, and wait on a blocking event, because CUDA's default wait spins on a core."""
        into.copy_(source, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        event.synchronize()

    def wait_for_work(self) -> None:
        torch.cuda.synchronize(self._device)


class StagedServing(Serving):
    """Published weights for acting and learning on separate streams.

    The learning thread calls `publish`, which writes new weights (a publication) to a staging copy. The acting thread
    calls `take`, which copies the publication to the acting weights.

    `take` skips a publication that is incomplete on the device, because inference would otherwise wait for all queued
    optimiser steps. There is one exception: if the weights of a slot were replaced, `take` makes the acting stream wait
    for the publication. The slot's next rollout must not start with the former weights.

    There are two staging copies, because learning must not wait for acting: `publish` writes to one copy while `take`
    reads the other copy.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Tensor], streams: Streams) -> None:
        super().__init__(weights, state)
        self._streams = streams
        self._served = [*weights.served, *self.stats.values()]
        self._copies = [[served.clone() for served in self._served] for _ in range(2)]
        """Two staging copies of the tensors that acting uses."""
        self._newest = 0
        """Index of the staging copy with the last publication."""
        self._lock = threading.Lock()  # for the marks; never held while waiting for the device
        self._staged: Mark | None = None
        """Mark of the last publication. None if `take` has taken this publication."""
        self._taken: list[Mark | None] = [None, None]
        self._exchanged = False

    def take(self) -> None:
        with self._lock:
            if self._staged is None or not (self._exchanged or self._staged.query()):
                return
            self._streams.after(self._staged)
            for copy, served in zip(self._copies[self._newest], self._served, strict=True):
                served.copy_(copy)
            self._staged, self._exchanged = None, False
            self._taken[self._newest] = self._streams.mark()

    @contextmanager
    def held(self, slots: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG002 - no slot is locked
        """Do nothing, because only `take` changes the acting weights, on the acting stream."""
        yield

    def publish(self, slots: tuple[int, ...], *, exchanged: bool) -> None:
        with self._lock:
            if self._staged is None:
                self._change_copies()
            for span in _spans(slots):
                for copy, source in zip(self._copies[self._newest], self._sources(span), strict=True):
                    copy[span].copy_(source)
            self._staged = self._streams.mark()
            self._exchanged |= exchanged

    def _change_copies(self) -> None:
        """Switch to the other staging copy, because `take` may still read the present copy."""
        before, self._newest = self._newest, 1 - self._newest
        self._streams.after(self._taken[self._newest])
        for copy, source in zip(self._copies[self._newest], self._copies[before], strict=True):
            copy.copy_(source)

    def _sources(self, span: slice) -> list[Tensor]:
        return [*self._weights.to_serve(span), *(self._state[name][span] for name in self.stats)]


def _spans(slots: tuple[int, ...]) -> list[slice]:
    """Split ascending slots into ranges of neighbours, because copying a range takes as long as copying one slot."""
    starts = [p for p in slots if p - 1 not in slots]
    ends = [p + 1 for p in slots if p + 1 not in slots]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


SEPARATE: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}
"""Device type -> constructor of separate streams."""


def streams_of(device: torch.device, *, threads: bool) -> Streams:
    """Create the streams of a device. threads: acting and learning run in two threads."""
    return SEPARATE[device.type](device) if threads and device.type in SEPARATE else Streams()
