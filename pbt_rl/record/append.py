"""Append-only files of whole records, on a disk that may be full, read-only or missing for a while."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 10.0


class AppendFile:
    """File that always ends with a whole record, even if a write fails. Use it from one thread.

    A partially written record is removed immediately, or before the next record if that fails.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        """Open or create the file. position: truncate the file to this number of bytes.

        Raises OSError, also for a symbolic link.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o666)
        size = os.fstat(self._file).st_size
        self.position = size if position is None else min(position, size)
        """Size of the whole records in bytes."""
        self._torn = False
        if self.position < size:
            os.ftruncate(self._file, self.position)

    def append(self, record: bytes) -> None:
        """Write one record. Raises OSError and leaves the file unchanged."""
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
        """Flush to disk (fsync). Raises OSError."""
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
    """Interval in which writing fails. A line is printed at its start and at its end.

    Attempts are at least `RETRY_SECONDS` apart, because frequent attempts on a full disk would slow the run down.
    """

    def __init__(self, what: str, warn: Callable[[str], None]) -> None:
        """what: plural noun, such as "TensorBoard files". warn: called with each line."""
        self._what, self._warn = what, warn
        self.on = False
        """True while writing fails."""
        self._next_attempt = 0.0

    def due(self) -> bool:
        """Check whether a write should be attempted now."""
        return not self.on or time.monotonic() >= self._next_attempt

    def failed(self, error: OSError) -> None:
        """Record a failed write."""
        self._next_attempt = time.monotonic() + RETRY_SECONDS
        if not self.on:
            self.on = True
            self._warn(
                f"{self._what} cannot be written ({reason(error)}); training continues, with a new attempt "
                f"every {RETRY_SECONDS:.0f} s"
            )

    def worked(self) -> None:
        """Record a successful write."""
        if self.on:
            self.on = False
            self._warn(f"{self._what} are written again")


def reason(error: Exception) -> str:
    """Return the text of an error. For an OSError: the system's message, and the file if it is known."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename else text
