"""Order on a device between the thread that acts and the thread that learns.

A GPU works through streams: what one stream was given runs in order, and beside what other streams were given. So a
call that returned has been asked for, not done. Whoever hands memory from one stream to another hands a mark along:
the other stream goes on after it. Marks are waited for on the device; no thread stops.

    rollouts   acting -> learning    the mark that the last value is written; back, that the batch was read
    weights    learning -> acting    the mark that the published copy is whole; back, that it was taken (serving.py)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has come to it."""


class Streams:
    """One stream for all: a CPU, or a device of which one thread acts and learns in turns. Nothing ever waits."""

    separate = False
    """Whether acting and learning have streams of their own."""

    def acting(self) -> AbstractContextManager[object]:
        """Whatever is asked for inside goes to the stream that acts."""
        return nullcontext()

    def learning(self) -> AbstractContextManager[object]:
        """Whatever is asked for inside goes to the stream that learns."""
        return nullcontext()

    def mark(self) -> Mark | None:
        """Return the point which the present stream has been given work up to; None: all that is asked for is done."""
        return None

    def after(self, mark: Mark | None) -> None:
        """Let the present stream go on after a mark."""

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """Bring a tensor of the present stream to the host, and wait until it is there."""
        into.copy_(source)

    def begin(self) -> None:
        """Wait for all that was asked for before the streams are used: it was given to none of them."""


class CudaStreams(Streams):
    """A stream each on a CUDA device. Acting has priority: its kernels are few, and actors wait for them."""

    separate = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._acting = torch.cuda.Stream(device, priority=-1)
        self._learning = torch.cuda.Stream(device)

    def acting(self) -> AbstractContextManager[object]:
        """See `Streams`."""
        return torch.cuda.stream(self._acting)

    def learning(self) -> AbstractContextManager[object]:
        """See `Streams`."""
        return torch.cuda.stream(self._learning)

    def mark(self) -> Mark | None:
        """See `Streams`."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def after(self, mark: Mark | None) -> None:
        """See `Streams`."""
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event), "a mark of another device"
            torch.cuda.current_stream(self._device).wait_event(mark)

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """See `Streams`. The thread sleeps meanwhile: by itself CUDA would keep a core busy with waiting."""
        into.copy_(source, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        event.synchronize()

    def begin(self) -> None:
        """See `Streams`."""
        torch.cuda.synchronize(self._device)


LOCKED: dict[str, Callable[[Tensor], Tensor]] = {"cuda": Tensor.pin_memory}
"""Type of a device -> what copies a tensor of the host to memory that the device may read at any time."""


def for_upload(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host that may be let go or changed before a device has read it.

    A copy that nobody waits for is read later. torch keeps page-locked memory until then, but no other.
    """
    lock = LOCKED.get(device.type)
    return host if lock is None else lock(host)


SEPARATE: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}
"""Type of a device -> its streams, where one thread acts and another learns."""


def streams_of(device: torch.device, *, threads: bool) -> Streams:
    """Return the streams of a device. threads: one thread acts while another learns."""
    return SEPARATE[device.type](device) if threads and device.type in SEPARATE else Streams()
