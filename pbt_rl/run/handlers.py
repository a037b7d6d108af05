"""Signal handlers of a run. Python lets only the main thread have them: a run in another thread does without."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


def in_main_thread() -> bool:
    """Return whether handlers can be installed from here."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def handling(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Let `handler` take these signals inside, if that can be done from this thread."""
    if not in_main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
