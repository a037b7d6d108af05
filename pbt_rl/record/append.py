"""Append-only files of complete records, and the state of writes to a disk that is full or read-only for a while."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 10.0


class AppendFile:
    """File of complete records. If a write fails, the partially written record is removed. Not thread-safe.

    If the removal fails, it is repeated before the next record is written.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        """Open or create the file. position: number of bytes to keep of an existing file. None: keep all bytes.

        Raises OSError, for example if the file is a symbolic link.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o666)
        size = os.fstat(self._file).st_size
        self.position = size if position is None else min(position, size)
        """Size of the complete records in bytes."""
        self._torn = False
        if self.position < size:
            os.ftruncate(self._file, self.position)

    def append(self, record: bytes) -> None:
        """Write one record. Raises OSError if it was not completely written.

        The partial record is removed at once, or before the next record is written.
        """
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
        """Flush the file to disk (fsync). Raises OSError if this fails."""
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
    """State of writes that may fail, with a warning when writes begin to fail and when they work again.

    While writing fails, `due` returns True only after a pause of `RETRY_SECONDS`. More frequent attempts on a full disk
    would slow the run down.
    """

    def __init__(self, what: str, warn: Callable[[str], None]) -> None:
        """what: plural noun for messages, such as "TensorBoard files". warn: function that prints a warning."""
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
    """Return the text of an error. For an OSError: the message of the system, and the file name if known."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename else text
