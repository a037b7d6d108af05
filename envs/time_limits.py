"""Time limits for code of environments. The limits are extended on a busy machine."""

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

from .user_values import attribute

PROBE_SECONDS = 120.0
"""Timeout for making one environment and reading its spaces."""
LONG_SECONDS = 1800.0
"""Timeout for making a simulator on a device, which may compile or load for minutes."""
CLOSE_SECONDS = 3.0
"""Timeout for closing an environment."""
INSIST_SECONDS = 0.2
"""Pause between two interruptions of code that catches the first interruption."""
GRACE_SECONDS = 5.0
"""Extra timeout of a process that waits for its fork (first_trial.py). The fork then times out first, with an error
that is more specific than this process's error.
"""
told_of_long: list[Callable[[], object]] = []
"""Functions to call before the timeout LONG_SECONDS starts. They inform processes that wait for this process."""


LAST_RESORT = 50
"""Maximum number of interruptions that code may catch. The next interruption prints the stack and ends the process."""
LOOKS = 4
"""Minimum number of checks per timeout."""
LEAST_COUNTED = 0.25
"""Minimum share of the wall time that counts toward a timeout, while the process is not stopped. Without a minimum, a
process that hangs on a busy machine might never reach its timeout.
"""


class ProcessTimeout:
    """Timeout of a process. Time in which the process waits for a CPU counts only in part (see LEAST_COUNTED).

    Time in which the measuring process is stopped, for example by Ctrl-Z, hardly counts.
    In the first of LOOKS equal parts of the timeout, all wall time counts. Therefore short calls need no measurement.

    seconds: the timeout. The attribute `left` has the seconds that are left.
    pid: id of the process. The waiting times of its descendants are included.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        self.left, self.pause = seconds, seconds / LOOKS
        self._pid, self._then = pid, time.monotonic()
        self._waited: float | None = None

    def next_look(self) -> float:
        """Reduce `left` by the time since the last check.

        Return the seconds until the next check, 0 after the timeout.
        """
        now, waited = time.monotonic(), waited_seconds(self._pid)
        # If more than `pause` has passed, this process was stopped.
        passed = min(now - self._then, self.pause)
        delayed = 0.0 if self._waited is None else waited - self._waited
        self.left -= min(passed, max(passed - delayed, passed * LEAST_COUNTED))
        self._then, self._waited = now, waited
        return min(self.left, self.pause) if self.left > self.pause / 100 else 0.0


def waited_seconds(pid: int) -> float:
    """Return the total seconds that the threads of a process and of its descendants have waited for a CPU."""
    total = 0.0
    with suppress(OSError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[1]) / 1e9
                total += sum(map(waited_seconds, map(int, (task / "children").read_text().split())))
    return total


class _Ring:
    """Handler of the alarm signal that raises `_Hangs` after the timeout."""

    def __init__(self, seconds: float) -> None:
        self.timeout = ProcessTimeout(seconds, os.getpid())
        self.rang = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        pause = self.timeout.next_look()
        if not pause:
            self.rang += 1
            if self.rang > LAST_RESORT:  # the environment has caught all interruptions
                faulthandler.dump_traceback(2)
                os._exit(1)
            signal.setitimer(signal.ITIMER_REAL, INSIST_SECONDS)
            raise _Hangs
        signal.setitimer(signal.ITIMER_REAL, pause)


class _Hangs(BaseException):  # `except Exception` in an environment does not catch it
    pass


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise EnvSetupError with `message` if the body of the `with` statement exceeds the timeout.

    An enclosing timeout that ends sooner takes precedence.

    Code that hangs in C, or runs outside the main thread, is not interrupted. If the body catches more than LAST_RESORT
    interruptions, the process ends.
    """
    outer, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    if left and isinstance(outer, _Ring):  # without a timer, the handler belongs to the parent of this fork
        left = outer.timeout.left
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield
        return
    ring = _Ring(seconds)
    before = signal.signal(signal.SIGALRM, ring)
    others = signal.setitimer(signal.ITIMER_REAL, ring.timeout.pause)
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
    """Protocol of objects with a method `close`."""

    def close(self) -> None:
        """Release the resources."""


T = TypeVar("T", bound=Closes)


def close_in_time(env: Closes) -> str:
    """Close an environment. Return an error message if `close` raises or exceeds its timeout, else ""."""
    if not callable(attribute(env, "close")):  # optional for several agents
        return ""
    text = f"close() did not return within {CLOSE_SECONDS:g} s"
    held = [env, *(list(value) for value in getattr(env, "__dict__", {}).values() if isinstance(value, list))]
    try:
        with time_limit(CLOSE_SECONDS, text):
            env.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - errors of `close` are only reported
        if str(error) != text:
            return f"close() raised {type(error).__name__}: {error}"
        # The environment is never freed, because its __del__ may close it again.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        return text
    return ""


@contextmanager
def closing(env: T) -> Iterator[T]:
    """Close the environment at the end of the context, and print errors to stderr."""
    try:
        yield env
    finally:
        if text := close_in_time(env):
            print(f"warning: {text}", file=sys.stderr)


def making(env_id: str, *, long: bool = False) -> str:
    """Return the error message for an environment that hangs while it is made. long: True if the timeout was
    LONG_SECONDS.
    """
    seconds = LONG_SECONDS if long else PROBE_SECONDS
    return f"{env_id} hangs: making it took more than {seconds:g} s. Load slow data beforehand"
