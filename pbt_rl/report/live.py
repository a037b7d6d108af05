"""`pbt-rl watch`: the page of a report for a run that trains, from its files alone.

    journal.jsonl -> Live -> page, and pictures drawn by a child process -> server -> browser, which reloads parts

Writes nothing and does not contact the run's processes. A finished run is shown in the same way.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from importlib import resources
from pathlib import Path
from typing import IO

from pbt_rl.controllers.events import Event, Progress, Round, decode_event
from pbt_rl.controllers.lineage import Noise
from pbt_rl.display.drawing import Drawing
from pbt_rl.errors import ConfigError
from pbt_rl.record.claim import is_held
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.history import history_of, light
from pbt_rl.report.page import page, picture
from pbt_rl.report.pictures import PICTURES, Picture

MIN_GAP_SECONDS, MIN_DRAWING_SECONDS = 1.0, 10.0
"""Minimum pause between two pages, and between two drawings of the pictures."""
GAP_FACTOR = 10.0
"""The pause between two pages is at least this multiple of the last one's duration (seconds for a long journal)."""
DRAWING_PRIORITY = 5
"""Niceness of a drawing, because training has priority."""
BEING_DRAWN = "being drawn"
SCRIPT = f"<script>{resources.files(__package__).joinpath('live.js').read_text(encoding='utf-8')}</script>"


class Live:
    """Page and pictures of one run. `step` renews them; call it from one thread.

    Links are not followed: the journal must be a regular file in the folder. A journal that was truncated (by a resume)
    or replaced is read again from the start.
    """

    def __init__(self, run: Path) -> None:
        """Raises ConfigError if `run` is not a run."""
        self.folder = RunFolder(run)
        self.page: str | ConfigError = ""
        self.pictures: dict[str, bytes | str] = {p.name: BEING_DRAWN for p in PICTURES if not p.more}
        """Name of a picture -> PNG file, or the reason why it is missing."""
        self._name = run.resolve().name
        self._file: tuple[int, int] | None = None
        """Device and inode of the journal."""
        self._position = 0
        self._last = b""
        """Last line that was read."""
        self._lines = 0
        self._events: list[Event] = []
        self._noise = Noise()
        self._next = 0.0
        self._drawing = Drawing(run, self._not_drawn, MIN_DRAWING_SECONDS, DRAWING_PRIORITY)
        self._build()

    def step(self) -> None:
        """Read what is new, and renew page and pictures if that is due."""
        if time.monotonic() < self._next:
            return
        began = time.monotonic()
        self.pictures |= self._drawing.poll()
        try:
            self._build()
        except ConfigError as error:
            self.page = error
        self._next = time.monotonic() + max(MIN_GAP_SECONDS, GAP_FACTOR * (time.monotonic() - began))

    def close(self) -> None:
        """End a drawing in progress."""
        self._drawing.finish(lambda: False)

    def _not_drawn(self, why: str) -> None:
        self.pictures |= dict.fromkeys((n for n, one in self.pictures.items() if one == BEING_DRAWN), why)

    def _build(self) -> None:
        if self._read():
            self._drawing.request()
        history = history_of(self._name, list(self._events), self._noise, self.folder)
        running = is_held(self.folder.path) is True
        newest = next((e for e in reversed(self._events) if isinstance(e, Progress)), self._events[-1])
        age = max(0.0, time.time() - newest.time) if running else 0.0
        pictures = [(p, self.pictures[p.name]) for p in PICTURES if p.name in self.pictures]
        self.page = page(history, pictures, running=running, age=age, show=_url) + SCRIPT

    def _read(self) -> bool:
        """Read the new events. True if there are any."""
        path = self.folder.journal
        try:
            with open(path, "rb", opener=_opener) as journal:
                facts = os.fstat(journal.fileno())
                if not stat.S_ISREG(facts.st_mode):
                    raise ConfigError(f"{path} cannot be read: it is not a regular file")
                if self._file != (facts.st_dev, facts.st_ino) or not self._goes_on(journal):
                    self._file = facts.st_dev, facts.st_ino
                    self._position, self._last, self._lines, self._events = 0, b"", 0, []
                    self._noise = Noise()
                journal.seek(self._position)
                return self._read_lines(path, journal)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(self.folder.lacks(path.name)) from None
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
                event = decode_event(line, self._lines + 1)
            except ValueError as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
            if isinstance(event, Round):
                self._noise.note(event)
            self._events.append(light(event))
            self._position, self._last = self._position + len(line), line
            self._lines += 1
        return self._lines > before


def _url(one: Picture, data: bytes) -> str:
    """Return a picture as HTML. Its URL changes with its content."""
    return picture(f"{one.name}.png?{zlib.crc32(data):x}", one.title)


def _opener(path: str, flags: int) -> int:
    """Open a file without following links and without blocking on a pipe."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
