"""A limit on the time of code that is not ours and may hang."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .base import EnvSetupError

PROBE_SECONDS = 120.0
"""Limit for making one environment and reading its spaces."""
LONG_SECONDS = 1800.0
"""The same for a simulator on a device, which may compile or load for minutes."""
told_of_long: list[Callable[[], object]] = []
"""Called before the longer limit begins: for who waits for this process."""


class _Hangs(BaseException):  # not an Exception: the environment's own handlers must not catch it
    pass


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise EnvSetupError if the body takes too long (unless it hangs in C, or runs outside the main thread).

    An enclosing limit that ends sooner takes precedence.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _Hangs

    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    others = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Hangs:
        raise EnvSetupError(message) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)


def making(env_id: str, *, long: bool = False) -> str:
    """Return the message about an environment that hangs while it is made. long: with the longer limit."""
    seconds = LONG_SECONDS if long else PROBE_SECONDS
    return f"{env_id} hangs: making it took more than {seconds:g} s. Load what takes long beforehand"
