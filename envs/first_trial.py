"""The first use of an environment's code. What it raises is shown without the frames of the code that called it.

`sys.exit`, `os._exit`, an abort or a crash in C would end the command without a word: an extra tries the code in a
process that it may end (`TRIES` in its `extra.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, TypeVar

from ..extras import load_object, offered
from . import time_limit as time_limits
from .base import EnvSetupError, EnvSpec

T = TypeVar("T")
GRACE_SECONDS = 5.0
"""By how much the limit here is later than the one in the copy, whose message is the better one."""
OURS = f"{Path(__file__).parent.parent}/"
"""Folder of the code that is not an environment's own."""


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each from the first frame that is not ours.

    An error of an environment of ours has no such frame, and is shown whole.
    """
    shown = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = shown
    while one is not None:
        inside = list(dropwhile(_is_not_theirs, one.stack))
        one.stack[:] = inside or one.stack
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
        limit = time_limits.PROBE_SECONDS + GRACE_SECONDS
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
