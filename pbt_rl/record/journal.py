"""The journal of a run: JSON lines, one object per event, appended and flushed as it happens.

Every event holds `event` (its kind), `time` (seconds since the epoch) and `frames` (the population's clock: the least
emulator frames of any member that trains). The kinds:

    start           config, seed, versions, git, spec; always the first
    initial         values: of the members at the start, in order of id
    slot            pack, slot, leaves, enters: one slot changes hands (null: no member)
    matchup         pack, matchup_version, slots: the member in each slot; games: [P, P], how often the policy of one
                    slot has a seat in the games of another
    snapshot        member, at_frames: whose weights were kept under checkpoints/at_FRAMES
    progress        members: generation, frames, objective and episodes of each; about every ten seconds
    round           report: what the controller was passed; decisions: what it returned. `pbt-rl audit` decides it
                    again, bit for bit
    applied         one `Applied`: the proof of a change, read back from optimiser, loss and environment
    actor_restart   actor, kind, cause
    end             ended: why; always the last of a run that was not cut off

JSON has no NaN and no infinities: they are written as the strings "nan", "inf" and "-inf", which `float` reads back.
The readers of numbers (`report_from_dict`, `decision_from_dict`) do so.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import pbt_rl
from pbt_rl.pbt.decisions import Decision, PopulationReport, decision_to_dict
from pbt_rl.pbt.hypers import Values

PACKAGES = ("torch", "numpy", "numba", "gymnasium", "ale-py", "safetensors")
"""Packages whose versions affect a result."""


class Journal:
    """Appends events to one file. Use it from one thread of one process.

    An existing file is continued; a last line that a killed process left unfinished is cut off first.
    """

    def __init__(self, path: Path) -> None:
        _cut_broken_end(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, frames: int, **content: Any) -> None:
        """Append one event. Its content may hold dataclasses, paths, tuples, numpy numbers, NaN and infinities.

        Raises TypeError for anything else that JSON cannot represent; then nothing is written.
        """
        record = {"event": event, "time": time.time(), "frames": frames, **content}
        self._file.write(json.dumps(as_json_types(record), allow_nan=False) + "\n")
        self._file.flush()

    def start(self, config: Any, seed: int, spec: Any) -> None:
        """Write the first event. config, spec: dataclasses or JSON types."""
        self.write("start", 0, config=config, seed=seed, versions=versions(), git=git_version(), spec=spec)

    def initial(self, values: list[Values]) -> None:
        """Write the members' values at the start."""
        self.write("initial", 0, values=values)

    def round(self, report: PopulationReport, decisions: list[Decision]) -> None:
        """Write what a controller was passed and the decisions that it returned, if there are any."""
        self.write("round", report.frames, report=report, decisions=[decision_to_dict(d) for d in decisions])

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
    """Return the events in order, without a broken last line (the process was killed while writing it).

    Raises ValueError for a broken line anywhere else, as the file is damaged then.
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


def versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the installed packages that affect a result."""
    found = {"pbt_rl": pbt_rl.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_version() -> str | None:
    """Return the commit of this source tree, with "-dirty" if files differ from it; None outside of one."""
    root = Path(pbt_rl.__file__).resolve().parent.parent
    if not (root / ".git").exists():  # an installed package must not report a repository around it
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def as_json_types(value: Any) -> Any:
    """Return the value as JSON types; NaN and infinities become strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json_types(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_types(item) for item in value]
    if isinstance(value, np.generic):
        return as_json_types(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, not even text, or nested without end
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
