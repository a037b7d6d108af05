"""Threads that pass views to the trackers of a run, one thread per tracker.

A tracker is a class with `show(view)` and `close(ended)`. If the constructor takes an argument, it gets a TrackedRun.
Trackers are created before the event files of TensorBoard (in a resumed run: before its new event files). If a tracker
has the attribute `where`, a string, this string is printed at the start and at the end. After the start, training never
waits for a tracker: if a tracker is too slow, views are dropped. If a tracker raises an exception, a single warning is
printed, and the tracker gets no more views.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from pbt_rl.config import TRACKERS, Config
from pbt_rl.display.scalars import gap_seconds
from pbt_rl.display.view import RunView, copied
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.record.journal import as_json_types
from pbt_rl.registry import load_object

MOST_WAITING = 64
"""Maximum number of queued views per tracker."""
TIMEOUT_SECONDS, SHORT_SECONDS = 30.0, 2.0
"""Timeout for all trackers at the end of a run, and timeout after Ctrl-C."""


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run for its trackers.

    config: all options as JSON types. members: number of members.
    seconds: 0, or for a resumed run the seconds of the run at the checkpoint. A resumed run repeats the training after
    this checkpoint. Therefore, a tracker should remove stored data whose time is later than `seconds`.
    """

    name: str
    folder: RunFolder
    config: Mapping[str, Any]
    members: int
    seconds: float

    @property
    def tracking(self) -> Path:
        """Folder for the tracker's files. A missing folder is created."""
        path = self.folder.path.absolute() / "tracking"
        path.mkdir(exist_ok=True)
        return path


class Outlet(Thread):
    """Thread of one tracker, with a queue of views."""

    def __init__(self, name: str, run: TrackedRun, log: Path, warn: Callable[[str], None]) -> None:
        """Import and create the tracker, and start the thread.

        Raises ConfigError if the tracker cannot be imported, or has no methods `show` and `close`.
        name: value of --track. warn: called with each line for the user.
        log: file for the traceback if the tracker fails, for example in its constructor.
        """
        super().__init__(name=f"tracker {name}", daemon=True)
        try:
            make = load_object(TRACKERS.get(name, name), "Class")
        except ValueError as error:
            raise ConfigError(f"--track {name} {error}") from error
        if not all(callable(getattr(make, method, None)) for method in ("show", "close")):
            raise ConfigError(
                f"--track {name} is not a tracker: give a class with show(view) and close(ended)"
            )
        self._waiting: Queue[RunView | str] = Queue(MOST_WAITING)
        self._failed, self._late, self._over = "", False, False
        self._log, self._warn = log, warn
        self._tracker = self._caught(lambda: make(run) if _takes_one(make) else make())
        self._show_where()
        self.start()

    def _show_where(self) -> None:
        where = self._caught(lambda: getattr(self._tracker, "where", None))
        if isinstance(where, str):
            self._warn(f"{self.name}: {where}")

    def run(self) -> None:
        """Pass views to the tracker until the run ends, and then close the tracker."""
        if not self._failed:
            self._caught(self._follow)

    def _follow(self) -> None:
        while not isinstance(message := self._waiting.get(), str):
            self._tracker.show(message)
        self._tracker.close(message)

    def _caught(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the user's class or a package
            with suppress(OSError):
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._log.write_text(traceback.format_exc(), encoding="utf-8")
            self._failed = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def send(self, message: RunView | str) -> None:
        """Queue a view, or the reason for the run's end (a str). If the queue is full, drop its oldest message.

        After a failure of the tracker, warn once and queue nothing.
        """
        if self._failed and not self._over:
            self._over = True
            self._warn(
                f"{self.name} has ended ({self._failed}; see {self._log}); training continues without it"
            )
        if self._over:
            return
        while self._waiting.full():
            if not self._late:
                self._warn(f"{self.name} is too slow: some of its numbers are dropped")
            self._late = True
            with suppress(Empty):
                self._waiting.get_nowait()
        self._waiting.put(message)  # never blocks, because this is the only producer

    def finish(self, deadline: float) -> None:
        """Wait until the tracker has processed all messages. Warn after the deadline, or if the tracker has failed.

        deadline: in seconds of `time.monotonic`.
        """
        self.join(max(0.0, deadline - time.monotonic()))
        late = self.is_alive()
        if not (late or self._failed):
            self._show_where()
        if self._failed:
            self.send("")
        elif late:
            self._warn(f"{self.name} did not end in time: its last numbers may be missing")


def _takes_one(make: Callable[..., Any]) -> bool:
    """Check whether a class can be constructed with one argument."""
    try:
        signature(make).bind(None)
    except TypeError:
        return False
    except ValueError:  # a class implemented in C
        return True
    return True


class Trackers:
    """Trackers of a run. Call all methods from the same thread.

    The interval between two views for the trackers grows with the duration of the run (`gap_seconds`).
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, warn: Callable[[str], None]) -> None:
        """Import and start the trackers.

        Raises ConfigError if a tracker cannot be imported, or lacks the methods of a tracker.
        names: values of --track.
        """
        logs = run.folder.logs
        self._outlets = [Outlet(name, run, logs / f"tracker_{n}.log", warn) for n, name in enumerate(names)]
        self._sent_seconds, self._sent_changes = -math.inf, -1
        self._unsent: RunView | None = None

    def update(self, view: RunView) -> None:
        """Pass a view to the trackers if the interval has passed, or after a replacement or mutation."""
        changes = view.replacements + view.mutations
        if changes == self._sent_changes and view.seconds < self._sent_seconds + gap_seconds(view.seconds):
            self._unsent = view
            return
        self._sent_seconds, self._sent_changes, self._unsent = view.seconds, changes, None
        for outlet in self._outlets:
            outlet.send(copied(view))

    def finish(self, ended: str, *, may_wait: bool) -> None:
        """Pass the last view and the reason for the end to the trackers, and wait for them.

        may_wait: False after Ctrl-C, when the timeout is short.
        """
        deadline = time.monotonic() + (TIMEOUT_SECONDS if may_wait else SHORT_SECONDS)
        for outlet in self._outlets:
            if self._unsent is not None:
                outlet.send(copied(self._unsent))
            outlet.send(ended)
        for outlet in self._outlets:
            outlet.finish(deadline)


def check(config: Config) -> None:
    """Check that the packages of built-in trackers are installed. Raises ConfigError if a package is missing."""
    if "wandb" in config.track and find_spec("wandb") is None:
        raise ConfigError('--track wandb needs wandb: pip install "pbt-rl[wandb]"')


def start(config: Config, folder: RunFolder, seconds: float, warn: Callable[[str], None]) -> Trackers:
    """Start the trackers of a run. Raises the errors of `Trackers`.

    seconds: 0, or for a resumed run the seconds of the run at the checkpoint. warn: called with each warning.
    """
    run = TrackedRun(str(config.name), folder, as_json_types(to_json(config)), config.members, seconds)
    return Trackers(config.track, run, warn)
