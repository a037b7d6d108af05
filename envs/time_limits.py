"""Time limits for making an environment, which extend on a busy machine."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from pbt_rl.errors import EnvSetupError

PROBE_SECONDS = 120.0
"""Seconds for making one environment and reading its spaces."""
LONG_SECONDS = 1800.0
"""Seconds for a simulator on a device, which may compile or load for minutes."""
CLOSE_SECONDS = 3.0
"""Seconds for closing environments, as in a run."""
INSIST_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Seconds by which the limit outside a fork (first_trial.py) exceeds the one inside, whose message is more specific."""
told_of_long: list[Callable[[], object]] = []
"""Callbacks before the longer limit begins, for processes that wait for this one."""


LAST_RESORT = 50
"""Number of times that code may catch its interruption before the process ends with its location."""
LOOKS = 4
"""Number of checks per limit."""
LEAST_COUNTED = 0.25
"""Minimum share of wall time that counts, so that a hanging process is detected even on a busy machine."""


class Patience:
    """Timeout of processes, without the time in which they were stopped or waited for a processor.

    The first of LOOKS parts is wall time, so that a short step needs no measurement.
    pid: the process; its child processes are included.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        self.left, self.pause = seconds, seconds / LOOKS
        self._pid, self._then = pid, time.monotonic()
        self._waited: float | None = None

    def next_look(self) -> float:
        """Count the time since the last check; return the seconds until the next one, 0 if none are left."""
        now, waited = time.monotonic(), waited_seconds(self._pid)
        # More time passes only while the process is stopped.
        passed = min(now - self._then, self.pause)
        starved = 0.0 if self._waited is None else waited - self._waited
        self.left -= min(passed, max(passed - starved, passed * LEAST_COUNTED))
        self._then, self._waited = now, waited
        return min(self.left, self.pause) if self.left > self.pause / 100 else 0.0


def waited_seconds(pid: int) -> float:
    """Return the seconds that the threads of a process and of its children have waited for a processor."""
    total = 0.0
    with suppress(OSError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[1]) / 1e9
                total += sum(map(waited_seconds, map(int, (task / "children").read_text().split())))
    return total


class _Ring:
    """Handler of the alarm signal, which raises when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.patience = Patience(seconds, os.getpid())
        self.rang = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        pause = self.patience.next_look()
        if not pause:
            self.rang += 1
            if self.rang > LAST_RESORT:  # the environment catches every exception
                faulthandler.dump_traceback(2)
                os._exit(1)
            signal.setitimer(signal.ITIMER_REAL, INSIST_SECONDS)  # the next call may hang, too
            raise _Hangs
        signal.setitimer(signal.ITIMER_REAL, pause)


class _Hangs(BaseException):  # not an Exception, because the environment's own handlers must not catch it
    pass


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise EnvSetupError if the body takes too long (unless it hangs in C, or runs outside the main thread).

    An enclosing limit that ends sooner takes precedence.
    """
    outer, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    if left and isinstance(outer, _Ring):  # without a timer, the handler belongs to the parent of this fork
        left = outer.patience.left
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield
        return
    ring = _Ring(seconds)
    before = signal.signal(signal.SIGALRM, ring)
    others = signal.setitimer(signal.ITIMER_REAL, ring.patience.pause)
    try:
        with suppress(_Hangs):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)
    if ring.rang:
        raise EnvSetupError(message)


class Closes(Protocol):
    """Protocol of objects that can be closed."""

    def close(self) -> None:
        """Release it."""


T = TypeVar("T", bound=Closes)


def close_in_time(env: Closes) -> str:
    """Close an environment; return an error text if that raises or takes too long. In the latter case it stays open."""
    text = f"close() did not return within {CLOSE_SECONDS:g} s"
    held = [env, *(list(value) for value in getattr(env, "__dict__", {}).values() if isinstance(value, list))]
    try:
        with time_limit(CLOSE_SECONDS, text):
            env.close()
    except Exception as error:  # noqa: BLE001 - closing is the last step, so any error is only reported
        if str(error) != text:
            return f"close() raised {type(error).__name__}: {error}"
        # Never freed, because some environments also close in __del__
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        return text
    return ""


@contextmanager
def closing(env: T) -> Iterator[T]:
    """Close an environment at the end (see `close_in_time`) and print errors to stderr."""
    try:
        yield env
    finally:
        if text := close_in_time(env):
            print(f"warning: {text}", file=sys.stderr)


def making(env_id: str, *, long: bool = False) -> str:
    """Return the message for an environment that hangs while it is made. long: with the longer limit."""
    seconds = LONG_SECONDS if long else PROBE_SECONDS
    return f"{env_id} hangs: making it took more than {seconds:g} s. Load slow data beforehand"
