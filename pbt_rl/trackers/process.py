"""The process of one tracker: reads views from a pipe until it is closed."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import IO

from pbt_rl.display.view import RunView
from pbt_rl.errors import ConfigError
from pbt_rl.procs.child import begin_child, send_failure
from pbt_rl.trackers.base import Ended, Loaded, Tracker, TrackerSetup
from pbt_rl.trackers.registry import load

PRIORITY = 5
"""Training comes first (`nice`)."""


def main() -> None:
    """Track a run to its end."""
    connection, setup = begin_child()
    assert isinstance(setup, TrackerSetup)
    os.nice(PRIORITY)
    try:
        make = load(setup.tracker)
        connection.send(Loaded())
        with os.fdopen(setup.descriptor, "rb") as pipe:
            track(make(setup.run), pipe)
    except ConfigError as error:
        send_failure(connection, str(error), user_error=True)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the parent says it once, and trains on
        traceback.print_exc()
        send_failure(connection, f"{type(error).__name__}: {error}", user_error=False)
        sys.exit(1)


def track(tracker: Tracker, pipe: IO[bytes]) -> None:
    """Pass everything that comes through the pipe to the tracker, until its end."""
    ended = "failed"
    while True:
        try:
            message = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):  # closed, or torn by a killed parent
            break
        match message:
            case RunView():
                tracker.show(message)
            case Ended(why):
                ended = why
    tracker.close(ended)


if __name__ == "__main__":
    main()
