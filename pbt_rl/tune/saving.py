"""Folder of a run of `tune.run`: the journal, and the state from which the run resumes.

    journal.jsonl   journal in the format of `pbt-rl train`
    state.pickle    state between two rounds of evaluations, with the states of all members that are not broken;
                    replaced atomically

States are pickled, because `Member.state` may return any object. Resume only from files that you trust.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pbt_rl.controllers.member_record import population_clock
from pbt_rl.errors import ConfigError
from pbt_rl.record.run_lock import FolderLock, Held

JOURNAL, STATE = "journal.jsonl", "state.pickle"
SAVE_SECONDS, SAVE_SHARE = 60.0, 0.05
"""If a save takes t seconds, the next save is due after min(SAVE_SECONDS, t / SAVE_SHARE) seconds."""


@dataclass(frozen=True)
class SavedRun:
    """Contents of a state file.

    options: arguments of the first `tune.run` call, with which a resume compares its arguments.
    position: size of the journal in bytes.
    parts: states of the controller and of the members, and the attributes of `Training` that `training.SAVED` lists.
    """

    options: dict[str, Any]
    position: int
    parts: dict[str, Any]


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Create the folder of a run, and hold the lock of the folder in this context. With `folder` None, do nothing.

    Raises ConfigError if the folder cannot be written, or if another process holds the lock.
    """
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
        text = "is on a file system without locks: make sure that no other process writes this run"
        print(f"tune.run: {folder} {text}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        lock.release()


def settings_text(value: object) -> str:
    """Format a setting of a run, to compare it with a saved run. Equal settings have equal texts in all processes.

    Of a dataclass, the settings that differ from their defaults are formatted, and its state is left out. Of other
    objects, only the class is formatted.
    """
    if is_dataclass(value) and not isinstance(value, type):
        settings = [
            f for f in fields(value) if f.init and not {"state", "transient", "shared"} & f.metadata.keys()
        ]
        texts = {f.name: settings_text(getattr(value, f.name)) for f in settings}
        inner = ", ".join(
            f"{f.name}={texts[f.name]}" for f in settings if texts[f.name] != settings_text(f.default)
        )
        return f"{type(value).__name__}({inner})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{settings_text(key)}: {settings_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(settings_text, value))}]"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """Return a text for each change of a setting. Of a dict, only the changed entries are described."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return [f"{name} {key} is {now.get(key)} and was {before.get(key)}" for key in keys]
    return [f"{name} is {now!r} and was {before!r}"]


class RunState:
    """Reader and writer of the state file of a run. options: arguments of the present `tune.run` call."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder, self._path, self._options = folder, folder / STATE, options
        self.saved_at: int | None = None
        """Population clock at the last save, in steps. None before the first save."""
        self._next = 0.0

    @property
    def due(self) -> bool:
        """True if it is time for the next save."""
        return time.monotonic() >= self._next

    def save(self, position: int, parts: dict[str, Any], steps: int, began: float) -> None:
        """Write the state atomically. Raises OSError if the file cannot be written.

        position, parts: see `SavedRun`. steps: population clock. began: `time.monotonic()` before the collection of the
        members' states.
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
        """Load the saved state. Return None if the state file does not exist.

        Raises ConfigError if the file is damaged, or if an option has changed. The option `steps` may change, because a
        run may be extended.
        """
        try:
            saved = pickle.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged pickle or a missing class of the user may raise anything
            remedy = "remove the folder to restart"
            raise ConfigError(f"{self._path} cannot be read: {error!r:.200}; {remedy}") from error
        if not isinstance(saved, SavedRun):
            raise ConfigError(f"{self._path} is not the file of a run of tune.run: give another folder")
        changed = [
            text
            for name, value in self._options.items()
            if name != "steps"
            for text in _changes(name, saved.options.get(name, value), value)
        ]
        if changed:
            raise ConfigError(f"{self._path.parent} cannot resume: {'; '.join(changed)}; give another folder")
        self.saved_at = population_clock(saved.parts["members"])
        if self._options["steps"] < self.saved_at:
            raise ConfigError(
                f"steps={self._options['steps']} cannot be used: {self._path.parent} has reached step {self.saved_at}; "
                f"give {self.saved_at} or more, or another folder"
            )
        self._options["steps"] = saved.options["steps"]  # the default period depends on the steps
        return saved
