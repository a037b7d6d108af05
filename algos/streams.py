"""Order on a device between the thread that acts and the thread that learns. An extra may give each a stream.

A GPU works through streams: what one stream was given runs in order, and beside what other streams were given. So a
call that returned has been asked for, not done. Whoever hands memory from one stream to another hands a mark along:
the other stream goes on after it. Marks are waited for on the device; no thread stops.

    rollouts   acting -> learning    the mark that the last value is written; back, that the batch was read
    weights    learning -> acting    the mark that the published copy is whole; back, that it was taken
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has come to it."""


LOCKED: dict[str, Callable[[Tensor], Tensor]] = {"cuda": Tensor.pin_memory}
"""Type of a device -> what copies a tensor of the host to memory that the device may read at any time."""


def for_upload(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host that may be let go or changed before a device has read it.

    A copy that nobody waits for is read later. torch keeps page-locked memory until then, but no other.
    """
    lock = LOCKED.get(device.type)
    return host if lock is None else lock(host)
