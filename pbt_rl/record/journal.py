"""Journal of a run: one line per event, written immediately. Each line is a JSON object.

Each event has the fields `event` (its kind), `time` (seconds since the epoch) and `frames` (population clock).
docs/reference/run-files.md lists the kinds.

While the file cannot be written (for example, because the disk is full), up to 64 MiB of events wait in memory. If the
limit is exceeded, the oldest events are dropped and counted in a `lost` event. Events that an audit needs, such as
`round`, are dropped last.

NaN and infinities are written as the strings "nan", "inf" and "-inf", because JSON cannot represent them.

This module also reads journals and other JSON files of a run's folder, which are untrusted and may be damaged.
"""

from __future__ import annotations

import json
import math
import os
import platform
import stat
import subprocess
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from pbt_rl.controllers.decisions import Decision, PopulationReport, decision_to_dict
from pbt_rl.controllers.events import CheckpointWritten, Event, Resume, decode_event
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.records import NOT_JSON
from pbt_rl.errors import ConfigError
from pbt_rl.record.append import AppendFile, Outage, reason
from pbt_rl.record.folder import RunFolder
from pbt_rl.version import __version__

MAX_WAITING_BYTES = 64 << 20
AUDITED = frozenset({"start", "initial", "round", "resume"})
"""Kinds of events that an audit needs to recompute the decisions."""
_OBJECT = msgspec.json.Decoder(dict[str, Any])
LineT = TypeVar("LineT")


class Journal:
    """Writer of the events of a run to one file. Not thread-safe. Only one process may write the file.

    If the file exists, events are appended to it. It must end with a complete event (see `cut_journal`).
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warnings.warn) -> None:
        """warn: called with a line when writes begin to fail, work again, or fail in `close`.

        Raises OSError if the file cannot be opened.
        """
        self._path, self._warn = path, warn
        self._file = AppendFile(path)
        self._outage = Outage(f"events of {path}", warn)
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Kind and line of each event that is not yet in the file."""
        self._waiting_bytes = 0
        self._lost: Counter[str] = Counter()
        self._first_lost: dict[str, Any] = {}

    def write(self, event: str, frames: int, **content: Any) -> None:
        """Append one event, or keep it in memory while the file cannot be written.

        event: kind of the event, such as "progress". frames: population clock.
        content: fields of the event: JSON types, dataclasses, paths, tuples, numpy numbers, NaN and infinities.
        For other types, TypeError is raised and the event is not written.
        """
        self._add(event, frames, content)
        if self._outage.due():
            try:
                self._write_waiting()
            except OSError as error:
                self._outage.failed(error)
            else:
                self._outage.worked()
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._drop()

    def position(self) -> int:
        """Return the size of the written events in the file, in bytes."""
        return self._file.position

    def sync(self) -> None:
        """Write the waiting events, and flush the file to disk (fsync). Raises OSError if writing fails."""
        self._write_waiting()
        self._outage.worked()
        self._file.sync()

    def start(self, config: Any, seed: int, spec: Any) -> None:
        """Write the first event, with package versions.

        Raises OSError if writing fails.
        config, spec: dataclasses or JSON types.
        """
        known = {"versions": versions(), "git": git_version()}
        self._add("start", 0, {"config": config, "seed": seed, **known, "spec": spec})
        self._write_waiting()

    def initial(self, values: list[Values]) -> None:
        """Write the members' initial values, in order of id. Raises OSError if writing fails."""
        self._add("initial", 0, {"values": values})
        self._write_waiting()

    def round(
        self,
        report: PopulationReport,
        decisions: list[Decision],
        incomplete: Sequence[int] = (),
        count: int = 1,
    ) -> None:
        """Write a comparison: the report to the controller (without values), and the controller's decisions.

        incomplete: members with an environment that has not finished an episode since the member's last change.
        count: number of episodes that one entry of `MemberReport.objectives` averages.
        """
        made = [decision_to_dict(d) for d in decisions]
        members = [
            {name: value for name, value in vars(m).items() if name != "values"} for m in report.members
        ]
        timed = {} if report.seconds is None else {"seconds": report.seconds}
        seen = {"frames": report.frames, "members": members, **timed}
        of_rounds = {"count": count} if count > 1 else {}
        self.write("round", report.frames, report=seen, decisions=made, incomplete=incomplete, **of_rounds)

    def close(self) -> None:
        """Try to write the waiting events, and close the file. Safe to call twice."""
        if self._waiting:
            try:
                self._write_waiting()
            except OSError as error:
                self._warn(
                    f"the last {len(self._waiting)} events of {self._path} were not written: {reason(error)}"
                )
                self._waiting.clear()
        self._file.close()

    def _add(self, event: str, frames: int, content: Mapping[str, Any]) -> None:
        line = _line({"event": event, "time": time.time(), "frames": frames, **content})
        self._waiting.append((event, line))
        self._waiting_bytes += len(line)

    def _write_waiting(self) -> None:
        if self._lost:
            first = {key: self._first_lost[key] for key in ("time", "frames")}
            self._file.append(_line({"event": "lost", **first, "counts": self._lost}))
            self._lost.clear()
        while self._waiting:
            _, line = self._waiting[0]
            self._file.append(line)
            self._waiting.popleft()
            self._waiting_bytes -= len(line)

    def _drop(self) -> None:
        """Drop the oldest waiting events until half of MAX_WAITING_BYTES is free.

        Events that an audit needs are dropped only if these events alone exceed the limit.
        """
        for audited in (False, True):
            if audited and self._waiting_bytes <= MAX_WAITING_BYTES:
                return
            kept: deque[tuple[str, bytes]] = deque()
            for event, line in self._waiting:
                if (event in AUDITED) == audited and self._waiting_bytes > MAX_WAITING_BYTES // 2:
                    if not self._lost:
                        self._first_lost = _OBJECT.decode(line)
                    self._lost[event] += 1
                    self._waiting_bytes -= len(line)
                else:
                    kept.append((event, line))
            self._waiting = kept


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the events as JSON types, in order. Raises the errors of `each_line`."""
    return list(each_line(path, lambda line, _: _OBJECT.decode(line)))


def each_line(path: Path, decode: Callable[[bytes, int], LineT]) -> Iterator[LineT]:
    """Yield `decode(line, number)` for each line. number: line number, from 1.

    decode: must raise one of the exceptions in `NOT_JSON` for a line that is not JSON. A last line of this kind is
    skipped, because a killed process may leave an incomplete line.
    Lines are read one at a time, because the journal of a long run may have gigabytes.
    Raises OSError, ValueError if an earlier line is not JSON, and other errors of `decode`.
    """
    broken = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if broken:
                raise ValueError(
                    f"{path}, line {broken}, is not JSON: restore the file, because a run needs all lines to continue"
                )
            try:
                event = decode(line, number)
            except NOT_JSON:
                broken = number
            else:
                yield event
            if not line.endswith(b"\n"):  # the last line, which a running process may still complete
                return


def cut_journal(path: Path, position: int) -> None:
    """Truncate a journal to its first `position` bytes, to which a resumed run appends.

    Raises ConfigError if the file is missing or shorter, or if no event ends at this position.
    Raises OSError if the file cannot be read or truncated.
    """
    if not path.exists():
        raise ConfigError(f"{path} is missing: restore the file")
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size < position:
            raise ConfigError(
                f"{path} has {size:,} bytes instead of {position:,}: events are missing; restore the file"
            )
        file.seek(max(0, position - 1))
        if position > 0 and file.read(1) != b"\n":
            raise ConfigError(f"{path} has changed: no event ends at byte {position:,}; restore the file")
        file.truncate(position)
        os.fsync(file.fileno())


def as_json_types(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences, NumPy numbers and paths to JSON types, also inside each other.

    NaN and infinities become strings. All other values are returned unchanged.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json_types(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_types(item) for item in value]
    if isinstance(value, np.generic):
        return as_json_types(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(as_json_types(record), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"  # a path may contain bytes that are not valid text


MOST_BYTES = 64 << 20
"""Maximum size of config.json and summary.json. (Even with thousands of members, these files are far smaller.)"""


def check_file(path: Path, most_bytes: int | None = None) -> None:
    """Raise ValueError if a path is not a regular file (for example a pipe), or has more than `most_bytes` bytes.

    Raises OSError if the path is missing, or cannot be examined. most_bytes: None: no limit.
    """
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if most_bytes is not None and facts.st_size > most_bytes:
        raise ValueError(f"{path.name} has {facts.st_size:,} bytes, more than {most_bytes:,}")


def read_object(path: Path, if_missing: str) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises ConfigError if the file is missing, cannot be read, or contains no JSON object.
    if_missing: error message for a missing file.
    """
    try:
        check_file(path, MOST_BYTES)
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(if_missing) from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: its objects are nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} cannot be read: it does not contain a JSON object")
    return data


def was_saved(folder: Path) -> bool:
    """Check whether a run has ever had a checkpoint, according to its journal.

    Raises ConfigError if the journal is damaged.
    A `checkpoint` or `resume` event shows this. (A resume truncates the journal, and thereby removes the event of the
    checkpoint from which it continues.)
    """
    if not RunFolder(folder).journal.exists():
        return False
    return any(isinstance(event, CheckpointWritten | Resume) for event in journal_events(folder))


PACKAGES = ("torch", "numpy", "numba", "gymnasium", "ale-py", "safetensors")
"""Packages whose versions affect results."""


def versions() -> dict[str, str]:
    """Return the versions of pbt_rl, Python, and the installed packages of `PACKAGES`."""
    found = {"pbt_rl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_version() -> str | None:
    """Return the commit of this source tree, with "-dirty" if tracked files were changed.

    None if the commit is unknown, for example outside a git checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside the repository of another project
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


# -- decoded events -----------------------------------------------------------------------------------------


def journal_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run's journal, oldest first. Raises ConfigError if the journal is missing or damaged."""
    path = RunFolder(folder).journal
    try:
        check_file(path)
        yield from each_line(path, decode_event)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(RunFolder(folder).lacks(path.name)) from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read: {reason(error)}") from error
