"""TensorBoard's event files: records of length, checksum, message, checksum. Nothing is buffered."""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event as _Event
from tensorboardX.proto.summary_pb2 import Summary as _Summary
from tensorboardX.record_writer import masked_crc32c as _checksum

from pbt_rl.record.append import AppendFile

_NAME = re.compile(r"events\.out\.tfevents\.[^/]+")
_HEADER_BYTES, _CHECKSUM_BYTES = 12, 4
"""Of a record: length (8) and its checksum (4); then the message and its checksum."""


class EventFile:
    """The event file of one folder: a new one, or one that is continued from where it was at a checkpoint."""

    def __init__(self, folder: Path, positions: Mapping[str, int] | None = None, last_step: int = -1) -> None:
        """positions: name and bytes of the folder's file at the checkpoint that the run goes on from. The file is cut
        there and continued, or begun anew if it is gone. Other event files of the folder, which came later, are
        removed. last_step: of the scalars at the checkpoint.

        Raises OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.last_step = last_step
        """Step of the scalars that were written last; -1 before any."""
        self._least_step = last_step + 1
        kept = None if positions is None else _kept(folder, positions)
        self.continued = kept is not None
        """Whether the folder's file is continued."""
        if kept is not None:
            self._path = kept
            self._file = AppendFile(kept, whole_records(kept, (positions or {})[kept.name]))
        else:
            # TensorBoard reads the files of a folder in the order of their names.
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._path = folder / name
            self._file = AppendFile(self._path, 0)
            self._write(_Event(wall_time=time.time(), file_version="brain.Event:2"))

    def position(self) -> tuple[str, int]:
        """Return the file's name with its folder's, such as `policy_00/events...`, and the bytes of whole records."""
        return f"{self._path.parent.name}/{self._path.name}", self._file.position

    def scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write all finite values as one record. Raises OSError.

        Steps that the checkpoint has already are left out.
        """
        values = [
            _Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if math.isfinite(value)
        ]
        if values and step >= self._least_step:
            self.message(_Summary(value=values), step)
            self.last_step = step

    def message(self, summary: Any, step: int = 0) -> None:
        """Write one summary message. Raises OSError."""
        self._write(_Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", _checksum(part)) for part in (length, data))
        self._file.append(b"".join((length, next(checks), data, next(checks))))


def _kept(folder: Path, positions: Mapping[str, int]) -> Path | None:
    """Remove the event files of a folder that a checkpoint does not name; return the one that it does, if it exists."""
    kept = None
    for path in sorted(folder.iterdir()):
        if not _NAME.fullmatch(path.name):
            continue
        if path.name in positions and path.is_file() and not path.is_symlink():
            kept = path
        else:
            path.unlink()
    return kept


def whole_records(path: Path, limit: int) -> int:
    """Return where the last whole record within the first `limit` bytes ends.

    A power cut may leave less of a file than was written, or zeros in it, and TensorBoard reads nothing behind a broken
    record.
    """
    begins, end = [], 0
    with path.open("rb") as file:
        limit = min(limit, file.seek(0, os.SEEK_END))

        def read(begin: int, size: int) -> bytes:
            file.seek(begin)
            return file.read(max(0, min(size, limit - begin)))

        # Record by record: with figures and films, a file of weeks has gigabytes.
        while (size := _size(read(end, _HEADER_BYTES))) is not None:
            begins.append(end)
            end += _HEADER_BYTES + size + _CHECKSUM_BYTES
        # The headers tell whole records apart; the message of the last one may be torn. (All checksums: 8 MB/s.)
        while begins and not _is_whole(read(begins[-1], end - begins[-1])):
            end = begins.pop()
    return end


def _size(header: bytes) -> int | None:
    """Return the bytes of the message whose record begins so; None if no header does."""
    length, check = header[:8], header[8:_HEADER_BYTES]
    if len(check) < _CHECKSUM_BYTES or struct.pack("<I", _checksum(length)) != check:
        return None
    size: int = struct.unpack("<Q", length)[0]
    return size


def _is_whole(record: bytes) -> bool:
    data, check = record[_HEADER_BYTES:-_CHECKSUM_BYTES], record[-_CHECKSUM_BYTES:]
    size = _size(record)
    return len(data) == size and struct.pack("<I", _checksum(data)) == check
