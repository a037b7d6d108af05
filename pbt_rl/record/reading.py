"""Reads the JSON files of a run's folder, which may come from anybody and be damaged in any way."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.events import CheckpointWritten, Event, Resume
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import each_event

MOST_BYTES = 64 << 20
"""Of config.json and summary.json: of a run with thousands of members they are far smaller."""


def read_object(path: Path, if_missing: str) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ConfigError; if there is no such file, with the text `if_missing`."""
    try:
        _check_file(path, MOST_BYTES)
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(if_missing) from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: its objects are nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} cannot be read: it holds no JSON object")
    return data


def journal_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run's journal in order. Raises ConfigError."""
    path = RunFolder(folder).journal
    try:
        _check_file(path)
        yield from each_event(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} is not the folder of a run: it has no {path.name}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not the folder of a run: {_reason(error)}") from error


def was_saved(folder: Path) -> bool:
    """Return whether a run has had a checkpoint. One that goes on from its only one notes `resume` in its place."""
    events = journal_events(folder) if RunFolder(folder).journal.exists() else ()
    return any(isinstance(event, CheckpointWritten | Resume) for event in events)


def _check_file(path: Path, most_bytes: int | None = None) -> None:
    """Check that a file can be read to its end, which devices and pipes do not have. Raises OSError or ValueError."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path.name} is no regular file")
    if most_bytes is not None and facts.st_size > most_bytes:
        raise ValueError(f"{path.name} has {facts.st_size:,} bytes, more than {most_bytes:,}")


def _reason(error: Exception) -> str:
    return f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else f"{error}"
