"""A lock on a folder, which the kernel releases when its process ends, by whatever signal."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

FILE = ".lock"
PATIENCE_SECONDS = 0.1
"""Who only looks whether a lock is held holds it for a moment itself."""
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_MAX_BYTES = 4096


class Held(Exception):  # noqa: N818 - reads as what happened
    """Another process holds the lock. The message names it."""


class FolderLock:
    """The lock of this process on a folder: `flock` on the file `.lock` in it, which says who holds it.

    Children do not inherit it. A folder that is moved stays locked. On a file system without locks `supported` is
    False, and nothing is locked.
    """

    def __init__(self, folder: Path, **content: Any) -> None:
        """content: noted in the file, as JSON. Raises Held or OSError."""
        self._path = folder / FILE
        self.supported = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._take():
            if time.monotonic() >= deadline:
                raise Held(_holder(noted(folder)))
            time.sleep(0.01)
        try:
            self.note(**content)
        except OSError:
            self.release()
            raise

    def _take(self) -> bool:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            self.supported = _lock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return True
        except (BlockingIOError, FileNotFoundError):  # held, or moved away between the two calls
            pass
        except OSError:
            os.close(self._file)
            raise
        os.close(self._file)
        return False

    def note(self, **content: Any) -> None:
        """Replace what the file says besides the process that holds it. Raises OSError."""
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), **content})
        os.pwrite(self._file, text.encode(), 0)
        os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Unlock. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_held(folder: Path) -> bool | None:
    """Return whether a process holds the lock of a folder; None if the file system has no locks.

    A lock file that is missing or no file is held by nobody.
    """
    try:
        file = _open_to_read(folder)
    except OSError:
        return False
    try:
        return False if _lock(file, fcntl.LOCK_SH) else None
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def noted(folder: Path) -> dict[str, Any]:
    """Return what the lock file of a folder says; nothing if it is missing or mangled."""
    try:
        file = _open_to_read(folder)
    except OSError:
        return {}
    try:
        content = json.loads(os.read(file, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(file)
    return content if isinstance(content, dict) else {}


def _open_to_read(folder: Path) -> int:
    return os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _holder(content: dict[str, Any]) -> str:
    pid, host = content.get("pid"), content.get("host")
    if not isinstance(pid, int):
        return "another process"
    return f"process {pid}" + ("" if host == socket.gethostname() else f" of {host!r}")


def _lock(file: int, kind: int) -> bool:
    """Lock a file without waiting; return False if the file system has no locks.

    Raises BlockingIOError if another process holds it.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
