"""Matchups in shared memory, under a sequence lock (`actors/tables.py`).

Axes: U units, E environments of a unit, S seats of an environment.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MatchupTable:
    """The matchup of a pack's units in shared memory: written by the supervisor, read by the pack's actors.

    One sequence lock for all units.
    """

    head: NDArray[np.int64]
    """[2] guard and matchup_version, which rises with every write."""
    rows: NDArray[np.int64]
    """[U, E, S] row on each seat of each environment of each unit."""
    fd: int

    @classmethod
    def map(cls, shape: tuple[int, int, int], fd: int) -> MatchupTable:
        """Map the table behind a descriptor of `size(shape)` bytes."""
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
        """Seat these rows; return the new matchup_version. Only one process may write."""
        self.head[0] += 1
        self.rows[:] = row_UES
        self.head[1] += 1
        self.head[0] += 1
        return int(self.head[1])

    def read(self, unit: int) -> tuple[int, NDArray[np.int64]]:
        """Return (matchup_version, [E, S] rows) of one unit, as one write left them."""
        while True:
            before = int(self.head[0])
            matchup_version, row_ES = int(self.head[1]), self.rows[unit].copy()
            if before % 2 == 0 and before == self.head[0]:
                return matchup_version, row_ES
