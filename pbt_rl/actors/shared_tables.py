"""Shared memory tables of reward shaping and matchups, with sequence locks.

The counter of a sequence lock is odd during a write. A reader retries until the counter is even and has not changed
during the read.

Axes: P slots of a pack, U vector envs, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ShapingTable:
    """Reward shaping of a pack's slots in shared memory. The learner writes this table, and its actors read it.

    The supervisor writes the table before it starts the learner. Each slot has a sequence lock. `frames` and
    `budget_frames` are the training progress of the slot's member. These fields need no lock, because each entry is a
    single number.
    """

    names: tuple[str, ...]
    """Names of the shaping weights."""
    guard: NDArray[np.int64]
    """[P] counters of the sequence locks."""
    shaping_version: NDArray[np.int64]
    """[P] version of the slot's shaping. An episode is reported with the version at its start, or with
    `UNCOUNTED_VERSION` (actor.py)."""
    values: NDArray[np.float64]
    """[P, number of names] shaping weights."""
    frames: NDArray[np.int64]
    """[P] total frames of the slot's member. When an episode of any slot ends, the learner updates all entries before
    it sends the next actions. With a device simulator, the entries are not updated."""
    budget_frames: NDArray[np.int64]
    """[P] expected total frames of the member at the end of the run. The supervisor writes the first estimate. If the
    run has a time limit, the learner updates the estimate.
    """

    @classmethod
    def map(cls, names: tuple[str, ...], slots: int, fd: int) -> ShapingTable:
        """Map the table. fd: descriptor of shared memory of `size(names, slots)` bytes."""
        memory = mmap.mmap(fd, cls.size(names, slots))
        ints: NDArray[np.int64] = np.ndarray((4, slots), np.int64, buffer=memory)
        values: NDArray[np.float64] = np.ndarray(
            (slots, len(names)), np.float64, buffer=memory, offset=ints.nbytes
        )
        return cls(names, ints[0], ints[1], values, ints[2], ints[3])

    @staticmethod
    def size(names: tuple[str, ...], slots: int) -> int:
        """Return the size of the table in bytes."""
        return 8 * slots * (4 + len(names)) or 8

    def write(self, slot: int, shaping_version: int, values: Mapping[str, float]) -> None:
        """Set the shaping of one slot. Only one process may write at a time. values: name -> weight."""
        self.guard[slot] += 1
        self.values[slot] = [values[name] for name in self.names]
        self.shaping_version[slot] = shaping_version
        self.guard[slot] += 1

    def read(self, slot: int) -> tuple[int, dict[str, float]]:
        """Return a slot's shaping version and shaping (name -> weight). Both are from the same write."""
        while True:
            before = int(self.guard[slot])
            shaping_version, values = int(self.shaping_version[slot]), self.values[slot].tolist()
            if before % 2 == 0 and before == self.guard[slot]:
                return shaping_version, dict(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class MatchupTable:
    """Matchups (policy of each agent) of a pack's vector envs, in shared memory.

    The supervisor writes the table, and the actors read it. All matchups share one sequence lock.
    """

    head: NDArray[np.int64]
    """[2] counter of the sequence lock, and version of the matchups. Each write increments the version."""
    rows: NDArray[np.int64]
    """[U, E, S] row whose policy acts as the agent."""
    fd: int

    @classmethod
    def map(cls, shape: tuple[int, int, int], fd: int) -> MatchupTable:
        """Map the table. shape: sizes (U, E, S). fd: descriptor of shared memory of `size(shape)` bytes."""
        memory = mmap.mmap(fd, cls.size(shape))
        head: NDArray[np.int64] = np.ndarray((2,), np.int64, buffer=memory)
        return cls(head, np.ndarray(shape, np.int64, buffer=memory, offset=head.nbytes), fd)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes (U, E, S) of `rows`."""
        vector_envs, environments, agents = self.rows.shape
        return vector_envs, environments, agents

    @staticmethod
    def size(shape: tuple[int, int, int]) -> int:
        """Return the size of the table in bytes."""
        return 8 * (2 + math.prod(shape))

    def write(self, row_UES: NDArray[np.int64]) -> int:
        """Set the matchups, and return their version. Only one process may write. row_UES: new `rows`."""
        self.head[0] += 1
        self.rows[:] = row_UES
        self.head[1] += 1
        self.head[0] += 1
        return int(self.head[1])

    def read(self, vector_env: int) -> tuple[int, NDArray[np.int64]]:
        """Return the version of the matchups, and the rows [E, S] of a vector env. Both are from the same write."""
        while True:
            before = int(self.head[0])
            matchup_version, row_ES = int(self.head[1]), self.rows[vector_env].copy()
            if before % 2 == 0 and before == self.head[0]:
                return matchup_version, row_ES
