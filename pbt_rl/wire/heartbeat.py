"""A learner's signs of life, in shared memory: the fleet reads from them whether it hangs.

    main thread    one sign per turn of its loop, at least twice per second
    trainer        one per optimiser step and per command; none while it has nothing to do

In the sync modes there is one thread, and each sign of the trainer is one of the main thread too. Every cell has one
writer, so nothing is locked.
"""

from __future__ import annotations

import mmap
import time

import numpy as np
from numpy.typing import NDArray

MAIN_NS, TRAINER_NS, TRAINER_BUSY = range(3)


class Heartbeat:
    """The signs of one learner, for either side. fd: of SIZE bytes of anonymous memory, which stays the caller's."""

    SIZE = 64

    def __init__(self, fd: int) -> None:
        self._cells: NDArray[np.int64] = np.ndarray((3,), np.int64, buffer=mmap.mmap(fd, self.SIZE))

    def begin(self) -> None:
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
