"""Signal handlers of a run.

    first Ctrl-C     save the run and end it
    second Ctrl-C    end without waiting. If the main thread hangs, for example in a write to a slow disk, a timer ends
                     the process after EXIT_SECONDS, and the kernel and the keepers kill its children

Python allows handlers only in the main thread. Therefore, a run in another thread has no handlers. While the main
thread runs C code that holds the GIL, neither handlers nor the timer run. An example is a step of an environment in
serial mode.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

EXIT_SECONDS = 4.0
SAME_PRESS_SECONDS = 0.1
"""Signals within this time count as one press of Ctrl-C. A wrapper may forward the signal, so that it arrives twice."""
SHOW_CURSOR = b"\x1b[?25h"


def in_main_thread() -> bool:
    """True if the calling thread is the main thread, in which Python allows signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def handling(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Install a handler of these signals within the context. Do nothing in threads other than the main thread.

    Signals that the process ignores stay ignored. For example, `nohup` makes a process ignore SIGHUP, and a shell
    script makes background jobs ignore SIGINT.
    """
    if not in_main_thread():
        yield
        return
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


class Presses:
    """Counter of Ctrl-C presses.

    A timer ends the process EXIT_SECONDS after the second press. `close` cancels the timer.
    """

    def __init__(self, exit_seconds: float = EXIT_SECONDS) -> None:
        self.count = 0
        self._last = 0.0
        self._timer = threading.Timer(exit_seconds, _end_process, (exit_seconds,))
        self._timer.daemon = True

    def note(self) -> None:
        """Count a received SIGINT. Signals within SAME_PRESS_SECONDS count once. The second press starts the timer."""
        now = time.monotonic()
        if not self.count or now - self._last > SAME_PRESS_SECONDS:
            self.count += 1
            if self.count == 2:
                self._timer.start()
        self._last = now

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()


def _end_process(seconds: float) -> None:
    """End this process without cleanup. The kernel and the keepers then kill its children. seconds: for the message."""
    said = f"pbt-rl: ended without a summary, because it hung for {seconds:.0f} s after Ctrl-C\n".encode()
    for fd, text in ((1, SHOW_CURSOR if os.isatty(1) else b""), (2, said)):
        with contextlib.suppress(OSError, ValueError):  # a closed descriptor
            if text and select.select([], [fd], [], 0)[1]:  # a stopped terminal would block
                os.write(fd, text)
    os._exit(128 + signal.SIGINT)
