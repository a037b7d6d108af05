"""Table of the runs in a folder for `pbt-rl runs`. Modules that are named in the files of a run are not imported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, json

from pbt_rl.config import number_of_controls
from pbt_rl.controllers.events import End, Event, Progress, Start, decode_event
from pbt_rl.controllers.objectives import by_score
from pbt_rl.controllers.records import NOT_JSON, Whole, finite
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import check_file
from pbt_rl.record.run_lock import is_held

T = TypeVar("T")
PLANNED_ENDS = ("frames", "steps", "seconds", "objective", "all members are done")
"""Reasons for the end of a finished run (`ended` in summary.json)."""
TUNE_STATE = "state.pickle"
"""Name of the file from which a run of `tune.run` resumes."""
_MAX_JSON_BYTES = 8 << 20
_TAILS = tuple(1 << exponent for exponent in (14, 17, 20, 23))
"""Numbers of bytes to read from the end of the journal, tried in order until a `Progress` event is found."""


@dataclass(frozen=True)
class RunRow:
    """Table row of one run. None means unknown.

    frames: population clock. best: the best member's objective in training. final: the best member's mean in the final
    evaluation. changed: time of the last write of config, journal or summary, in seconds since the epoch.
    state: running, ended, resumable, interrupted, failed, or "broken: REASON".
    """

    name: str
    env: str | None
    members: int | None
    frames: int | None
    best: float | None
    state: str
    changed: float
    final: float | None = None


class _Config(Struct):
    """Fields of config.json that a row needs."""

    env: str
    num_policies: Whole
    control: Annotated[float, Meta(ge=0, le=100_000)] = 0.0


class _Tuned(Struct):
    """Config of a `tune.run` run, from its journal. api: name that is listed in the column of the environment."""

    api: str
    num_members: Whole


class _Final(Struct):
    mean: float | None = None


class _Member(Struct, rename={"member": "id"}):
    member: Whole = 0
    objective: float | None = None
    final: _Final | None = None


class _Summary(Struct):
    """Fields of summary.json that a row needs."""

    members: list[_Member] = []
    ended: str | None = None
    saved_at_frames: Whole | None = 0


class _Broken(Exception):  # noqa: N818 - describes the state
    """A file of a run cannot be read. The message contains the file and the reason."""


def list_runs(folder: Path) -> list[RunRow]:
    """Return the runs in a folder, newest first. If the folder itself is a run, return this run.

    Runs whose name begins with a dot are left out. Raises OSError if the folder cannot be listed.
    """
    if _is_run(folder):
        return [_row(folder)]
    # `is_dir` of an entry of `scandir` raises for a link to itself.
    entries = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
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
        env, members, population = (_config if os.path.lexists(folder.config) else _tuned)(folder)
        last, progress = _tail(folder.journal)
        end = last.ended if isinstance(last, End) else None
        # A resumed run still has the summary of its earlier end.
        at_end = end is not None or _changed(folder.summary) >= _changed(folder.journal)
        summary = None
        if at_end and not state and os.path.lexists(folder.summary):
            summary = _json(folder.summary, _Summary, "is not the summary of a run")
        frames = progress.frames if progress else None
        told = summary or progress
        if told is not None and told.members:
            own = [one for one in told.members if one.member < population]
            objectives = {one.member: one.objective for one in own}
            final_scores = {
                one.member: one.final.mean for one in own if isinstance(one, _Member) and one.final
            }
            for named in by_score(objectives, final_scores)[:1]:
                best, final = finite(objectives[named]), finite(final_scores.get(named))
        ended = end or (summary.ended if summary else None)
        state = state or _state(folder, ended, summary, begun=last is not None)
    except _Broken as broken:
        state = state or f"broken: {broken}"
    return RunRow(path.name or path.resolve().name, env, members, frames, best, state, changed, final)


def _config(folder: RunFolder) -> tuple[str, int, int]:
    """Return environment, number of members including controls, and size of the population. Raises _Broken."""
    config = _json(folder.config, _Config, "has no environment or no number of members")
    population = config.num_policies
    return config.env, population + number_of_controls(config.control, population), population


def _tuned(folder: RunFolder) -> tuple[str, int, int]:
    """Return environment and number of members of a `tune.run` run (twice, because no member is a control).

    Raises _Broken.
    """
    head, _ = _read(folder.journal, _TAILS[-1], from_start=True)
    try:
        start = decode_event(head.partition(b"\n")[0], 1)
        given = convert(start.config if isinstance(start, Start) else None, _Tuned)
    except ValueError:
        raise _Broken(f"{folder.config.name} is missing") from None
    return given.api, given.num_members, given.num_members


def _state(folder: RunFolder, ended: str | None, summary: _Summary | None, *, begun: bool) -> str:
    """Return the state of a run that is not running. begun: True if the journal contains an event. Raises _Broken."""
    planned = ended in PLANNED_ENDS
    unsaved = os.path.lexists(folder.config) and summary is not None and summary.saved_at_frames is None
    if planned and not unsaved:
        return "ended"
    saved = next(folder.checkpoints.glob("*/manifest.json"), None) is not None
    if saved and not begun:
        raise _Broken("journal.jsonl is empty")
    if saved or os.path.lexists(folder.path / TUNE_STATE):
        return "resumable"
    return "failed" if ended == "failed" or planned else "interrupted"


def _tail(journal: Path) -> tuple[Event | None, Progress | None]:
    """Return the last event, and the last `Progress` event (None if it is not near the end of the journal).

    Raises _Broken.
    """
    last = None
    for size in _TAILS:
        data, whole = _read(journal, size)
        events = list(_events_backwards(data if whole else data.partition(b"\n")[2]))
        last = events[0] if events else None
        progress = next((event for event in events if isinstance(event, Progress)), None)
        if progress is not None or whole:
            if not events and data:
                raise _Broken("journal.jsonl has no event at its end")
            return last, progress
    return last, None


def _events_backwards(data: bytes) -> Iterator[Event]:
    for line in reversed(data.splitlines()):
        with contextlib.suppress(ValueError):  # truncated or damaged
            yield decode_event(line, 0)


def _json(path: Path, kind: type[T], lack: str) -> T:
    """Read a JSON object. lack: message if fields are missing or wrong, such as "is not a summary". Raises _Broken."""
    data, whole = _read(path, _MAX_JSON_BYTES)
    is_object = whole and data.lstrip().startswith(b"{")
    try:
        return json.decode(data if is_object else b"", type=kind)
    except ValidationError:
        raise _Broken(f"{path.name} {lack}") from None
    except (*NOT_JSON, RecursionError):
        raise _Broken(f"{path.name} is not a JSON object") from None


def _read(path: Path, limit: int, *, from_start: bool = False) -> tuple[bytes, bool]:
    """Return the last `limit` bytes of a file, and True if these are all its bytes. Raises _Broken.

    from_start: return the first bytes instead.
    """
    try:
        check_file(path)
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0 if from_start else max(0, size - limit))
            return file.read(limit), size <= limit
    except FileNotFoundError:
        raise _Broken(f"{path.name} is missing") from None
    except OSError as error:
        raise _Broken(f"{path.name}: {error.strerror}") from error
    except ValueError as error:
        raise _Broken(str(error)) from error


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
