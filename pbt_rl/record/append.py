"""Append-only files of whole records.

Writing may fail for a while: the disk may be full, read-only or missing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 10.0


class AppendFile:
    """A file that always ends with a whole record, even if a write fails. Use it from one thread.

    A partially written record is cut off, at once or before the next one.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        """Open or create the file, and truncate it to `position` bytes.

        Raises OSError, also if the file is a symbolic link.
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
        """Write one record. Raises OSError; the file is then unchanged."""
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
    """An interval in which writing fails. A line is shown when it begins and when it ends.

    Attempts are at least `RETRY_SECONDS` apart, so that a full disk does not slow a run down.
    """

    def __init__(self, what: str, warn: Callable[[str], None]) -> None:
        """what: plural noun, such as "TensorBoard files". warn: called with a line."""
        self._what, self._warn = what, warn
        self.on = False
        self._next_attempt = 0.0

    def due(self) -> bool:
        """True if writing should be attempted now."""
        return not self.on or time.monotonic() >= self._next_attempt

    def failed(self, error: OSError) -> None:
        """Record a failed write."""
        self._next_attempt = time.monotonic() + RETRY_SECONDS
        if not self.on:
            self.on = True
            self._warn(
                f"{self._what} cannot be written ({reason(error)}); training continues, and writing is tried again "
                f"every {RETRY_SECONDS:.0f} s"
            )

    def worked(self) -> None:
        """Record a complete write."""
        if self.on:
            self.on = False
            self._warn(f"{self._what} are written again")


def reason(error: Exception) -> str:
    """Return the text of an error; for an OSError the system's reason and the file if known."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename else text
