"""`pbt-rl watch`: the report page of a running or finished run, renewed while a browser shows it.

    journal.jsonl -> Live -> page, and figures drawn by a child process -> server -> browser

`pbt-rl watch` only reads the files of the run, and does not contact the processes of the run.
"""

from __future__ import annotations

import time
import zlib
from importlib import resources
from pathlib import Path

from pbt_rl.display.drawing import Drawing
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.history import History, read_run
from pbt_rl.record.run_lock import is_held
from pbt_rl.report.page import page, picture
from pbt_rl.report.pictures import PICTURES, Picture

MIN_GAP_SECONDS, MIN_DRAWING_SECONDS = 1.0, 10.0
"""Minimum pause between two renewals of the page, and minimum time between the starts of two drawings."""
GAP_FACTOR = 10.0
"""Minimum pause after a renewal, as a multiple of its duration. (With a long journal, a renewal takes seconds.)"""
DRAWING_PRIORITY = 5
"""Niceness of the drawing process, because training has priority."""
BEING_DRAWN = "being drawn"
SCRIPT = f"<script>{resources.files(__package__).joinpath('live.js').read_text(encoding='utf-8')}</script>"


class Live:
    """Page and figures of one run. `step` renews page and figures. Not thread-safe.

    page: HTML, or the error because of which the page cannot be built.
    """

    def __init__(self, run: Path) -> None:
        """Build the first page. Raises ConfigError if the journal of the run is missing or damaged."""
        self.page: str | ConfigError = ""
        self.pictures: dict[str, bytes | str] = {p.name: BEING_DRAWN for p in PICTURES if not p.more}
        """Name of a figure -> PNG file, or the reason why there is no figure."""
        self._folder = RunFolder(run)
        self._history: History
        self._read = -1
        """Modification time of the journal from which `_history` was read, in nanoseconds. -1: it was not read yet."""
        self._next = 0.0
        self._drawing = Drawing(
            run, list(self.pictures), self._not_drawn, MIN_DRAWING_SECONDS, DRAWING_PRIORITY
        )
        self._build()

    def step(self) -> None:
        """If a renewal is due: read the journal if it has changed, and renew page and figures."""
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
        """End the drawing process."""
        self._drawing.finish(lambda: False)

    def _not_drawn(self, why: str) -> None:
        self.pictures |= dict.fromkeys((n for n, one in self.pictures.items() if one == BEING_DRAWN), why)

    def _build(self) -> None:
        try:
            written = self._folder.journal.stat().st_mtime_ns
        except OSError as error:
            raise ConfigError(self._folder.lacks(self._folder.journal.name)) from error
        if written != self._read:
            self._history, self._read = read_run(self._folder.path), written
            self._drawing.request()
        history, running = self._history, is_held(self._folder.path) is True
        told = history.events[-1] if history.told is None else history.told
        age = (
            max(0.0, time.time() - written / 1e9) + history.seconds - history.since(told) if running else 0.0
        )
        pictures = [(p, self.pictures[p.name]) for p in PICTURES if p.name in self.pictures]
        self.page = page(history, pictures, running=running, age=age, show=_url) + SCRIPT


def _url(one: Picture, data: bytes) -> str:
    """Return the HTML of a figure. The URL contains a checksum, which makes browsers reload a changed figure."""
    return picture(f"{one.name}.png?{zlib.crc32(data):x}", one.title)
