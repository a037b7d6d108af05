"""Mailboxes: the shared memory between an actor and its learner, one per unit, holding one step.

A mailbox is a small state machine over two counters in its header:

    observations == actions + 1   the step lies here for the learner; only the learner may write (the actions)
    observations == actions       the actions lie here for the actor; only the actor may write (the next step)

The side that has finished writing raises its own counter and then wakes the other side through an eventfd; nothing
else is shared and there is no lock, so a process that is killed at any point leaves a mailbox that its
successor can continue with. (The x86-64 memory model keeps the order of the two stores; elsewhere the eventfd's
system call does.) Memory is anonymous (`memfd_create`) and passed by descriptor: nothing is left behind.

R rows of the unit, A action components.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.store import anonymous_memory, poison
from pbt_rl.envs.base import ArraySpec, EnvSpec, StepArrays, step_array_specs, step_arrays
from pbt_rl.envs.episodes import AT_ONCE, ROW, SECONDS_PER_ROW

ALIGN = 64

OBSERVATIONS, ACTIONS, HEARTBEAT_NS, BUSY_NS, STEPS = range(5)
PULSE = 8
"""First of the cells of the unit's pulse (`envs/episodes.py`), on a cache line of their own."""
HEADER = ArraySpec((16,), "int64")


def _layout(
    specs: Mapping[str, ArraySpec], rows: int
) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    """Return name -> (offset, shape, dtype) of arrays laid one after the other, and the size in bytes."""
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
    """One unit's mailbox, for either side. `action`: [R, A]; `step`: see StepArrays."""

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
        self._row_seen = 0

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
        """A step lies here whose actions are missing."""
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

    @property
    def pulse(self) -> memoryview:
        """Actor: the unit's pulse, see `envs/episodes.py`."""
        return memoryview(self.memory)[8 * PULSE : 8 * (PULSE + 2)].cast("q")

    def begin_life(self) -> None:
        """Supervisor: an actor starts, which has given no sign yet."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[PULSE + AT_ONCE] = 0

    def seconds_silent(self) -> float:
        """Supervisor: return for how long neither side has given a sign, less the patience for rows made at once.

        A sign is a step, an action, or a row that the unit has finished since the last call.
        """
        at_once = int(self.header[PULSE + AT_ONCE])
        row = int(self.header[PULSE + ROW])
        if row != self._row_seen:
            self._row_seen = row
            self.header[HEARTBEAT_NS] = time.monotonic_ns()
        return (time.monotonic_ns() - int(self.header[HEARTBEAT_NS])) / 1e9 - at_once * SECONDS_PER_ROW

    def begin_anew(self) -> None:
        """Supervisor: both sides are gone, and others begin: the actor has the turn, as in fresh memory."""
        self.header[OBSERVATIONS] = self.header[ACTIONS] = 0

    def close(self) -> None:
        """Release descriptor and memory (the mapping goes when its last view does)."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
