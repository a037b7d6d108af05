"""The second Ctrl-C: the run ends at once, whatever hangs.

    first SIGINT     the run ends in order, and is saved
    second SIGINT    nothing is waited for any more; should the main thread itself hang, in a write to a dead disk for
                     instance, a thread ends the process after EXIT_SECONDS, and the kernel kills its children

The thread sees signals through a pipe that the interpreter's C code writes to, so the main thread may hang in a system
call. It cannot act while C code holds the interpreter's lock, as an environment may in serial mode.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from types import TracebackType
from typing import Self

EXIT_SECONDS = 4.0
SAME_PRESS_SECONDS = 0.1
"""A wrapper may forward the signal that the terminal has sent already."""
SHOW_CURSOR = b"\x1b[?25h"


class Presses:
    """Counts how often Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0.0

    def note(self) -> None:
        """Note a SIGINT."""
        now = time.monotonic()
        if not self.count or now - self._last > SAME_PRESS_SECONDS:
            self.count += 1
        self._last = now


class Watchdog:
    """Ends the process if it is still in the `with` block EXIT_SECONDS after the second SIGINT. Main thread only."""

    def __init__(self, exit_seconds: float = EXIT_SECONDS) -> None:
        self._exit_seconds = exit_seconds
        self._left = threading.Event()

    def __enter__(self) -> Self:
        """Begin to watch. A handler for SIGINT must be installed."""
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._before)
        self._left.set()
        with contextlib.suppress(BlockingIOError):  # full: the thread wakes up all the same
            os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        presses = Presses()
        while not self._left.is_set():
            for number in os.read(self._read, 64):
                if number == signal.SIGINT:
                    presses.note()
            if presses.count > 1 and not self._left.wait(self._exit_seconds):
                _end_process(self._exit_seconds)


def _end_process(seconds: float) -> None:
    """End this process without any cleaning up; its children die with it (`wire.process`)."""
    for fd, text in (
        (1, SHOW_CURSOR if os.isatty(1) else b""),
        (
            2,
            f"pbt-rl: ended without a summary, as something hung for {seconds:.0f} s after Ctrl-C\n".encode(),
        ),
    ):
        try:
            if text and select.select([], [fd], [], 0)[1]:  # a terminal may be stopped, a pipe full
                os.write(fd, text)
        except (OSError, ValueError):  # closed
            continue
    os._exit(128 + signal.SIGINT)
