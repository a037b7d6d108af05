"""Mailboxes: the shared memory between an actor and its learner, one per unit, holding one step.

A mailbox is a small state machine over two counters in its header:

    observations == actions + 1   the step lies here for the learner; only the learner may write (the actions)
    observations == actions       the actions lie here for the actor; only the actor may write (the next step)

Whoever has finished writing raises its own counter and then wakes the other side through an eventfd; nothing
else is shared and there is no lock, so a process that is killed at any point leaves a mailbox that its
successor can go on with. (The x86-64 memory model keeps the order of the two stores; elsewhere the eventfd's
system call does.) Memory is anonymous (`memfd_create`) and passed by descriptor: nothing is left behind.

R rows of the unit, A action components.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.envs.base import ArraySpec, EnvSpec, StepArrays, step_array_specs, step_arrays

ALIGN = 64
POISON_BYTE = 0xA5
"""Fresh integer and boolean memory; fresh floats are NaN."""

OBSERVATIONS, ACTIONS, HEARTBEAT_NS, BUSY_NS, STEPS = range(5)
HEADER = ArraySpec((8,), "int64")


def anonymous_memory(size: int, name: str) -> int:
    """Return the descriptor of `size` bytes of zeroed anonymous shared memory."""
    fd = os.memfd_create(f"pbt_rl-{name}", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def poison(array: NDArray[Any]) -> None:
    """Fill with values that show when they are read before they were written."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(POISON_BYTE)


def _layout(
    specs: Mapping[str, ArraySpec], rows: int
) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    """Name -> (offset, shape, dtype) of arrays laid one after the other, and the size in bytes."""
    table, offset = {}, HEADER.shape[0] * 8
    for name, spec in specs.items():
        shape = (rows, *spec.shape)
        table[name] = (offset, shape, spec.dtype)
        size = int(np.prod(shape)) * np.dtype(spec.dtype).itemsize
        offset += -(-size // ALIGN) * ALIGN
    return table, offset


def _mailbox_specs(spec: EnvSpec) -> dict[str, ArraySpec]:
    return step_array_specs(spec) | {"action": ArraySpec((spec.action.components,), spec.action.dtype)}


class Mailbox:
    """One unit's mailbox, seen from either side. `action`: [R, A]; `step`: see StepArrays."""

    def __init__(self, spec: EnvSpec, rows: int, fd: int) -> None:
        self.spec, self.rows, self.fd = spec, rows, fd
        layout, size = _layout(_mailbox_specs(spec), rows)
        self.memory = mmap.mmap(fd, size)
        arrays = {
            name: np.ndarray(shape, dtype, buffer=self.memory, offset=offset)
            for name, (offset, shape, dtype) in layout.items()
        }
        self.header: NDArray[np.int64] = np.ndarray(HEADER.shape, HEADER.dtype, buffer=self.memory)
        self.action: NDArray[Any] = arrays.pop("action")
        self.step: StepArrays = step_arrays(spec, arrays)
        self._arrays = arrays

    @classmethod
    def create(cls, spec: EnvSpec, rows: int, name: str) -> Mailbox:
        """Make the memory and poison it."""
        _, size = _layout(_mailbox_specs(spec), rows)
        box = cls(spec, rows, anonymous_memory(size, name))
        for array in (box.action, *box._arrays.values()):
            poison(array)
        return box

    @property
    def learner_has_turn(self) -> bool:
        """A step lies here that was not answered."""
        return bool(self.header[OBSERVATIONS] > self.header[ACTIONS])

    def publish_step(self, wake_fd: int) -> None:
        """Actor: the step is written; hand the mailbox to the learner."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[OBSERVATIONS] += 1
        os.eventfd_write(wake_fd, 1)

    def publish_action(self, wake_fd: int) -> None:
        """Learner: the actions are written; hand the mailbox to the actor."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[ACTIONS] += 1
        os.eventfd_write(wake_fd, 1)

    def seconds_with_actor(self) -> float:
        """How long the actor has held the turn; 0 while the learner has it."""
        if self.learner_has_turn:
            return 0.0
        return (time.monotonic_ns() - int(self.header[HEARTBEAT_NS])) / 1e9

    def close(self) -> None:
        """Release descriptor and memory (the mapping goes when its last view does)."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


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

    @classmethod
    def map(cls, shape: tuple[int, int, int], fd: int) -> MatchupTable:
        """See the table behind a descriptor of `size(shape)` bytes."""
        memory = mmap.mmap(fd, cls.size(shape))
        head: NDArray[np.int64] = np.ndarray((2,), np.int64, buffer=memory)
        return cls(head, np.ndarray(shape, np.int64, buffer=memory, offset=head.nbytes))

    @staticmethod
    def size(shape: tuple[int, int, int]) -> int:
        """Bytes of the table."""
        return 8 * (2 + math.prod(shape))

    def write(self, row_UES: NDArray[np.int64]) -> int:
        """Seat everybody anew; returns the version. Only one process may write."""
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
