"""Disks that are full, by a real small file system or by faults in `os.write`."""

import contextlib
import errno
import os
import subprocess
from pathlib import Path

import pytest

PAGE = 4096


@contextlib.contextmanager
def small_disk(folder, kilobytes=256):
    """A real file system of this size at `folder`; the test is skipped where mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here (that takes root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk, leave=0):
    """Fill a disk up to this many bytes."""
    with (disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE))
    if leave:
        os.truncate(disk / "fill", (disk / "fill").stat().st_size - leave)


def free(disk):
    (disk / "fill").unlink()


class FaultyDisk:
    """While `room` is a number, only this many bytes more can be written to files below a folder."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.room, self.attempts = str(Path(folder).resolve()), None, 0
        self._write = os.write
        monkeypatch.setattr("os.write", self.write)

    def write(self, file, data):
        if self.room is None or not str(Path(f"/proc/self/fd/{file}").readlink()).startswith(self.folder):
            return self._write(file, data)
        self.attempts += 1
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(file, bytes(data)[: self.room])
        self.room -= written
        return written
