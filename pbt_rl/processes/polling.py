"""Waiting for another process, and the heartbeat of a learner.

Waking a blocked process takes longer than a step of a small environment: on a virtual machine, an idle core is halted,
and its restart took 50 to 250 us. Therefore, a process spins briefly if recent waits were short; otherwise it blocks.

The heartbeat of a learner is in shared memory. The supervisor reads the heartbeat to detect a hanging learner.

    main thread       a heartbeat per iteration of its loop, which waits at most 0.5 s for work
    trainer thread    a heartbeat per optimiser step and per command; no heartbeat while the trainer is idle

In the modes sync and serial, a single thread writes both heartbeats. No lock is needed, because each cell usually has
one writer. There are two exceptions. If several threads learn, all of them write the trainer's cells, with almost equal
values. While a device simulator runs slow code, another thread writes the main thread's cell.
"""

from __future__ import annotations

import mmap
import select
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPIN_NS = 100_000
"""Maximum nanoseconds to spin: about the time that waking a blocked process takes."""
MOST_SKIPPED = 256
"""Maximum number of consecutive waits without spinning."""


class AdaptivePoller:
    """Poller that waits for descriptors to become readable.

    A wait first spins for at most SPIN_NS, and then blocks. After 1, 2, 3, ... failed spins in a row, the next
    1, 2, 4, ... waits block without spinning. Therefore, spinning takes almost no time if answers are always late or
    the cores are busy.

    fds: descriptors to wait for.
    """

    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)
        self._skip = self._skipped = 0

    def wait(self, milliseconds: float | None = None, *, spin: bool = True) -> list[int]:
        """Return the ready descriptors, or an empty list after the timeout.

        milliseconds: timeout. None: wait without a timeout.
        spin: False if the wait must not spin, for example because another thread of this process needs the core.
        """
        if spin and self._skipped >= self._skip:
            self._skipped = 0
            end = time.perf_counter_ns() + SPIN_NS
            while time.perf_counter_ns() < end:
                if ready := self._poll.poll(0):  # a system call, because it releases the GIL
                    self._skip = 0
                    return [fd for fd, _ in ready]
            self._skip = min(2 * self._skip or 1, MOST_SKIPPED)
        else:
            self._skipped += 1
        return [fd for fd, _ in self._poll.poll(milliseconds)]


def mail_check(connection: Connection[Any, Any]) -> Callable[[], bool]:
    """Return a function that returns True if a message has arrived: `connection.poll`, but seven times as fast."""
    if not isinstance(connection, Connection):  # in serial mode, `connection` is a queue in this process
        return connection.poll
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


MAIN_NS, TRAINER_NS, TRAINER_BUSY = range(3)
"""Indices of the cells. MAIN_NS, TRAINER_NS: times of the two heartbeats (`time.monotonic_ns`). TRAINER_BUSY: 1 if the
trainer has work, otherwise 0."""


class Heartbeat:
    """Heartbeat of a learner in shared memory. fd: descriptor of SIZE bytes. This class does not close it."""

    SIZE = 64

    def __init__(self, fd: int) -> None:
        self._cells: NDArray[np.int64] = np.ndarray((3,), np.int64, buffer=mmap.mmap(fd, self.SIZE))

    def note_start(self) -> None:
        """Supervisor: reset the heartbeat when a learner starts."""
        self._cells[:] = (time.monotonic_ns(), 0, 0)

    def beat_main(self) -> None:
        """Learner, main thread: mark the start of a loop iteration."""
        self._cells[MAIN_NS] = time.monotonic_ns()

    def beat_trainer(self, busy: bool) -> None:
        """Learner, trainer thread: mark progress. busy: True if the trainer has further work to do."""
        self._cells[TRAINER_NS] = time.monotonic_ns()
        self._cells[TRAINER_BUSY] = busy

    @property
    def learns(self) -> bool:
        """Supervisor: True if the trainer had work at its last heartbeat."""
        return bool(self._cells[TRAINER_BUSY])

    @property
    def heartbeat_age_seconds(self) -> float:
        """Supervisor: seconds since the main thread's last heartbeat.

        If the trainer has work: seconds since the older one of the last heartbeats of main thread and trainer.
        """
        # `busy` is read before the trainer's time. Otherwise, work that starts between these reads would look overdue.
        main, busy, trainer = (int(self._cells[cell]) for cell in (MAIN_NS, TRAINER_BUSY, TRAINER_NS))
        return (time.monotonic_ns() - (min(main, trainer) if busy else main)) / 1e9
