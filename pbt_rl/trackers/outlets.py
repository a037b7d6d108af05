"""Passes views to the trackers of a run, each in a process of its own.

A view is written to the pipe of each tracker as far as the pipe takes it, and never waited for. What a tracker does not
take in time is left out, whole views at a time; one that dies is said once. Training knows nothing of either.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.display.scalars import gap_seconds
from pbt_rl.display.view import RunView
from pbt_rl.errors import ConfigError
from pbt_rl.procs.child import Child
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.record.journal import as_json_types
from pbt_rl.trackers.base import Ended, Loaded, TrackedRun, TrackerSetup
from pbt_rl.trackers.options import TrackersOption
from pbt_rl.trackers.registry import TRACKERS, check_installed

LOAD_SECONDS = 60.0
"""The import of a tracker may take this long."""
MOST_WAITING = 64
"""Messages for a tracker that takes none."""
PATIENCE_SECONDS, SHORT_SECONDS = 30.0, 2.0
"""The end of a run waits this long for its trackers, and after Ctrl-C."""


class Outlet:
    """One tracker, seen from the run."""

    def __init__(self, name: str, run: TrackedRun, log: Path, warn: Callable[[str], None]) -> None:
        self.name, self._warn, self._log = name, warn, log
        self._waiting: deque[bytes] = deque()
        """Messages; the first one may be a rest, which must go first."""
        self._torn = self._late = False
        self._over = False
        theirs, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            setup = TrackerSetup(name, run, theirs)
            self._child: Child[None, Loaded] = Child(
                "pbt_rl.trackers.process", f"tracker {name}", setup, [theirs], log
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)

    def wait_until_loaded(self, deadline: float) -> None:
        """Wait for the import of the tracker. Raises ConfigError if it fails or takes too long."""
        while not any(isinstance(message, Loaded) for message in self._child.messages()):
            if self._child.exit_code() is not None:
                raise ConfigError(self._child.ending().text)
            if time.monotonic() > deadline:
                raise ConfigError(f"--track {self.name} was not imported within {LOAD_SECONDS:.0f} s")
            self._child.connection.poll(0.05)

    def send(self, message: RunView | Ended) -> None:
        """Pass a message on, as soon as the tracker takes it."""
        if self._over:
            return
        if len(self._waiting) >= MOST_WAITING:
            del self._waiting[1 if self._torn else 0]
            if not self._late:
                self._late = True
                self._warn(f"tracker {self.name} does not keep up: it will miss some of the numbers")
        self._waiting.append(pickle.dumps(message))
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now; say so if the tracker has ended."""
        if self._over:
            return
        try:
            while self._waiting and self._pipe >= 0:
                written = os.write(self._pipe, self._waiting[0])
                self._torn = written < len(self._waiting[0])
                if self._torn:
                    self._waiting[0] = self._waiting[0][written:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it is about to end
            self._waiting.clear()
        code = self._child.exit_code()
        if code is not None and (code or self._pipe >= 0):
            self._note_death()
        self._over = self._over or code is not None

    def ended(self) -> bool:
        """Write on; once the tracker has all, let it see the end. Return whether it has ended."""
        self.flush()
        if not self._waiting:
            self._close_pipe()
        return self._over

    def finish(self) -> None:
        """End the process, and say so if it still had work."""
        if not self._over:
            self._warn(f"tracker {self.name} did not end in time: its last numbers may be missing")
        self.kill()

    def kill(self) -> None:
        """End the process at once. Safe to call twice."""
        self._over = True
        self._close_pipe()
        self._child.end(0.0)

    def _note_death(self) -> None:
        self._over = True
        list(self._child.messages())
        why = self._child.ending().text.strip().partition("\n")[0]
        self._warn(f"tracker {self.name} has ended ({why}; see {self._log}); training goes on without it")
        self._waiting.clear()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


class Trackers:
    """The trackers of a run. Use it from one thread.

    consumes   views
    waits for  nothing; `finish` waits for the trackers to take the last numbers

    A view is passed on if `gap_seconds` have passed or a member has changed.
    """

    def __init__(
        self, names: Sequence[str], run: TrackedRun, logs: Path, warn: Callable[[str], None]
    ) -> None:
        """Start a process per tracker, and wait until each has imported its packages.

        Raises ConfigError if one cannot be imported; then none is left.
        """
        self._outlets: list[Outlet] = []
        self._sent_seconds, self._sent_changes = -math.inf, -1
        self._unsent: RunView | None = None
        try:
            for number, name in enumerate(names):
                file = f"tracker_{name if name in TRACKERS else number}.log"
                self._outlets.append(Outlet(name, run, logs / file, warn))
            for outlet in self._outlets:
                outlet.wait_until_loaded(time.monotonic() + LOAD_SECONDS)
        except OSError as error:
            self.kill()
            raise ConfigError(f"no process for --track can be started: {error.strerror or error}") from error
        except ConfigError:
            self.kill()
            raise

    def update(self, view: RunView) -> None:
        """Take a view."""
        changes = view.replacements + view.mutations
        if changes == self._sent_changes and view.seconds < self._sent_seconds + gap_seconds(view.seconds):
            self._unsent = view
            for outlet in self._outlets:
                outlet.flush()
            return
        self._send(view)

    def finish(self, ended: str, *, patient: bool) -> None:
        """Pass the last view and the reason of the end on, and wait for the trackers. patient: not after Ctrl-C."""
        if self._unsent is not None:
            self._send(self._unsent)
        deadline = time.monotonic() + (PATIENCE_SECONDS if patient else SHORT_SECONDS)
        for outlet in self._outlets:
            outlet.send(Ended(ended))
        while sum(not outlet.ended() for outlet in self._outlets) and time.monotonic() < deadline:
            time.sleep(0.02)
        for outlet in self._outlets:
            outlet.finish()

    def kill(self) -> None:
        """End all processes at once."""
        for outlet in self._outlets:
            with suppress(OSError):
                outlet.kill()

    def _send(self, view: RunView) -> None:
        self._sent_seconds, self._sent_changes = view.seconds, view.replacements + view.mutations
        self._unsent = None
        for outlet in self._outlets:
            outlet.send(view)


def check(config: Config) -> None:
    """Check that the packages of the trackers are there, before anything starts. Raises ConfigError."""
    for name in config.group(TrackersOption).track:
        check_installed(name)


def start(config: Config, folder: RunFolder, seconds: float, warn: Callable[[str], None]) -> Trackers:
    """Start the trackers of a run (see `display.view`). Raises ConfigError if one cannot be loaded."""
    options = as_json_types(to_json(config))
    tracked = TrackedRun(str(config.name), folder.path.absolute(), options, config.members, seconds)
    return Trackers(config.group(TrackersOption).track, tracked, folder.logs, warn)
