"""Clocks of the loop. A supervisor that was stopped must not take everybody else for hung: it counts its own time."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from pbt_rl.envs.time_limits import LEAST_COUNTED, waited_seconds

GAP_SECONDS = 1.0
"""A longer time between two ticks is one in which this process was stopped, or busy with something long."""
GAPS_KEPT = 1000
LOOK_SECONDS, STOP_SECONDS = 0.25, 2.0
"""A thread looks at the clock this often; between two looks that are farther apart the process was stopped."""


class Every:
    """Tells when something that is done again and again is due. at_once: at first it is due now."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._next = time.monotonic() + (0.0 if at_once else seconds)

    def due(self) -> bool:
        """Whether it is time; if so, the next time begins now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._began, self._next = now, now + self._seconds
        return True

    def done(self, gap: Callable[[float], float]) -> None:
        """Be due next after a time that depends on how long it took. gap: seconds that it took -> seconds from now."""
        now = time.monotonic()
        self._next = now + gap(now - self._began)


class AwakeClock:
    """Tells how long ago a moment was, without the time between ticks that were far apart.

    clock: seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, clock()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS_KEPT)
        """(begin, end)"""

    def tick(self) -> None:
        """Note that this process runs. To be called several times per second."""
        now = self._clock()
        if now - self._last > GAP_SECONDS:
            self._gaps.append((self._last, now))
        self._last = now

    def of_last(self, seconds: float) -> float:
        """Return for how many of the last seconds this process ran."""
        moment = self._clock() - seconds
        return seconds - sum(end - max(begin, moment) for begin, end in self._gaps if end > moment)


class RunningClock:
    """Seconds since any moment, without those in which this whole process was stopped (SIGSTOP, a frozen container).

    A thread looks at the clock often, also while the main thread waits. Between two looks that are far apart only the
    processor time of the process counts: it was at work and let no thread look.
    clock, cpu: seconds since any moment, and of processor time.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu, self._lock = clock, cpu, threading.Lock()
        self._last, self._last_cpu, self._stopped = clock(), cpu(), 0.0
        threading.Thread(target=_look_often, args=(weakref.ref(self),), name="clock", daemon=True).start()

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            now, cpu = self._clock(), self._cpu()
            idle = now - self._last - (cpu - self._last_cpu)
            if idle > STOP_SECONDS:
                self._stopped += idle
            self._last, self._last_cpu = now, cpu
            return now - self._stopped


def _look_often(clock: weakref.ref[RunningClock]) -> None:
    while (there := clock()) is not None:
        there()
        del there
        time.sleep(LOOK_SECONDS)


class Starved:
    """Takes from the silence of one process the time for which it waited for a processor, from GAP_SECONDS of it on.

    clock: seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began, self._waited = clock, float("-inf"), 0.0

    def of_silence(self, seconds: float, counted: float, pid: int) -> float:
        """Return how many of `counted` seconds count: LEAST_COUNTED of them at least.

        seconds: since the last sign of the process; ask once a second. pid: with it count those that it has started.
        """
        began, waited = self._clock() - seconds, waited_seconds(pid)
        if began > self._began + GAP_SECONDS:  # there was a sign since
            self._began, self._waited = began, waited
        starved = max(0.0, waited - self._waited)  # of a thread that has ended nothing is known any more
        return max(counted - starved, counted * LEAST_COUNTED)


class Patience:
    """Ends after some seconds without progress in which this process ran. While it is stopped, others often are too.

    clock: seconds since any moment.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._last = seconds, clock, clock()
        self._left = seconds

    def renew(self) -> None:
        """Begin again, after progress."""
        self._left = self._seconds

    def over(self) -> bool:
        """Whether it has ended. Asked several times per second: from call to call at most GAP_SECONDS count."""
        now = self._clock()
        self._left -= min(now - self._last, GAP_SECONDS)
        self._last = now
        return self._left <= 0.0
