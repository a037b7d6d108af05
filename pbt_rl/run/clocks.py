"""Timers, and clocks that exclude time in which this process was stopped (SIGSTOP, frozen container).

With ordinary clocks, the supervisor would treat all its processes as hung after such a stop.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from pbt_rl.envs.time_limits import LEAST_COUNTED, waited_seconds

GAP_SECONDS = 1.0
"""Longest interval between two ticks that a clock includes. In longer intervals, the process was stopped or busy."""
GAPS_KEPT = 1000
LOOK_SECONDS, STOP_SECONDS = 0.25, 2.0
"""Polling interval of `RunningClock`, and the idle time between two polls that counts as a stop of the process."""


class Every:
    """Periodic timer. at_once: due immediately for the first time, instead of after one period."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._next = time.monotonic() + (0.0 if at_once else seconds)

    def due(self) -> bool:
        """Check whether the period is over. If it is, start the next period."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._began, self._next = now, now + self._seconds
        return True

    def done(self, gap: Callable[[float], float]) -> None:
        """Set the next due time, after the work of this period.

        gap: function that gets the seconds since `due` returned True, and returns the seconds until the next due time.
        """
        now = time.monotonic()
        self._next = now + gap(now - self._began)


class ScheduledClock:
    """Clock that excludes intervals of more than GAP_SECONDS between two ticks.

    clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, clock()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS_KEPT)
        """(begin, end) of each excluded interval."""

    def tick(self) -> None:
        """Record that this process runs. Call it several times per second."""
        now = self._clock()
        if now - self._last > GAP_SECONDS:
            self._gaps.append((self._last, now))
        self._last = now

    def of_last(self, seconds: float) -> float:
        """Return the running time of this process within the last `seconds`, in seconds."""
        moment = self._clock() - seconds
        return seconds - sum(end - max(begin, moment) for begin, end in self._gaps if end > moment)


class RunningClock:
    """Clock that excludes time in which this process was stopped (SIGSTOP, frozen container).

    A separate thread polls the clock. If the process is idle for more than STOP_SECONDS between two polls, only the CPU
    time between these polls counts. (A busy process can delay the thread without being stopped.)
    clock: a monotonic clock in seconds. cpu: CPU seconds of the process.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu, self._lock = clock, cpu, threading.Lock()
        self._last, self._last_cpu, self._stopped = clock(), cpu(), 0.0
        threading.Thread(target=_look_often, args=(weakref.ref(self),), name="clock", daemon=True).start()

    def __call__(self) -> float:
        """Return the time in seconds, without stopped time."""
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


class SchedulingDelay:
    """Calculator of a process's heartbeat age without its waits for a CPU core.

    clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began, self._waited = clock, float("-inf"), 0.0

    def deduct(self, seconds: float, counted: float, pid: int) -> float:
        """Return `counted` minus the seconds in which the process waited for a core.

        Waits count from the first call after the process's last heartbeat. Call this method at least once a second.
        The result is at least LEAST_COUNTED * `counted`.
        seconds: seconds since the last heartbeat. counted: number of these seconds in which the calling process ran.
        pid: process id. Waits of child processes are included.
        """
        began, waited = self._clock() - seconds, waited_seconds(pid)
        if began > self._began + GAP_SECONDS:  # there was a newer heartbeat
            self._began, self._waited = began, waited
        delayed = max(0.0, waited - self._waited)  # may be negative, because ended threads leave the sum
        return max(counted - delayed, counted * LEAST_COUNTED)


class Timeout:
    """Timeout that `renew` restarts after progress.

    Time in which this process is stopped is excluded, because the other processes are often stopped with it.
    clock: a monotonic clock in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._last = seconds, clock, clock()
        self._left = seconds

    def renew(self) -> None:
        """Restart the timeout. Call it after progress."""
        self._left = self._seconds

    def over(self) -> bool:
        """Check whether the timeout is over. Call it several times per second.

        Of the time between two calls, at most GAP_SECONDS are included.
        """
        now = self._clock()
        self._left -= min(now - self._last, GAP_SECONDS)
        self._last = now
        return self._left <= 0.0
