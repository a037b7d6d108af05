"""Reader of a growing journal, which builds the history to show."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path
from typing import IO

from pbt_rl.controllers.events import Event, Start, decode_event
from pbt_rl.display.watch.state import State, state
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.history import history_of, light
from pbt_rl.record.run_lock import is_held

MIN_GAP_SECONDS = 1.0
GAP_FACTOR = 10.0
"""The pause between two states is at least this multiple of the last one's duration (seconds for a long journal)."""


class Reader:
    """State of one run. Thread-safe.

    Links are not followed: the journal must be a regular file in the folder. A journal that was truncated (by a resume)
    or replaced is read again from the start.
    """

    def __init__(self, run: Path) -> None:
        """Raises ConfigError if `run` is not a run."""
        self._folder = RunFolder(run)
        self._name = run.resolve().name
        self._turn = threading.Lock()
        self._file: tuple[int, int] | None = None
        """Device and inode of the journal."""
        self._position = 0
        self._last = b""
        """Last line that was read."""
        self._lines = 0
        self._events: list[Event] = []
        self._state: State = {}
        self._next = 0.0
        self.latest()

    def latest(self) -> State:
        """Return the current state, cached for a moment. Raises ConfigError if the journal cannot be read."""
        with self._turn:
            if time.monotonic() >= self._next:
                began = time.monotonic()
                grown = self._read()
                if grown or not self._state:
                    self._state = self._build()
                self._state["running"] = is_held(self._folder.path) is True
                age = time.time() - self._state["told"] if self._state["running"] else 0.0
                self._state["since"] = max(0.0, age)
                self._next = time.monotonic() + max(MIN_GAP_SECONDS, GAP_FACTOR * (time.monotonic() - began))
            return dict(self._state)

    def _build(self) -> State:
        if not self._events or not isinstance(self._events[0], Start):
            raise ConfigError(
                f"{self._folder.path} is not the folder of a run: its journal does not begin with the event `start`"
            )
        return state(history_of(self._name, list(self._events)), self._events)

    def _read(self) -> bool:
        """Read the new events. True if there are any."""
        path = self._folder.journal
        try:
            with open(path, "rb", opener=_opener) as journal:
                facts = os.fstat(journal.fileno())
                if not stat.S_ISREG(facts.st_mode):
                    raise ConfigError(f"{path} cannot be read: it is not a regular file")
                if self._file != (facts.st_dev, facts.st_ino) or not self._goes_on(journal):
                    self._file = facts.st_dev, facts.st_ino
                    self._position, self._last, self._lines = 0, b"", 0
                    self._events, self._state = [], {}
                journal.seek(self._position)
                return self._read_lines(path, journal)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(self._folder.lacks(path.name)) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    def _goes_on(self, journal: IO[bytes]) -> bool:
        """Check that the last line is unchanged, because a truncated journal may have grown again."""
        journal.seek(self._position - len(self._last))
        return journal.read(len(self._last)) == self._last

    def _read_lines(self, path: Path, journal: IO[bytes]) -> bool:
        """Read complete lines, one at a time because long journals have gigabytes. True if there are any."""
        before = self._lines
        for line in journal:
            if not line.endswith(b"\n"):
                break
            try:
                self._events.append(light(decode_event(line, self._lines + 1)))
            except ValueError as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
            self._position, self._last = self._position + len(line), line
            self._lines += 1
        return self._lines > before


def _opener(path: str, flags: int) -> int:
    """Open a file without following links and without blocking on a pipe."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
