"""Waiting for another process, and a learner's signs of life.

A waiter is awake for a moment if that has paid lately, asleep otherwise. To wake a sleeper costs more than a step of a
small environment: on a virtual machine an idle core is halted, and starting it again took 50 to 250 us. It pays to stay
awake for an answer that comes sooner than that; waiting for a later one should not cost a core.

Signs of life are in shared memory: the fleet reads from them whether a learner hangs.

    main thread    one sign per turn of its loop, at least twice per second
    trainer        one per optimiser step and per command; none while it has nothing to do

In the sync modes there is one thread, and each sign of the trainer is one of the main thread too. Every cell has one
writer, so nothing is locked.
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

AWAKE_NS = 100_000
"""Longest time to stay awake: about the cost of waking."""
MOST_SKIPPED = 256
"""Waits that go to sleep at once after staying awake was in vain again and again."""


class AdaptivePoller:
    """Waits for descriptors to become readable.

    After a wait in which staying awake was in vain the next one sleeps at once, then the next 2, 4, ... So if answers
    are always late, or the cores are busy with something else, this costs next to nothing.
    """

    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)
        self._skip = self._skipped = 0

    def wait(self, milliseconds: float | None = None, *, awake: bool = True) -> list[int]:
        """Return the descriptors that are ready, none after `milliseconds` (None: wait for ever).

        awake: False sleeps at once, for the sake of another thread of this process that has work to do.
        """
        if awake and self._skipped >= self._skip:
            self._skipped = 0
            end = time.perf_counter_ns() + AWAKE_NS
            while time.perf_counter_ns() < end:
                if ready := self._poll.poll(
                    0
                ):  # a system call, not a look into memory: that lets other threads run
                    self._skip = 0
                    return [fd for fd, _ in ready]
            self._skip = min(2 * self._skip or 1, MOST_SKIPPED)
        else:
            self._skipped += 1
        return [fd for fd, _ in self._poll.poll(milliseconds)]


def mail_check(connection: Connection[Any, Any]) -> Callable[[], bool]:
    """Return what asks as `connection.poll` does, at a seventh of the cost: for a loop that asks all the time."""
    if not isinstance(connection, Connection):  # within a thread
        return connection.poll
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


MAIN_NS, TRAINER_NS, TRAINER_BUSY = range(3)


class Heartbeat:
    """The signs of one learner, for either side. fd: of SIZE bytes of anonymous memory, which stays the caller's."""

    SIZE = 64

    def __init__(self, fd: int) -> None:
        self._cells: NDArray[np.int64] = np.ndarray((3,), np.int64, buffer=mmap.mmap(fd, self.SIZE))

    def note_start(self) -> None:
        """Supervisor: a learner starts, which has given no sign yet."""
        self._cells[:] = (time.monotonic_ns(), 0, 0)

    def beat_main(self) -> None:
        """Learner, main thread: another turn of the loop begins."""
        self._cells[MAIN_NS] = time.monotonic_ns()

    def beat_trainer(self, busy: bool) -> None:
        """Learner, trainer thread: it has work (`busy`) and goes on with it, or has none any more."""
        self._cells[TRAINER_NS] = time.monotonic_ns()
        self._cells[TRAINER_BUSY] = busy

    @property
    def silent_seconds(self) -> float:
        """Supervisor: for how long a thread with work has given no sign."""
        # Whether it is busy first: else one that begins in between would look silent since its last work.
        main, busy, trainer = (int(self._cells[cell]) for cell in (MAIN_NS, TRAINER_BUSY, TRAINER_NS))
        return (time.monotonic_ns() - (min(main, trainer) if busy else main)) / 1e9
