"""Whether more threads want cores than there are, as the thread that acts feels it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_SECONDS = 1.0
CONTENDED = 0.1
"""Of the time of a window, waited for a core. It was 0.19 to 0.47 where actors and learner fill two cores."""


def seconds_waited(thread: int) -> float | None:
    """Return how long a thread of this process has waited for a core although it had work; None if there is no account.

    thread: its native id. Source: Linux, Documentation/scheduler/sched-stats.rst, the second number of schedstat.
    """
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Contention:
    """Watches the thread that makes it.

    waited: of a thread's native id, see `seconds_waited`. clock: in seconds.
    """

    def __init__(
        self,
        waited: Callable[[int], float | None] = seconds_waited,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waited, self._clock, self._thread = waited, clock, threading.get_native_id()
        self._began, self._before = clock(), waited(self._thread)
        self._contended = False

    def __call__(self) -> bool:
        """Return whether the thread waited for a core for much of the last whole window; False in the first one."""
        now = self._clock()
        if now - self._began >= WINDOW_SECONDS:
            waited = self._waited(self._thread)
            if waited is not None and self._before is not None:
                self._contended = waited - self._before > CONTENDED * (now - self._began)
            self._began, self._before = now, waited
        return self._contended
