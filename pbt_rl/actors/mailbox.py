"""Mailboxes: shared step buffers between an actor and its learner. Each vector env has a mailbox for one step.

Two counters in the header determine which process may write the arrays:

    OBSERVATIONS == ACTIONS + 1   The step is written. Only the learner may write, namely the actions for this step.
    OBSERVATIONS == ACTIONS       The actions are written. Only the actor may write, namely the next step.

After writing, a process increments its counter and wakes the other process through an eventfd. A mailbox has no lock.
Therefore, an actor may be killed at any point, and its successor continues with the mailbox. The data is stored before
the counter: the memory model of x86-64 preserves this order. On other CPUs, a reader that has not waited for the
eventfd may see the counter before the data.

Memory is anonymous (`memfd_create`) and passed by descriptor. Therefore, memory cannot leak.

Axes: R rows of the vector env, A action components.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.state_pool import anonymous_memory, poison
from pbt_rl.envs.base import ArraySpec, EnvSpec, StepArrays, step_array_specs, step_arrays
from pbt_rl.envs.episode_book import AT_ONCE, ROW, SECONDS_PER_ROW

ALIGN = 64

OBSERVATIONS, ACTIONS, HEARTBEAT_NS, BUSY_NS, STEPS = range(5)
"""Indices in the header. OBSERVATIONS, ACTIONS: the two counters. HEARTBEAT_NS: time of the last heartbeat. BUSY_NS:
total CPU time of the vector env's steps. STEPS: total number of steps, over all rows."""
HEARTBEAT = 8
"""Index of the first heartbeat cell (`envs/episode_book.py`) in the header. Heartbeat cells have a cache line for
themselves."""
HEADER = ArraySpec((16,), "int64")


def _layout(
    specs: Mapping[str, ArraySpec], rows: int
) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    """Lay out arrays in memory. Return name -> (offset, shape, dtype), and the total size in bytes."""
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
    """Mailbox of a vector env, used by actor, learner and supervisor.

    action: [R, A], actions for the step. step: arrays of observations, rewards, flags and episode statistics.
    fd: descriptor of the shared memory.
    """

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
        """Allocate a mailbox whose arrays contain poison, such as NaN. name: part of the memory file's name."""
        _, size = _layout(_mailbox_specs(spec), rows)
        box = cls(spec, rows, anonymous_memory(size, name))
        for array in (box.action, *box._arrays.values()):
            poison(array)
        return box

    @property
    def learner_has_turn(self) -> bool:
        """True if a step is written, but not yet the actions for this step."""
        return bool(self.header[OBSERVATIONS] > self.header[ACTIONS])

    def publish_step(self, wake_fd: int) -> None:
        """Actor: pass the written step to the learner."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[OBSERVATIONS] += 1
        os.eventfd_write(wake_fd, 1)

    def publish_action(self, wake_fd: int) -> None:
        """Learner: pass the written actions to the actor."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[ACTIONS] += 1
        os.eventfd_write(wake_fd, 1)

    @property
    def heartbeat(self) -> memoryview:
        """Heartbeat cells of the vector env, two int64 (`envs/episode_book.py`)."""
        return memoryview(self.memory)[8 * HEARTBEAT : 8 * (HEARTBEAT + 2)].cast("q")

    def begin_life(self) -> None:
        """Supervisor: reset the heartbeat when an actor starts."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.header[HEARTBEAT + AT_ONCE] = 0

    def heartbeat_age_seconds(self) -> float:
        """Supervisor: return the seconds since the last heartbeat, minus the present extension of the timeout.

        Heartbeats are: a written step, written actions, the start of an actor or of its first reset, and a change of
        the heartbeat cell ROW since the last call. Vector envs extend the timeout by `all_at_once`
        (`envs/episode_book.py`).
        """
        at_once = int(self.header[HEARTBEAT + AT_ONCE])
        row = int(self.header[HEARTBEAT + ROW])
        if row != self._row_seen:
            self._row_seen = row
            self.header[HEARTBEAT_NS] = time.monotonic_ns()
        return (time.monotonic_ns() - int(self.header[HEARTBEAT_NS])) / 1e9 - at_once * SECONDS_PER_ROW

    def begin_anew(self) -> None:
        """Supervisor: reset the counters when actor and learner are replaced. The new actor then writes first."""
        self.header[OBSERVATIONS] = self.header[ACTIONS] = 0

    def close(self) -> None:
        """Close the descriptor. The memory is freed when its last view is deleted."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
