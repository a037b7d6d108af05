"""Waiting for another process, and the heartbeat of a learner.

Spin briefly if recent waits were short; otherwise block. Waking a blocked process costs more than a step of a small
environment: on a virtual machine an idle core is halted, and its restart took 50 to 250 us. Spinning pays for answers
that come sooner. For later ones it would waste a core.

Heartbeats are in shared memory, where the fleet reads whether a learner hangs.

    main thread    one heartbeat per iteration of its loop, at least twice per second
    trainer        one per optimiser step and per command; none while it is idle

The sync modes have one thread, so each heartbeat of the trainer is one of the main thread too. Each cell has one
writer, so no lock is needed.
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
"""Longest time to spin: about the cost of a wake-up."""
MOST_SKIPPED = 256
"""Upper limit of consecutive waits that block at once after spinning has failed repeatedly."""


class AdaptivePoller:
    """Waits for descriptors to become readable.

    After a failed spin, the next 1, 2, 4, ... waits block at once. So spinning costs almost nothing if answers are
    always late or the cores are busy.
    """

    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)
        self._skip = self._skipped = 0

    def wait(self, milliseconds: float | None = None, *, awake: bool = True) -> list[int]:
        """Return the ready descriptors, or none after the timeout (None: wait forever).

        awake: False blocks at once, because another thread of this process has work to do.
        """
        if awake and self._skipped >= self._skip:
            self._skipped = 0
            end = time.perf_counter_ns() + AWAKE_NS
            while time.perf_counter_ns() < end:
                if ready := self._poll.poll(
                    0
                ):  # a system call instead of a read from memory, because it releases the GIL
                    self._skip = 0
                    return [fd for fd, _ in ready]
            self._skip = min(2 * self._skip or 1, MOST_SKIPPED)
        else:
            self._skipped += 1
        return [fd for fd, _ in self._poll.poll(milliseconds)]


def mail_check(connection: Connection[Any, Any]) -> Callable[[], bool]:
    """Return a faster `connection.poll` for a busy loop: a seventh of its cost."""
    if not isinstance(connection, Connection):  # the learner runs in a thread
        return connection.poll
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


MAIN_NS, TRAINER_NS, TRAINER_BUSY = range(3)


class Heartbeat:
    """Heartbeat of one learner, for either side. fd: SIZE bytes of anonymous memory, owned by the caller."""

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
        """Learner, trainer thread: mark progress. busy: it has more work."""
        self._cells[TRAINER_NS] = time.monotonic_ns()
        self._cells[TRAINER_BUSY] = busy

    @property
    def learns(self) -> bool:
        """Supervisor: whether the trainer has work."""
        return bool(self._cells[TRAINER_BUSY])

    @property
    def heartbeat_age_seconds(self) -> float:
        """Supervisor: seconds since the last heartbeat of a thread with work."""
        # Read `busy` before the trainer's time. Otherwise work that starts in between would look overdue at once.
        main, busy, trainer = (int(self._cells[cell]) for cell in (MAIN_NS, TRAINER_BUSY, TRAINER_NS))
        return (time.monotonic_ns() - (min(main, trainer) if busy else main)) / 1e9
