"""The standard output as displays use it: that it is lost ends no training."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

LOST = (errno.EIO, errno.EPIPE)
"""What writing to a terminal or a pipe raises once its other end is closed: it stays so."""


class Output:
    """A stream in which what cannot be written, such as to a file on a full disk, is not shown.

    A terminal that was closed (a command that was disowned gets no SIGHUP), or a pipe whose reader has died, becomes
    /dev/null for the whole process: an environment of a serial run prints there too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as far as that is possible."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush as far as that is possible."""
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            if error.errno in LOST:
                self._replace()

    def _replace(self) -> None:
        with suppress(OSError):  # a stream of the user's own may have no descriptor
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, number)
            os.close(nowhere)
