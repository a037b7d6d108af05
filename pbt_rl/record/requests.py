"""What `pbt-rl set` asks of a run that trains, and the answer: small files in the run's folder, each in one piece.

requests/TIME-PID.json      written by the command; removed by the run when it takes it
requests/TIME-PID.answer    written by the run; removed by the command

Both are written under another name first, so a reader finds a whole file or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.records import Value, Whole, check_depth, converted
from pbt_rl.record.append import reason
from pbt_rl.record.folder import write_whole
from pbt_rl.record.lock import is_held
from pbt_rl.record.reading import read_object

FOLDER = "requests"
LOOK_SECONDS = 0.5
"""The run looks for requests this often."""
PATIENCE_SECONDS = 60.0
"""A run answers between two comparisons; the first one comes when its learners have started."""
GRACE_SECONDS = 10.0
"""A run that has taken a request answers within this time, unless it cannot write."""
_NAME = re.compile(r"\d{1,20}-\d{1,10}\.json")


@dataclass(frozen=True)
class Request:
    """Options of the run by dotted name, as JSON types; values of members. members: None for all that train."""

    options: dict[str, Any]
    values: dict[str, Value]
    members: tuple[Whole, ...] | None = None

    def __post_init__(self) -> None:
        check_depth(self.options)


@dataclass(frozen=True)
class _Answer:
    """Lines that say what has changed, or why nothing has."""

    changed: tuple[str, ...] = ()
    refused: str | None = None


def ask(run: Path, request: Request, patience_seconds: float = PATIENCE_SECONDS) -> list[str]:
    """Ask the process that writes a run; return what has changed, line by line.

    Raises ConfigError if no process writes the run, if it refuses, and if it does not answer in time: nothing was
    changed, unless the message says that the run took the request.
    """
    if is_held(run) is False:
        remedy = (
            "values of members can be set only while it does"
            if request.values
            else f"give the options to `pbt-rl resume {run}`"
        )
        raise ConfigError(f"{run} is not training now: {remedy}")
    path = run / FOLDER / f"{time.time_ns()}-{os.getpid()}.json"
    answer = path.with_suffix(".answer")
    asked = {"options": request.options, "values": request.values, "members": request.members}
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(asked))
        return _answered(run, path, answer, patience_seconds)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        for file in (path, answer):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another request may be under way
            path.parent.rmdir()


def _answered(run: Path, path: Path, answer: Path, patience_seconds: float) -> list[str]:
    deadline = time.monotonic() + patience_seconds
    while not answer.exists():
        over, late = is_held(run) is False, time.monotonic() - deadline
        if (over or late >= 0) and _withdrawn(path):
            why = "it has ended" if over else f"it did not answer within {patience_seconds:.0f} s"
            raise ConfigError(f"nothing was changed in {run}: {why}")
        if (over or late >= GRACE_SECONDS) and not answer.exists():
            how = "has ended before it answered" if over else "took the request and does not answer"
            raise ConfigError(f"{run} {how}; its journal says whether it was changed")
        time.sleep(0.05)
    found = converted(read_object(answer, f"{answer} is gone"), _Answer, str(answer))
    if found.refused is not None:
        raise ConfigError(found.refused)
    return list(found.changed)


def _withdrawn(path: Path) -> bool:
    """Take a request back; return whether nobody had taken it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class Inbox:
    """The requests to the run that this process writes. Those from before it began are removed unread."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._next = 0.0
        self._past = {*self._names()}
        """Names of those from before, and of those that were taken: in a folder that cannot be written any more they
        stay. (Not their times: a clock may be set back.)"""

    def take(self) -> tuple[str, Request | ConfigError] | None:
        """Return the name of the oldest request, and what it asks or what is wrong with it; None without one."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + LOOK_SECONDS
        for name in self._names():
            path = self._folder / name
            if name in self._past:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            self._past.add(name)
            return name, self._read(path)
        return None

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        except OSError:
            return []

    def _read(self, path: Path) -> Request | ConfigError:
        try:
            asked: Request = converted(read_object(path, f"{path} is gone"), Request, str(path))
            path.unlink()
        except ConfigError as error:
            return error
        except OSError as error:
            return ConfigError(f"{path} cannot be removed: {reason(error)}")
        return asked

    def changed(self, name: str, lines: Sequence[str]) -> None:
        """Answer that this was changed."""
        self._answer(name, {"changed": list(lines)})

    def refused(self, name: str, why: str) -> None:
        """Answer that nothing was changed."""
        self._answer(name, {"refused": why})

    def _answer(self, name: str, content: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the command that asked gives up after a while
            write_whole((self._folder / name).with_suffix(".answer"), json.dumps(content), sync=False)
