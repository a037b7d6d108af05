"""Tracebacks and crashes of environments, without the frames of the code that called them."""

from __future__ import annotations

import traceback
from itertools import dropwhile
from pathlib import Path

_OURS = f"{Path(__file__).parent.parent}/"


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each from the first frame that is not ours.

    An error of an environment of ours has no such frame, and is shown whole.
    """
    shown = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = shown
    while one is not None:
        inside = list(dropwhile(lambda frame: frame.filename.startswith(_OURS), one.stack))
        one.stack[:] = inside or one.stack
        one = one.__cause__ or one.__context__
    return "".join(shown.format()).rstrip()


def environment_output(text: str) -> str:
    """Return what a process printed before it ended, without our frames and their callers' in a crash's stack.

    text: with the stack that `faulthandler` adds, newest frame first.
    """
    kept, below_us = [], False
    for line in text.splitlines():
        below_us = line.startswith(f'  File "{_OURS}') or (below_us and line.startswith("  File "))
        if not below_us and not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept).strip()
