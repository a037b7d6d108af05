"""The memory of members' states: one pool of anonymous memory, shared by the supervisor and the learners of a machine.

N parameters of a policy.

A pool has entries of one layout. An entry holds one member's whole state: its arrays, and the counts that belong to
them. Nothing here says who may use an entry: `population.store` does. Memory is passed by descriptor, and poisoned when
fresh.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.controllers.hypers import Values
from pbt_rl.errors import ConfigError

POISON_BYTE = 0xA5
"""Fresh integer and boolean memory; fresh floats are NaN."""


def anonymous_memory(size: int, name: str) -> int:
    """Return the descriptor of `size` bytes of zeroed anonymous shared memory."""
    fd = os.memfd_create(f"pbt_rl-{name}", os.MFD_CLOEXEC)
    _resize(fd, size)
    return fd


def _resize(fd: int, size: int) -> None:
    """Give a memory its size. Raises ConfigError under a limit of file sizes, which counts it as a file."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ConfigError(
            f"this run needs {size:,} bytes of shared memory in one piece, more than the limit of file sizes "
            "allows (ulimit -f): raise it"
        ) from None


def poison(array: NDArray[Any]) -> None:
    """Fill with values that show if they are read before they are written."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(POISON_BYTE)


ArrayLayout: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(name, dtype, shape) of each array of a member's state, in a fixed order."""


@dataclass(frozen=True)
class SnapshotHeader:
    """What a member is besides its arrays; small enough for a message."""

    member: int
    generation: int
    values: Values
    """Hypers and shaping."""
    frames: int
    """Emulator frames that were sampled for it, in total."""
    steps: int
    """Steps that it has learned from, in total."""
    updates: int
    """Batches that it has learned from, in total."""
    fresh_frames: int
    """Its frames when its weights were last drawn: where the learning rate's schedule begins."""
    remembered: bool = False
    """A past state that the controller wants kept."""


@dataclass(frozen=True)
class MemberSnapshot:
    """Everything that makes a member what it is."""

    header: SnapshotHeader
    arrays: Mapping[str, NDArray[Any]]
    """In host memory, never written to. "param" [N] float32 and each moment [N], flat by the network's layout;
    "optimizer_steps" [] float64; "lr_factor" [] float32; normalisers."""


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayLayout:
    """Return the layout of a member's arrays."""
    return tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())


ALIGN = 64


class Counts(NamedTuple):
    """What a member has done, in total, when it was in a state."""

    frames: int = 0
    """Emulator frames that were sampled for it."""
    steps: int = 0
    """Steps that it has learned from."""
    updates: int = 0
    """Batches that it has learned from."""
    fresh_frames: int = 0
    """Its frames when its weights were last drawn: where the learning rate's schedule begins."""


class StatePool:
    """Memory of states of one layout, for either side. fd: of a pool that there is; None makes one.

    Only the side that made it may `grow` it. It is mapped in segments of 1, 2, 4, ... entries, each when it is first
    used: a mapping takes a descriptor, and views of what is mapped already stay.
    """

    def __init__(self, layout: ArrayLayout, fd: int | None = None) -> None:
        self.layout = layout
        self.entry_bytes = entry_bytes(layout)
        self.fd = anonymous_memory(0, "states") if fd is None else fd
        self._segments: dict[int, mmap.mmap] = {}
        """By number; segment n has 2**n entries."""
        self._entries = 0

    def grow(self, entries: int) -> None:
        """Have room for so many entries at least. Memory is taken when they are written."""
        if entries > self._entries:
            self._entries = 2 ** entries.bit_length() - 1  # whole segments
            _resize(self.fd, self._entries * self.entry_bytes)

    def views(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of an entry: writable views, each beginning at a cache line."""
        segment, offset = self._place(entry)
        offset += ALIGN
        found = {}
        for name, dtype, shape in self.layout:
            found[name] = np.ndarray(shape, dtype, buffer=segment, offset=offset)
            offset += _aligned_bytes(dtype, shape)
        return found

    def counts(self, entry: int) -> Counts:
        """Return the counts of an entry."""
        return Counts(*self._counts(entry).tolist())

    def write(self, entry: int, arrays: Mapping[str, NDArray[Any]], counts: Counts) -> None:
        """Copy a state into an entry; the arrays must be those of the layout."""
        views = self.views(entry)
        assert arrays.keys() == views.keys(), f"arrays {sorted(arrays)}, layout {sorted(views)}"
        for name, view in views.items():
            array = arrays[name]
            assert (array.shape, array.dtype) == (view.shape, view.dtype), f"{name}: another shape or dtype"
            np.copyto(view, array)
        self._counts(entry)[:] = counts

    def read(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays of an entry."""
        return {name: view.copy() for name, view in self.views(entry).items()}

    def clear(self, entry: int) -> None:
        """Give the memory of an entry back to the machine; it holds zeroes then."""
        segment, offset = self._place(entry)
        segment.madvise(mmap.MADV_REMOVE, offset, self.entry_bytes)

    def close(self) -> None:
        """Close the descriptor; the memory goes when its last view does. Safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._segments.clear()

    def _counts(self, entry: int) -> NDArray[np.int64]:
        segment, offset = self._place(entry)
        return np.ndarray((len(Counts._fields),), np.int64, buffer=segment, offset=offset)

    def _place(self, entry: int) -> tuple[mmap.mmap, int]:
        """Return the segment of an entry, and where it begins there."""
        number = (entry + 1).bit_length() - 1
        first = 2**number - 1
        if number not in self._segments:
            size, start = 2**number * self.entry_bytes, first * self.entry_bytes
            self._segments[number] = mmap.mmap(self.fd, size, offset=start)
        return self._segments[number], (entry - first) * self.entry_bytes


def entry_bytes(layout: ArrayLayout) -> int:
    """Return the bytes of an entry: whole pages."""
    size = ALIGN + sum(_aligned_bytes(dtype, shape) for _, dtype, shape in layout)
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _aligned_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGN) * ALIGN
