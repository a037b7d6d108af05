"""Shared-memory tables of reward shaping and matchups, with sequence locks.

In a sequence lock, `guard` is odd while an entry is written. A reader retries until it reads the same even number
before and after.

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
    """Reward shaping of a pack's slots in shared memory. Written by the learner, read by its actors.

    There is one sequence lock per slot. `frames` and `budget_frames` show the training progress of the slot's member.
    They are single numbers and need no lock.
    """

    names: tuple[str, ...]
    guard: NDArray[np.int64]
    """[P]"""
    shaping_version: NDArray[np.int64]
    """[P] rises with every write. Each episode carries the version that it started under."""
    values: NDArray[np.float64]
    """[P, number of names]"""
    frames: NDArray[np.int64]
    """[P] written by the sampler when an episode ends, before the step that starts the next one."""
    budget_frames: NDArray[np.int64]
    """[P] written by the supervisor, and by the learner if the run has a time limit in seconds."""

    @classmethod
    def map(cls, names: tuple[str, ...], slots: int, fd: int) -> ShapingTable:
        """Map the table. fd: descriptor of `size(...)` bytes."""
        memory = mmap.mmap(fd, cls.size(names, slots))
        ints: NDArray[np.int64] = np.ndarray((4, slots), np.int64, buffer=memory)
        values: NDArray[np.float64] = np.ndarray(
            (slots, len(names)), np.float64, buffer=memory, offset=ints.nbytes
        )
        return cls(names, ints[0], ints[1], values, ints[2], ints[3])

    @staticmethod
    def size(names: tuple[str, ...], slots: int) -> int:
        """Size of the table in bytes."""
        return 8 * slots * (4 + len(names)) or 8

    def write(self, slot: int, shaping_version: int, values: Mapping[str, float]) -> None:
        """Set the shaping of one slot. Only one process may write."""
        self.guard[slot] += 1
        self.values[slot] = [values[name] for name in self.names]
        self.shaping_version[slot] = shaping_version
        self.guard[slot] += 1

    def read(self, slot: int) -> tuple[int, dict[str, float]]:
        """Return (shaping_version, values) of one slot from a single write."""
        while True:
            before = int(self.guard[slot])
            shaping_version, values = int(self.shaping_version[slot]), self.values[slot].tolist()
            if before % 2 == 0 and before == self.guard[slot]:
                return shaping_version, dict(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class MatchupTable:
    """Matchups of a pack's vector envs in shared memory. Written by the supervisor, read by the pack's actors.

    There is one sequence lock for all of them.
    """

    head: NDArray[np.int64]
    """[2] guard and matchup_version, which rises with every write."""
    rows: NDArray[np.int64]
    """[U, E, S] row that plays each agent of each environment of each vector env."""
    fd: int

    @classmethod
    def map(cls, shape: tuple[int, int, int], fd: int) -> MatchupTable:
        """Map the table. fd: descriptor of `size(shape)` bytes."""
        memory = mmap.mmap(fd, cls.size(shape))
        head: NDArray[np.int64] = np.ndarray((2,), np.int64, buffer=memory)
        return cls(head, np.ndarray(shape, np.int64, buffer=memory, offset=head.nbytes), fd)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(U, E, S)."""
        vector_envs, environments, agents = self.rows.shape
        return vector_envs, environments, agents

    @staticmethod
    def size(shape: tuple[int, int, int]) -> int:
        """Size of the table in bytes."""
        return 8 * (2 + math.prod(shape))

    def write(self, row_UES: NDArray[np.int64]) -> int:
        """Set the matchups. Return the new matchup_version. Only one process may write."""
        self.head[0] += 1
        self.rows[:] = row_UES
        self.head[1] += 1
        self.head[0] += 1
        return int(self.head[1])

    def read(self, vector_env: int) -> tuple[int, NDArray[np.int64]]:
        """Return (matchup_version, [E, S] rows) of one vector env, both from one write."""
        while True:
            before = int(self.head[0])
            matchup_version, row_ES = int(self.head[1]), self.rows[vector_env].copy()
            if before % 2 == 0 and before == self.head[0]:
                return matchup_version, row_ES
