"""Streams of their own for the thread that acts and the thread that learns, on a CUDA device.

Calls have only been asked for when they return, so the locks of `Serving` say nothing: a publication is *staged* by the
stream that learns and *taken* by the stream that acts, each after the other's mark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from pbt_rl.algos.device import Mark
from pbt_rl.algos.weights import Serving, Streams, Weights


class CudaStreams(Streams):
    """A stream each on a CUDA device. Acting has priority: its kernels are few, and actors wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._acting = torch.cuda.Stream(device, priority=-1)
        self._learning = torch.cuda.Stream(device)

    def acting(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._acting)

    def learning(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._learning)

    def serving(self, weights: Weights, state: Mapping[str, Tensor]) -> Serving:
        return StagedServing(weights, state, self)

    def mark(self) -> Mark | None:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def after(self, mark: Mark | None) -> None:
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event), "a mark of another device"
            torch.cuda.current_stream(self._device).wait_event(mark)

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """The thread sleeps meanwhile: by itself CUDA would keep a core busy with waiting."""
        into.copy_(source, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        event.synchronize()

    def wait_for_work(self) -> None:
        torch.cuda.synchronize(self._device)


class StagedServing(Serving):
    """For acting and learning on streams of their own.

    `publish` writes a copy that only learning uses, `take` brings it over, on the device and without waiting: it takes
    a publication only once that is whole. The host may be many optimiser steps ahead of the device, and a turn that
    waited for the newest weights would wait for all of those. After an exchange it does: rare, and the slot's next
    rollout must not begin with the former member's weights.

    There are two copies, so that learning does not wait either: what the turn in flight takes is written again only
    after a later turn has taken the other one, and a turn begins when the one before it has been answered.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Tensor], streams: Streams) -> None:
        super().__init__(weights, state)
        self._streams = streams
        self._served = [*weights.served, *self.stats.values()]
        self._copies = [[served.clone() for served in self._served] for _ in range(2)]
        """Both in the order of `_sources`."""
        self._newest = 0
        """The copy that the last publication is in."""
        self._lock = threading.Lock()  # of the marks; nobody waits for the device while holding it
        self._staged: Mark | None = None
        """Of the last publication, until it is taken."""
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
    def held(self, slots: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG002 - only `take` changes any
        """What is served changes in `take` alone, on the stream that acts."""
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
        """Go on in the other copy, since a turn may be reading this one."""
        before, self._newest = self._newest, 1 - self._newest
        self._streams.after(self._taken[self._newest])
        for copy, source in zip(self._copies[self._newest], self._copies[before], strict=True):
            copy.copy_(source)

    def _sources(self, span: slice) -> list[Tensor]:
        return [*self._weights.to_serve(span), *(self._state[name][span] for name in self.stats)]


def _spans(slots: tuple[int, ...]) -> list[slice]:
    """Return ascending slots as ranges: a copy costs the same for many neighbours as for one."""
    starts = [p for p in slots if p - 1 not in slots]
    ends = [p + 1 for p in slots if p + 1 not in slots]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


SEPARATE: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}
"""Type of a device -> its streams, where one thread acts and another learns."""


def streams_of(device: torch.device, *, threads: bool) -> Streams:
    """Return the streams of a device. threads: one thread acts while another learns."""
    return SEPARATE[device.type](device) if threads and device.type in SEPARATE else Streams()
