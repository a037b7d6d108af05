"""Shared memory pool of member states, used by the supervisor and the learners of a machine.

All entries of a pool have the same layout. An entry contains the arrays and counts of one member's state.
`population.store` assigns entries to states. Memory is passed by descriptor.

Axes: N parameters of a policy.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.controllers.hypers import Values
from pbt_rl.errors import ConfigError

POISON_BYTE = 0xA5
"""Fill byte of `poison` for arrays of other types than float. Float arrays are filled with NaN."""


def anonymous_memory(size: int, name: str) -> int:
    """Allocate `size` bytes of anonymous shared memory, filled with 0. Return the descriptor.

    Raises ConfigError if `size` exceeds the user's limit of file sizes. name: part of the memory file's name.
    """
    fd = os.memfd_create(f"pbt_rl-{name}", os.MFD_CLOEXEC)
    _resize(fd, size)
    return fd


def _resize(fd: int, size: int) -> None:
    """Set the size of a memory file in bytes. Raises ConfigError if it exceeds the user's limit of file sizes."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ConfigError(
            f"This run needs {size:,} bytes of shared memory in one piece. The limit of file sizes (ulimit -f) is "
            "lower. Raise this limit"
        ) from None


def poison(array: NDArray[Any]) -> None:
    """Fill an array with values that reveal reads of unwritten memory."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(POISON_BYTE)


ArrayLayout: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(name, numpy dtype string, shape) of each array of a member's state, in fixed order."""


@dataclass(frozen=True)
class SnapshotHeader:
    """A member's state without its arrays, small enough for a message."""

    member: int
    generation: int
    values: Values
    """Hyperparameters and shaping."""
    frames: int
    """Total frames that the member acted in."""
    steps: int
    """Total environment steps that the member learned from."""
    updates: int
    """Total updates."""
    fresh_frames: int
    """`frames` at the last initialisation of the weights. The learning rate schedule starts at this number."""
    remembered: bool = False
    """True for a remembered state: an earlier state that the controller may return to."""


@dataclass(frozen=True)
class MemberSnapshot:
    """Complete state of a member."""

    header: SnapshotHeader
    arrays: Mapping[str, NDArray[Any]]
    """Read-only arrays in host memory: "param" [N] float32, each moment of the optimiser [N] float32, "optimizer_steps"
    (scalar, float64), "lr_factor" (scalar, float32), and normalisers. All arrays [N] have the same parameter order.
    """


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayLayout:
    """Derive the layout from a member's arrays."""
    return tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())


SavedStates: TypeAlias = Mapping[tuple[int, int | None], Callable[[], MemberSnapshot]]
"""(member, generation) -> function that reads a saved state: the current state of the member if the generation is None,
otherwise a remembered state."""


ALIGN = 64


class Counts(NamedTuple):
    """Total counts of a member, stored with its state. The fields have the meaning of `SnapshotHeader`'s fields."""

    frames: int = 0
    steps: int = 0
    updates: int = 0
    fresh_frames: int = 0


class StatePool:
    """Shared memory for states of one layout.

    fd: descriptor of an existing pool. None creates a pool. Only the creator of a pool may call `grow`.

    Memory is mapped at first use, in segments of 1, 2, 4, ... entries. A growing pool therefore needs few mappings, and
    existing views stay valid.
    """

    def __init__(self, layout: ArrayLayout, fd: int | None = None) -> None:
        self.layout = layout
        self.entry_bytes = entry_bytes(layout)
        self.fd = anonymous_memory(0, "states") if fd is None else fd
        self._segments: dict[int, mmap.mmap] = {}
        """Segment number n -> memory of 2**n entries."""
        self._entries = 0

    def grow(self, entries: int) -> None:
        """Make room for at least this number of entries in total. An entry uses no memory before it is written.

        Raises ConfigError if the pool exceeds the user's limit of file sizes.
        """
        if entries > self._entries:
            self._entries = 2 ** entries.bit_length() - 1  # whole segments
            _resize(self.fd, self._entries * self.entry_bytes)

    def views(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return writable views of an entry's arrays, aligned to cache lines."""
        segment, offset = self._place(entry)
        offset += ALIGN
        found = {}
        for name, dtype, shape in self.layout:
            found[name] = np.ndarray(shape, dtype, buffer=segment, offset=offset)
            offset += _aligned_bytes(dtype, shape)
        return found

    def counts(self, entry: int) -> Counts:
        """Return an entry's counts."""
        return Counts(*self._counts(entry).tolist())

    def write(self, entry: int, arrays: Mapping[str, NDArray[Any]], counts: Counts) -> None:
        """Copy a state into an entry. The arrays must have the pool's layout."""
        views = self.views(entry)
        assert arrays.keys() == views.keys(), f"arrays {sorted(arrays)}, layout {sorted(views)}"
        for name, view in views.items():
            array = arrays[name]
            assert (array.shape, array.dtype) == (view.shape, view.dtype), f"{name}: shape or dtype mismatch"
            np.copyto(view, array)
        self._counts(entry)[:] = counts

    def read(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return copies of an entry's arrays."""
        return {name: view.copy() for name, view in self.views(entry).items()}

    def clear(self, entry: int) -> None:
        """Free an entry's memory. The entry then contains zeros."""
        segment, offset = self._place(entry)
        segment.madvise(mmap.MADV_REMOVE, offset, self.entry_bytes)

    def close(self) -> None:
        """Close the descriptor. The memory is freed when the last view of it is deleted. Safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._segments.clear()

    def _counts(self, entry: int) -> NDArray[np.int64]:
        segment, offset = self._place(entry)
        return np.ndarray((len(Counts._fields),), np.int64, buffer=segment, offset=offset)

    def _place(self, entry: int) -> tuple[mmap.mmap, int]:
        """Return an entry's segment, and its offset in bytes within the segment."""
        number = (entry + 1).bit_length() - 1
        first = 2**number - 1
        if number not in self._segments:
            size, start = 2**number * self.entry_bytes, first * self.entry_bytes
            self._segments[number] = mmap.mmap(self.fd, size, offset=start)
        return self._segments[number], (entry - first) * self.entry_bytes


def entry_bytes(layout: ArrayLayout) -> int:
    """Return an entry's size in bytes, rounded up to whole pages."""
    size = ALIGN + sum(_aligned_bytes(dtype, shape) for _, dtype, shape in layout)
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _aligned_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGN) * ALIGN
