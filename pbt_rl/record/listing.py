"""The runs of a folder, from their files, for `pbt-rl runs`. Nothing that a file names is imported."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.record.folder import RunFolder
from pbt_rl.record.lock import is_held

PLANNED_ENDS = ("frames", "seconds", "objective", "all members are done")
"""Ends of a run that has nothing left to do."""
TUNE_STATE = "state.pickle"
"""Of a run of `tune.run`: that from which it goes on."""
_MAX_JSON_BYTES = 8 << 20
_ABSURD = 1e18
"""No number of a run is larger."""
_TAILS = tuple(1 << exponent for exponent in (14, 17, 20, 23))
"""The journal's end is read in pieces that grow until one holds the members' progress."""


@dataclass(frozen=True)
class RunRow:
    """One run. None: unknown.

    frames: of the whole population. best: the highest objective in training. changed: when it last wrote, in
    seconds since the epoch.
    state: running, ended, resumable, interrupted, failed, or "broken: why".
    """

    name: str
    env: str | None
    members: int | None
    frames: int | None
    best: float | None
    state: str
    changed: float
    final: float | None = None
    """The highest mean of final games; None if there were none."""


class _Broken(Exception):  # noqa: N818 - reads as what happened
    """A file of a run cannot be read. The message says which one and why."""


def list_runs(folder: Path) -> list[RunRow]:
    """Return the runs in a folder, or the one that it is, the newest first. Raises OSError if it cannot be read."""
    if _is_run(folder):
        return [_row(folder)]
    entries = [
        Path(entry) for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")
    ]
    return sorted(map(_row, filter(_is_run, entries)), key=lambda row: (-row.changed, row.name))


def _is_run(path: Path) -> bool:
    folder = RunFolder(path)
    return os.path.lexists(folder.config) or os.path.lexists(folder.journal)


def _row(path: Path) -> RunRow:
    folder = RunFolder(path)
    changed = max(map(_changed, (folder.config, folder.journal, folder.summary)))
    env = members = frames = best = final = None
    state = "running" if is_held(path) else ""
    try:
        env, members = _config(folder.config) if os.path.lexists(folder.config) else _tuned(folder)
        last, progress = _tail(folder.journal)
        # A run that was resumed has a summary of an earlier end.
        at_end = last.get("event") == "end" or _changed(folder.summary) >= _changed(folder.journal)
        summary = _json(folder.summary) if at_end and not state and os.path.lexists(folder.summary) else {}
        frames, best = _progress(summary or progress)
        final = _final(summary)
        state = state or _state(folder, last if last.get("event") == "end" else summary, summary)
    except _Broken as broken:
        state = state or f"broken: {broken}"
    return RunRow(path.name or path.resolve().name, env, members, frames, best, state, changed, final)


def _config(path: Path) -> tuple[str, int]:
    """Return the environment and the number of members. Raises _Broken."""
    config = _json(path)
    env, members = config.get("env"), _count(config.get("num_policies"))
    if not isinstance(env, str) or members is None:
        raise _Broken(f"{path.name} names no environment or no members")
    return env, members


def _tuned(folder: RunFolder) -> tuple[str, int]:
    """Return the same of a run of `tune.run`, which has no config.json: its journal names it. Raises _Broken."""
    head, _ = _read(folder.journal, _TAILS[-1], from_start=True)
    start = _parsed(head.partition(b"\n")[0])
    config = start.get("config") if isinstance(start, dict) else None
    given = config if isinstance(config, dict) else {}
    api, members = given.get("api"), _count(given.get("num_members"))
    if not isinstance(api, str) or members is None:
        raise _Broken(f"{folder.config.name} is missing")
    return api, members


def _state(folder: RunFolder, end: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return how a run ended. One whose end could not be saved has still to go on from its last checkpoint."""
    ended = end.get("ended")
    planned = ended in PLANNED_ENDS
    unsaved = os.path.lexists(folder.config) and summary.get("saved_at_frames", 0) is None
    if planned and not unsaved:
        return "ended"
    saved = next(folder.checkpoints.glob("*/manifest.json"), None) is not None
    if saved or os.path.lexists(folder.path / TUNE_STATE):
        return "resumable"
    return "failed" if ended == "failed" or planned else "interrupted"


def _progress(content: dict[str, Any]) -> tuple[int | None, float | None]:
    """Return the frames and the best objective of a summary or of an event `progress`."""
    members = _members(content)
    frames = [_count(member.get("frames")) for member in members]
    best = _highest(member.get("objective") for member in members)
    return sum(f for f in frames if f is not None) if members else None, best


def _final(summary: dict[str, Any]) -> float | None:
    """Return the highest mean of final games."""
    games = [member.get("final") for member in _members(summary)]
    return _highest(game.get("mean") for game in games if isinstance(game, dict))


def _members(content: dict[str, Any]) -> list[dict[str, Any]]:
    found = content.get("members", [])
    return [member for member in found if isinstance(member, dict)] if isinstance(found, list) else []


def _highest(numbers: Iterable[object]) -> float | None:
    return max((n for n in numbers if isinstance(n, int | float) and abs(n) < _ABSURD), default=None)


def _tail(journal: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the last event, and the last event `progress` (empty if there is none near the end). Raises _Broken."""
    last: dict[str, Any] = {}
    for size in _TAILS:
        data, whole = _read(journal, size)
        events = list(_events_backwards(data if whole else data.partition(b"\n")[2]))
        last = events[0] if events else {}
        progress = next((event for event in events if event.get("event") == "progress"), None)
        if progress is not None or whole:
            if not events and data:
                raise _Broken("journal.jsonl holds no event at its end")
            return last, progress or {}
    return last, {}


def _events_backwards(data: bytes) -> Iterator[dict[str, Any]]:
    for line in reversed(data.splitlines()):
        event = _parsed(line)
        if isinstance(event, dict):
            yield event


def _json(path: Path) -> dict[str, Any]:
    data, whole = _read(path, _MAX_JSON_BYTES)
    content = _parsed(data) if whole else None
    if not isinstance(content, dict):
        raise _Broken(f"{path.name} is not a JSON object")
    return content


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # not JSON, not text, or nested too deeply
        return None


def _read(path: Path, limit: int, *, from_start: bool = False) -> tuple[bytes, bool]:
    """Return the last (or first) bytes of a file, at most `limit`, and whether they are all of it. Raises _Broken."""
    try:
        # Not blocking: the file may be a pipe, which is refused below.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise _Broken(f"{path.name} is missing") from None
    except OSError as error:
        raise _Broken(f"{path.name}: {error.strerror}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _Broken(f"{path.name} is not a file")
        rest = max(0, status.st_size - limit)
        return os.pread(file, limit, 0 if from_start else rest), rest == 0
    except OSError as error:
        raise _Broken(f"{path.name}: {error.strerror}") from error
    finally:
        os.close(file)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _count(value: object) -> int | None:
    """Return a number that can count something; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ABSURD else None
