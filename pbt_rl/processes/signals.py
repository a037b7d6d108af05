"""Signal handlers of a run, and the second Ctrl-C, after which it ends at once, whatever hangs.

    first SIGINT     the run ends in order, and is saved
    second SIGINT    nothing is waited for any more; should the main thread itself hang, in a write to a slow disk for
                     instance, a timer ends the process after EXIT_SECONDS, and the kernel kills its children

Python lets only the main thread have handlers: a run in another thread does without. A handler is called between two
steps of the interpreter, or when the signal interrupts a call of the kernel. It is not called, and the timer cannot
act, while C code runs that does neither, as an environment may in serial mode.
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
"""A wrapper may forward the signal that the terminal has sent already."""
SHOW_CURSOR = b"\x1b[?25h"


def in_main_thread() -> bool:
    """Return whether handlers can be installed from here."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def handling(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Let `handler` take these signals inside, if that can be done from this thread.

    What was ignored stays ignored: `nohup` has SIGHUP ignored, a script SIGINT for its background jobs.
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
    """Counts how often Ctrl-C was pressed, and ends the process if it is not closed EXIT_SECONDS after the second."""

    def __init__(self, exit_seconds: float = EXIT_SECONDS) -> None:
        self.count = 0
        self._last = 0.0
        self._timer = threading.Timer(exit_seconds, _end_process, (exit_seconds,))
        self._timer.daemon = True

    def note(self) -> None:
        """Note a SIGINT."""
        now = time.monotonic()
        if not self.count or now - self._last > SAME_PRESS_SECONDS:
            self.count += 1
            if self.count == 2:
                self._timer.start()
        self._last = now

    def close(self) -> None:
        """Let the process live on."""
        self._timer.cancel()


def _end_process(seconds: float) -> None:
    """End this process without any cleaning up; its children die with it (see `keeper`)."""
    said = f"pbt-rl: ended without a summary, as something hung for {seconds:.0f} s after Ctrl-C\n".encode()
    for fd, text in ((1, SHOW_CURSOR if os.isatty(1) else b""), (2, said)):
        with contextlib.suppress(OSError, ValueError):  # closed
            if text and select.select([], [fd], [], 0)[1]:  # a terminal may be stopped, a pipe full
                os.write(fd, text)
    os._exit(128 + signal.SIGINT)
