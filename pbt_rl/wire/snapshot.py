"""A member's whole state as one value, and the shared memory in which such states cross processes.

N parameters of a policy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.pbt.hypers import Values

ALIGN = 64

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


class SnapshotMemory:
    """Shared memory of `entries` member states of one layout, for either side; each entry holds one.

    Nothing here says who may use an entry: messages do. Memory is anonymous (`wire.memory.anonymous_memory`) and
    passed by descriptor, which this object closes.
    """

    def __init__(self, fd: int, layout: ArrayLayout, entries: int) -> None:
        self.fd, self.layout, self.entries = fd, layout, entries
        self._memory = mmap.mmap(fd, self.size(layout, entries))

    @staticmethod
    def size(layout: ArrayLayout, entries: int) -> int:
        """Return the bytes that the memory needs, at least 1."""
        return max(1, entries * sum(_aligned_bytes(dtype, shape) for _, dtype, shape in layout))

    def views(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of one entry: writable views, each beginning at a cache line."""
        assert 0 <= entry < self.entries, f"entry {entry} of {self.entries}"
        offset = entry * self.size(self.layout, 1)
        found: dict[str, NDArray[Any]] = {}
        for name, dtype, shape in self.layout:
            found[name] = np.ndarray(shape, dtype, buffer=self._memory, offset=offset)
            offset += _aligned_bytes(dtype, shape)
        return found

    def write(self, entry: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy a member's arrays into an entry; they must be those of the layout."""
        views = self.views(entry)
        assert arrays.keys() == views.keys(), f"arrays {sorted(arrays)}, layout {sorted(views)}"
        for name, view in views.items():
            array = arrays[name]
            assert (array.shape, array.dtype) == (view.shape, view.dtype), f"{name}: another shape or dtype"
            np.copyto(view, array)

    def read(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays of an entry."""
        return {name: view.copy() for name, view in self.views(entry).items()}

    def close(self) -> None:
        """Close the descriptor; the mapping goes when its last view does. Safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _aligned_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGN) * ALIGN
