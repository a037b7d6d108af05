"""Reads the journal of a run, which may come from anybody and be damaged in any way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.record.events import Event, decode_event
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import check_file, each_line


def each_event(path: Path) -> Iterator[Event]:
    """Yield the events in order, without a broken last line (the process was killed while writing it).

    One after the other, as a journal of weeks has gigabytes. Raises OSError; ConfigError for a line that is no event,
    ValueError for one that is no JSON anywhere but at the end: the file is damaged then.
    """
    return each_line(path, decode_event)


def journal_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run's journal in order. Raises ConfigError."""
    path = RunFolder(folder).journal
    try:
        check_file(path)
        yield from each_event(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(RunFolder(folder).lacks(path.name)) from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
        raise ConfigError(f"{folder} cannot be read: {why}") from error
