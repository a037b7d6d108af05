"""The first use of an environment's code. What it raises is shown without the frames of the code that called it.

`sys.exit`, `os._exit`, an abort or a crash in C would end the command without a word: an extra tries the code in a
process that it may end (`TRIES` in its `extra.py`). Its time is limited, as it may hang: on a starved machine it has
longer than on an idle one.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ..extras import load_object, offered
from .base import EnvSetupError, EnvSpec

PROBE_SECONDS = 120.0
"""Limit for making one environment and reading its spaces."""
LONG_SECONDS = 1800.0
"""The same for a simulator on a device, which may compile or load for minutes."""
told_of_long: list[Callable[[], object]] = []
"""Called before the longer limit begins: for who waits for this process."""


LOOKS = 4
"""How often a limit is looked at."""
LEAST_COUNTED = 0.25
"""Share of the time that counts whatever it was waited for: what hangs while others compute is found in the end."""


class Patience:
    """Seconds that processes may take, without those for which they were stopped or waited for a processor.

    The first of LOOKS parts is wall time, so that a short step costs nothing here.
    pid: of the process; with it count those that it has started.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        self.left, self.pause = seconds, seconds / LOOKS
        self._pid, self._then = pid, time.monotonic()
        self._waited: float | None = None

    def next_look(self) -> float:
        """Count the time since the last look; return the seconds until the next one, 0 if none are left."""
        now, waited = time.monotonic(), waited_seconds(self._pid)
        passed = min(now - self._then, self.pause)  # more passes only while it is stopped
        starved = 0.0 if self._waited is None else waited - self._waited
        self.left -= min(passed, max(passed - starved, passed * LEAST_COUNTED))
        self._then, self._waited = now, waited
        return min(self.left, self.pause) if self.left > self.pause / 100 else 0.0


def waited_seconds(pid: int) -> float:
    """Return for how long the threads of a process and of its children have waited for a processor."""
    total = 0.0
    with suppress(OSError):  # a process that has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[1]) / 1e9
                total += sum(map(waited_seconds, map(int, (task / "children").read_text().split())))
    return total


class _Ring:
    """The handler of the alarm: raises when the patience is at an end."""

    def __init__(self, seconds: float) -> None:
        self.patience = Patience(seconds, os.getpid())

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        pause = self.patience.next_look()
        if not pause:
            raise _Hangs
        signal.setitimer(signal.ITIMER_REAL, pause)


class _Hangs(BaseException):  # not an Exception: the environment's own handlers must not catch it
    pass


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise EnvSetupError if the body takes too long (unless it hangs in C, or runs outside the main thread).

    An enclosing limit that ends sooner takes precedence.
    """
    outer, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    if left and isinstance(outer, _Ring):  # without a timer it is that of the process of which this is a copy
        left = outer.patience.left
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield
        return
    ring = _Ring(seconds)
    before = signal.signal(signal.SIGALRM, ring)
    others = signal.setitimer(signal.ITIMER_REAL, ring.patience.pause)
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


T = TypeVar("T")
GRACE_SECONDS = 5.0
"""By how much the limit here is later than the one in the copy, whose message is the better one."""
OURS = f"{Path(__file__).parent.parent}/"
"""Folder of the code that is not an environment's own."""


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each from the first frame that is not ours.

    An error of an environment of ours has no such frame, and is shown whole; that of a file that is no Python names it.
    """
    shown = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = shown
    while one is not None:
        inside = list(dropwhile(_is_not_theirs, one.stack))
        one.stack[:] = inside if isinstance(error, SyntaxError) else inside or one.stack
        one = one.__cause__ or one.__context__
    return "".join(shown.format()).rstrip()


def _is_not_theirs(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is ours, or of an import that leads to their module."""
    return frame.filename.startswith((OURS, "<frozen importlib", importlib.__file__))


class FirstProbe:
    """Describes environments of a family without keeping them, each in a copy of this process.

    prefix: of their ids. The recipe of a run, which is asked for first, and its spec follow from one trial.
    """

    def __init__(self, prefix: str, probe: Callable[[str, Mapping[str, Any]], EnvSpec]) -> None:
        self._prefix, self._probe = prefix, probe
        self._known: tuple[str, EnvSpec] | None = None
        """What the last recipe was made from, until it is asked for."""

    def for_recipe(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Describe an environment anew. Raises EnvSetupError."""
        self._known = None
        spec = self(name, keywords)
        self._known = self._key(name, keywords), spec
        return spec

    def __call__(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Describe an environment: make one, read its spaces and close it. Raises EnvSetupError."""
        known, self._known = self._known, None
        if known is not None and known[0] == self._key(name, keywords):
            return known[1]
        env_id = self._prefix + name
        limit = PROBE_SECONDS + GRACE_SECONDS
        return tried(env_id, lambda: self._probe(name, keywords), limit)

    def _key(self, name: str, keywords: Mapping[str, Any]) -> str:
        """Include where a name is looked up: the same one may mean another environment elsewhere."""
        return repr((name, sorted(keywords.items()), os.getcwd(), sys.path))  # noqa: PTH109 - as the import does


def tried(
    env_id: str,
    function: Callable[[], T],
    limit_seconds: float | None,
    *,
    captured: bool = True,
    when: str = "when it was made",
) -> T:
    """Call a function that runs an environment's code for the first time, and return what it returns.

    limit_seconds, captured: for what an extra tries. Raises EnvSetupError with the message of the function's own, and
    for everything else that it raises, with its traceback.
    """
    for path in offered(__package__ or "", "TRIES"):
        result: T = load_object(path)(env_id, function, limit_seconds, captured=captured, when=when)
        return result
    try:
        return function()
    except EnvSetupError:
        raise
    except Exception as error:  # whatever it raises is shown
        raise EnvSetupError(
            f"{env_id} cannot be used: it raised {type(error).__name__} {when}.\n{environment_traceback(error)}"
        ) from error
