"""Files that only grow, by whole records, on a disk that may be full, read-only or gone for a while."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 10.0


class AppendFile:
    """A file that ends with a whole record, whatever happens to a write. Use it from one thread.

    A record that could be written in part only is cut off again, at once or before the next one.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        """Open the file, which is made if it is missing, and cut it off at `position` bytes.

        Raises OSError; also if the file is a symbolic link.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o666)
        size = os.fstat(self._file).st_size
        self.position = size if position is None else min(position, size)
        """Bytes of whole records."""
        self._torn = False
        if self.position < size:
            os.ftruncate(self._file, self.position)

    def append(self, record: bytes) -> None:
        """Write one record. Raises OSError; then nothing of it stays in the file."""
        self._mend()
        rest = memoryview(record)
        self._torn = True
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._mend()
            raise
        self._torn = False
        self.position += len(record)

    def sync(self) -> None:
        """Have the disk confirm what was written. Raises OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._file, self.position)
            self._torn = False


class Outage:
    """A time in which something cannot be written: shown once when it begins and once when it ends.

    Attempts are spaced by `RETRY_SECONDS`, so that a full disk costs a run nothing.
    """

    def __init__(self, what: str, warn: Callable[[str], None]) -> None:
        """what: in the plural, such as "TensorBoard files". warn: shows a line."""
        self._what, self._warn = what, warn
        self.on = False
        self._next_attempt = 0.0

    def due(self) -> bool:
        """Return whether to write now: always, but during an outage."""
        return not self.on or time.monotonic() >= self._next_attempt

    def failed(self, error: OSError) -> None:
        """Note that writing failed."""
        self._next_attempt = time.monotonic() + RETRY_SECONDS
        if not self.on:
            self.on = True
            self._warn(
                f"{self._what} cannot be written ({reason(error)}); training goes on, and it is tried again every "
                f"{RETRY_SECONDS:.0f} s"
            )

    def worked(self) -> None:
        """Note that everything was written."""
        if self.on:
            self.on = False
            self._warn(f"{self._what} are written again")


def reason(error: Exception) -> str:
    """Return the text of an error: of an OSError why the system refused, and about which file if that is known."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename else text
