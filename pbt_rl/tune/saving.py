"""The folder of a run of `tune.run`: its journal, and the state from which it goes on.

    journal.jsonl   as `pbt-rl train` writes it
    state.pickle    everything between two comparisons, with the members' own states; replaced as a whole

A state is whatever `Member.state` returns, so it is pickled: go on only in folders whose files you trust.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.record.claim import FolderLock, Held

JOURNAL, STATE = "journal.jsonl", "state.pickle"
SAVE_SECONDS, SAVE_SHARE = 60.0, 0.05
"""A run is saved at least this often, and oftener as long as that takes no more than this share of the time."""


@dataclass(frozen=True)
class SavedRun:
    """What a file of a state holds. options: with which the run was begun. position: bytes of the journal."""

    options: dict[str, Any]
    position: int
    parts: dict[str, Any]


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Make the folder of a run and hold its lock. Raises ConfigError if that cannot be, or if another run holds it."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except Held as held:
        raise ConfigError(f"{folder} is in use by {held}: wait for its end, or give another folder") from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    if not lock.supported:
        text = "lies on a file system without locks: see to it that no other process writes this run"
        print(f"tune.run: {folder} {text}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        lock.release()


class RunState:
    """Writes the state of a run after its first round, then as often as SAVE_SHARE allows, and when it ends."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder, self._path, self._options = folder, folder / STATE, options
        self.saved_at: int | None = None
        """Steps of the population when it was saved last."""
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() >= self._next

    def save(self, position: int, parts: dict[str, Any], steps: int, began: float) -> None:
        """Write everything; a kill at any moment leaves the state before or this one. Raises OSError.

        steps: of the population. began: time.monotonic() when its members were asked for their states.
        """
        draft = self._path.with_name(f".{STATE}.{os.getpid()}")
        with draft.open("wb") as file:
            pickle.dump(SavedRun(self._options, position, parts), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        now, self.saved_at = time.monotonic(), steps
        self._next = now + min(SAVE_SECONDS, (now - began) / SAVE_SHARE)

    def load(self) -> SavedRun | None:
        """Return what was saved; None if nothing was. Raises ConfigError for other options or a damaged file.

        More steps than before are taken: the run goes on.
        """
        try:
            saved = pickle.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # a pickle may be broken in any way, and the user's classes may be gone
            remedy = "remove the folder to begin anew"
            raise ConfigError(f"{self._path} cannot be read: {error!r:.200}; {remedy}") from error
        changed = [
            f"{name} is {value!r} and was {saved.options.get(name)!r}"
            for name, value in self._options.items()
            if name != "steps" and saved.options.get(name, value) != value
        ]
        if changed:
            raise ConfigError(f"{self._path.parent} cannot go on: {'; '.join(changed)}; give another folder")
        assert isinstance(saved, SavedRun)
        self._options["steps"] = saved.options["steps"]  # as it was begun, however often it goes on
        self.saved_at = min((m.frames for m in saved.parts["members"] if not m.stopped), default=0)
        return saved
