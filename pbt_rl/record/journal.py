"""The record of a run: JSON lines, one object an event, appended and flushed as it happens.

Every event holds `event` (its kind), `time` (seconds since the epoch) and `frames` (the population's clock:
the least emulator frames of any member). The kinds:

    start      config, seed, versions, git, spec; always the first
    initial    values: of the members at the start, in order of id
    seat       pack, slot, leaves, enters: one place of one device changes hands (null: nobody)
    matchup    pack, version, slots: the member at each; meetings: [P, P] seats of one in the environments of another
    snapshot   member, at_frames: whose weights were kept under checkpoints/at_FRAMES
    progress   members: each one's generation, frames, objective, episodes; about every ten seconds
    round      report: what the controller saw; decisions: what it answered; replays bit for bit
    applied    one `Applied`: the proof of a decision, read back from optimiser, loss and environment
    actor_restart, end, ...    whatever the supervisor adds with `write`

JSON has no NaN and no infinities: they are written as the strings "nan", "inf" and "-inf", which `float`
reads back; the readers of numbers (`report_from_dict`, `decision_from_dict`) do so.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import pbt_rl
from pbt_rl.pbt.decisions import (
    Controller,
    Decision,
    PopulationReport,
    decision_from_dict,
    decision_to_dict,
    report_from_dict,
)
from pbt_rl.pbt.hypers import Values
from pbt_rl.wire.messages import Applied

PACKAGES = ("torch", "numpy", "numba", "gymnasium", "ale-py", "safetensors")
"""Packages whose versions a result depends on."""


class Journal:
    """Appends events to one file. Use it from one thread of one process.

    A file that exists is continued; a last line that a killed process left unfinished is cut off first.
    """

    def __init__(self, path: Path) -> None:
        _cut_broken_end(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, frames: int, **content: Any) -> None:
        """Append one event. Its content may hold dataclasses, paths, tuples, numpy numbers, NaN, infinities.

        Raises TypeError for anything else that JSON cannot hold; then nothing is written.
        """
        record = {"event": event, "time": time.time(), "frames": frames, **content}
        self._file.write(json.dumps(_jsonable(record), allow_nan=False) + "\n")
        self._file.flush()

    def start(self, config: Any, seed: int, spec: Any) -> None:
        """Write the first event. config, spec: dataclasses."""
        self.write("start", 0, config=config, seed=seed, versions=versions(), git=git_version(), spec=spec)

    def initial(self, values: list[Values]) -> None:
        """Write the members' values at the start."""
        self.write("initial", 0, values=values)

    def round(self, report: PopulationReport, decisions: list[Decision]) -> None:
        """Write what the controller saw and what it answered; for answers that are not empty."""
        self.write("round", report.frames, report=report, decisions=[decision_to_dict(d) for d in decisions])

    def applied(self, applied: Applied, frames: int) -> None:
        """Write the proof that a decision was applied."""
        self.write("applied", frames, **asdict(applied))

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Events in order. A broken last line (the process was killed while writing it) is left out.

    Raises ValueError for a broken line anywhere else: the file was damaged.
    """
    lines = path.read_bytes().splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is not None:
            events.append(event)
        elif number < len(lines):
            raise ValueError(
                f"{path}, line {number}, is not a JSON object; the file is damaged: remove that line"
            )
    return events


@dataclass(frozen=True)
class Mismatch:
    """Where a replay differed: the index of the event, what is recorded there, what the controller said."""

    index: int
    recorded: list[Values] | list[Decision]
    replayed: list[Values] | list[Decision]


def replay_decisions(events: Iterable[Mapping[str, Any]], controller: Controller) -> list[Mismatch]:
    """Show the recorded reports to a controller and compare its answers with the recorded ones, bit for bit.

    controller: built as at the start of the run, from the recorded config and seed, and not used yet.
    """
    mismatches = []
    for index, event in enumerate(events):
        recorded: list[Values] | list[Decision]
        replayed: list[Values] | list[Decision]
        if event["event"] == "initial":
            recorded = [{name: float(v) for name, v in values.items()} for values in event["values"]]
            replayed = controller.initial(len(recorded))
        elif event["event"] == "round":
            recorded = [decision_from_dict(d) for d in event["decisions"]]
            replayed = controller.observe(report_from_dict(event["report"]))
        else:
            continue
        if recorded != replayed:
            mismatches.append(Mismatch(index, recorded, replayed))
    return mismatches


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the installed packages that a result depends on."""
    found = {"pbt_rl": pbt_rl.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_version() -> str | None:
    """Commit of this source tree, with "-dirty" where files differ from it; None outside of one."""
    root = Path(pbt_rl.__file__).resolve().parent.parent
    if not (root / ".git").exists():  # an installed package must not report a repository around it
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _jsonable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return _jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:  # not JSON, or not even text
        return None
    return event if isinstance(event, dict) else None


def _cut_broken_end(path: Path) -> None:
    if not path.exists():
        return
    text = path.read_bytes()
    if text.endswith(b"\n") or not text:
        return
    whole, last = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
    path.write_bytes(text + b"\n" if _parse(last) is not None else whole)
