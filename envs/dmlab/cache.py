"""Compiled maps of DeepMind Lab on disk, shared by all processes: the object that a Lab gets as `level_cache`.

The engine names a map by the MD5 of its text, so an entry never changes and any process may make it. A file is
the map and the SHA-256 of it; it appears whole (`os.replace`) or not at all. Whatever is wrong with the folder
(a file cut short, no room, no permission), the engine compiles the map itself: nothing here raises.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DIGEST_BYTES = 32
KEEP_SHARE = 0.9
"""Share of the limit that a sweep leaves, so that not every new map causes one."""
SWEEP_SECONDS = 60.0
"""Most seconds between two looks of a process at the folder's size; it looks at once if it wrote too much itself."""
STALE_SECONDS = 3600.0
"""A draft of this age was left by a process that was killed."""
_DRAFT = ".draft-"


class LevelCache:
    """The folder, for one Lab. limit_bytes: maps used longest ago are removed beyond this (roughly, while many write).

    fetch and write are what the engine calls, from within a Lab's constructor, reset or step.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self._limit = folder, limit_bytes
        self._known_bytes = 0
        self._next_sweep = 0.0
        self.hits = self.misses = self.written = 0

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map to `pk3_path`; returns whether it was there. A file that is not whole is removed."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            found = hashlib.sha256(data[:-DIGEST_BYTES]).digest() == data[-DIGEST_BYTES:]
            if found:
                Path(pk3_path).write_bytes(data[:-DIGEST_BYTES])
                with contextlib.suppress(OSError):  # a folder that may only be read
                    os.utime(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            found = False
            with contextlib.suppress(OSError):
                Path(pk3_path).unlink(missing_ok=True)
        self.hits += found
        self.misses += not found
        return found

    def write(self, key: str, pk3_path: str) -> None:
        """Copy the map at `pk3_path` into the folder, if that can be done."""
        draft = None
        try:
            data = Path(pk3_path).read_bytes()
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, draft = tempfile.mkstemp(prefix=_DRAFT, dir=path.parent)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.write(hashlib.sha256(data).digest())
            Path(draft).replace(path)
        except OSError:
            if draft is not None:
                with contextlib.suppress(OSError):
                    Path(draft).unlink(missing_ok=True)
            return
        self.written += 1
        self._known_bytes += len(data) + DIGEST_BYTES
        if self._known_bytes > self._limit or time.monotonic() >= self._next_sweep:
            self._sweep()

    def _path(self, key: str) -> Path:
        """Files spread over 256 folders. The key is hashed: it must not lead out of ours."""
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:40]}.map"

    def _sweep(self) -> None:
        """Remove what was used longest ago, if there is too much; one process at a time."""
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        with contextlib.suppress(OSError), (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > self._limit:
                for _, size, path in files:
                    if total <= KEEP_SHARE * self._limit:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
            self._known_bytes = total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, path) of every map; abandoned drafts are removed on the way."""
        for path in self.folder.glob("??/*"):
            try:
                facts = path.stat()
                if not path.name.startswith(_DRAFT):
                    yield facts.st_mtime, facts.st_size, path
                elif time.time() - facts.st_mtime > STALE_SECONDS:
                    path.unlink(missing_ok=True)
            except OSError:  # gone meanwhile
                continue
