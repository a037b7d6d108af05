"""Drawing of a run's figures for TensorBoard and `watch`, in a child process. Training never waits for a drawing."""

from __future__ import annotations

import importlib.util
import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Never

from pbt_rl.processes.child import Child
from pbt_rl.record.append import reason

MIN_GAP_SECONDS = 60.0
"""Default minimum time between the starts of two drawings."""
GAP_FACTOR = 10.0
"""Minimum time from a drawing's start to the next start, as a multiple of the drawing's duration."""
MAX_GAP_SECONDS = 3600.0
"""Maximum pause after failures. Up to this maximum, the pause doubles with each failure."""
LIMIT_SECONDS = 300.0
"""Timeout for one drawing."""
TIMEOUT_SECONDS = 20.0
"""Timeout for the last drawing at the end of a run."""
LOWEST = 19
"""Default niceness of the drawing process."""
INSTALL = 'pip install "pbt-rl[report]"'


class Drawing:
    """Scheduler of a child process that draws a run's figures as PNG files, with a pause between two drawings.

        consumes     the run's journal at the start of a drawing
        produces     images, which `poll` and `finish` return
        waits for    the last drawing, in `finish`; otherwise nothing

    If a drawing fails (for example, because memory or disk is full), `warn` is called, but only for the first of
    consecutive failures. Until a drawing succeeds, later requests wait for growing pauses. Training continues.

    The child process runs `report.images`. Its setup is the tuple (folder of the run, names of the figures, file
    descriptor for the images, niceness increment). Without matplotlib, nothing is drawn.
    """

    def __init__(
        self,
        run: Path,
        names: Sequence[str],
        warn: Callable[[str], None],
        gap_seconds: float = MIN_GAP_SECONDS,
        priority: int = LOWEST,
    ) -> None:
        """names: names of the figures to draw. warn: called with each warning. gap_seconds: minimum time between the
        starts of two drawings. priority: niceness of the drawing process (0 for the last drawing of a run).
        """
        self._run, self._names, self._warn = run, names, warn
        self._gap_seconds, self._priority = gap_seconds, priority
        self.child: Child[Never, Never] | None = None
        self._file: IO[bytes] | None = None
        self._requested = self._given_up = False
        self._failures = 0
        """Number of failed drawings since the last success."""
        self._began = 0.0
        self._next = 0.0

    def request(self) -> None:
        """Request a drawing. `poll` starts it after the minimum pause. Without matplotlib, warn once instead."""
        if not self._given_up and importlib.util.find_spec("matplotlib") is None:
            self._given_up = True
            self._warn(f"no figures, because matplotlib is missing: {INSTALL}")
        self._requested = not self._given_up

    def poll(self) -> dict[str, bytes | str]:
        """Return finished figures: name -> image, or reason why the image is missing.

        If a drawing is requested, no drawing is in progress, and the pause is over, start the drawing.
        """
        ready = self._collect()
        if self._requested and self.child is None and time.monotonic() >= self._next:
            self._start_process(self._priority)
        return ready

    def finish(self, may_wait: Callable[[], bool] = lambda: True) -> dict[str, bytes | str]:
        """Wait for the last drawing while `may_wait` returns True, at most TIMEOUT_SECONDS. Return finished figures.

        The result has the format of `poll`.
        A requested drawing starts at once. A drawing in progress is restarted with normal priority, because with low
        priority it might get no CPU time.
        """
        ready = self._collect()
        if self.child is not None:
            self.child.end(0.0)
            self._release()
            self._requested = True
        if self._requested and may_wait():
            self._start_process(priority=0)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.child is not None and may_wait() and time.monotonic() < deadline:
            ready |= self._collect()
            time.sleep(0.02)
        if self.child is not None:
            self.child.end(0.0)
            self._release()
            if may_wait():
                self._warn(f"the last figures for TensorBoard were not drawn within {TIMEOUT_SECONDS:.0f} s")
        return ready

    def _start_process(self, priority: int) -> None:
        self._requested = False
        self._began = time.monotonic()
        try:
            self._file = os.fdopen(os.memfd_create("pbt_rl-figures"), "w+b")
            number = self._file.fileno()
            setup = (self._run, self._names, number, priority)
            self.child = Child("pbt_rl.report.images", "the drawing", setup, [number])
        except OSError as error:
            self._release()
            self._failed(reason(error))

    def _collect(self) -> dict[str, bytes | str]:
        if self.child is None or self._file is None:
            return {}
        seconds = time.monotonic() - self._began
        code = self.child.exit_code()
        if code is None and seconds < LIMIT_SECONDS:
            return {}
        images: dict[str, bytes | str] = {}
        if code == 0:
            self._file.seek(0, os.SEEK_SET)
            images = pickle.load(self._file)
            self._failures = 0
            self._next = self._began + max(self._gap_seconds, GAP_FACTOR * seconds)
        else:
            self._failed(f"it took over {LIMIT_SECONDS:.0f} s" if code is None else self.child.how_it_ended())
        self.child.end(0.0)
        self._release()
        return images

    def _release(self) -> None:
        self.child = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _failed(self, why: str) -> None:
        self._failures += 1
        pause = self._gap_seconds * 2.0 ** min(self._failures, 10)
        self._next = time.monotonic() + min(pause, MAX_GAP_SECONDS)
        if self._failures == 1:
            self._warn(f"figures could not be drawn ({why}); training continues")
