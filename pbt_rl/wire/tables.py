"""Tables in shared memory, each under a sequence lock: reward shaping and matchups."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ShapingTable:
    """Reward shaping of a pack's policies in shared memory: written by the learner, read by its actors.

    Beside it, single numbers that need no lock: how far the training of whoever holds the row has come.

    A sequence lock a policy: `guard` is odd while a row is written; a reader retries until it saw the same
    even number before and after.
    """

    names: tuple[str, ...]
    guard: NDArray[np.int64]
    """[P]"""
    version: NDArray[np.int64]
    """[P] goes up with every write; each episode says under which version it began."""
    values: NDArray[np.float64]
    """[P, number of names]"""
    frames: NDArray[np.int64]
    """[P] the sampler writes it when an episode ends, before the step that begins the next one."""
    budget_frames: NDArray[np.int64]
    """[P]"""
    fd: int

    @classmethod
    def map(cls, names: tuple[str, ...], policies: int, fd: int) -> ShapingTable:
        """See the table behind a descriptor of `size(...)` bytes."""
        memory = mmap.mmap(fd, cls.size(names, policies))
        ints: NDArray[np.int64] = np.ndarray((4, policies), np.int64, buffer=memory)
        values: NDArray[np.float64] = np.ndarray(
            (policies, len(names)), np.float64, buffer=memory, offset=ints.nbytes
        )
        return cls(names, ints[0], ints[1], values, ints[2], ints[3], fd)

    @staticmethod
    def size(names: tuple[str, ...], policies: int) -> int:
        """Bytes of the table."""
        return 8 * policies * (4 + len(names)) or 8

    def write(self, policy: int, version: int, values: Mapping[str, float]) -> None:
        """Set one policy's shaping. Only one process may write."""
        self.guard[policy] += 1
        self.values[policy] = [values[name] for name in self.names]
        self.version[policy] = version
        self.guard[policy] += 1

    def read(self, policy: int) -> tuple[int, dict[str, float]]:
        """(version, values) of one policy, whole."""
        while True:
            before = int(self.guard[policy])
            version, values = int(self.version[policy]), self.values[policy].tolist()
            if before % 2 == 0 and before == self.guard[policy]:
                return version, dict(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class MatchupTable:
    """Who sits where in a pack's units, in shared memory: written by the supervisor, read by the pack's actors.

    One sequence lock for all units, as in ShapingTable.
    """

    head: NDArray[np.int64]
    """[2] guard and version."""
    rows: NDArray[np.int64]
    """[U, E, S] row that sits on each seat of each environment of each unit."""
    fd: int

    @classmethod
    def map(cls, shape: tuple[int, int, int], fd: int) -> MatchupTable:
        """See the table behind a descriptor of `size(shape)` bytes."""
        memory = mmap.mmap(fd, cls.size(shape))
        head: NDArray[np.int64] = np.ndarray((2,), np.int64, buffer=memory)
        return cls(head, np.ndarray(shape, np.int64, buffer=memory, offset=head.nbytes), fd)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(U, E, S)."""
        units, environments, seats = self.rows.shape
        return units, environments, seats

    @staticmethod
    def size(shape: tuple[int, int, int]) -> int:
        """Bytes of the table."""
        return 8 * (2 + math.prod(shape))

    def write(self, row_UES: NDArray[np.int64]) -> int:
        """SlotChange everybody anew; returns the version. Only one process may write."""
        self.head[0] += 1
        self.rows[:] = row_UES
        self.head[1] += 1
        self.head[0] += 1
        return int(self.head[1])

    def read(self, unit: int) -> tuple[int, NDArray[np.int64]]:
        """(version, [E, S]) of one unit, whole."""
        while True:
            before = int(self.head[0])
            version, row_ES = int(self.head[1]), self.rows[unit].copy()
            if before % 2 == 0 and before == self.head[0]:
                return version, row_ES
