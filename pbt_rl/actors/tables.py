"""The table of reward shaping in shared memory, under a sequence lock.

A sequence lock: `guard` is odd while an entry is written. A reader retries until it has read the same even number
before and after.

Axes: P slots of a pack.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ShapingTable:
    """Reward shaping of a pack's slots in shared memory: written by the learner, read by its actors.

    One sequence lock per slot. `frames` and `budget_frames` are single numbers that need none: how far the training of
    the slot's holder has come.
    """

    names: tuple[str, ...]
    guard: NDArray[np.int64]
    """[P]"""
    shaping_version: NDArray[np.int64]
    """[P] rises with every write; each episode carries the one under which it began."""
    values: NDArray[np.float64]
    """[P, number of names]"""
    frames: NDArray[np.int64]
    """[P] written by the sampler when an episode ends, before the step that begins the next one."""
    budget_frames: NDArray[np.int64]
    """[P] written by the supervisor."""

    @classmethod
    def map(cls, names: tuple[str, ...], slots: int, fd: int) -> ShapingTable:
        """Map the table behind a descriptor of `size(...)` bytes."""
        memory = mmap.mmap(fd, cls.size(names, slots))
        ints: NDArray[np.int64] = np.ndarray((4, slots), np.int64, buffer=memory)
        values: NDArray[np.float64] = np.ndarray(
            (slots, len(names)), np.float64, buffer=memory, offset=ints.nbytes
        )
        return cls(names, ints[0], ints[1], values, ints[2], ints[3])

    @staticmethod
    def size(names: tuple[str, ...], slots: int) -> int:
        """Bytes of the table."""
        return 8 * slots * (4 + len(names)) or 8

    def write(self, slot: int, shaping_version: int, values: Mapping[str, float]) -> None:
        """Set one slot's shaping. Only one process may write."""
        self.guard[slot] += 1
        self.values[slot] = [values[name] for name in self.names]
        self.shaping_version[slot] = shaping_version
        self.guard[slot] += 1

    def read(self, slot: int) -> tuple[int, dict[str, float]]:
        """Return (shaping_version, values) of one slot, as one write left them."""
        while True:
            before = int(self.guard[slot])
            shaping_version, values = int(self.shaping_version[slot]), self.values[slot].tolist()
            if before % 2 == 0 and before == self.guard[slot]:
                return shaping_version, dict(zip(self.names, values, strict=True))
