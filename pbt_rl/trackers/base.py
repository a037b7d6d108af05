"""What a tracker is, what it is told about its run, and what run and tracker tell each other."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pbt_rl.display.scalars import Scalars, evaluation_scalars, population_scalars
from pbt_rl.display.view import RunView

FOLDER = "tracking"
"""Of what trackers write into the run's folder."""
ID_FILE = "id"


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows.

    path: of its folder. config: all options, as JSON types. seconds: 0, or of a run that goes on those at its
    checkpoint; what was tracked of later ones is trained again.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    members: int
    seconds: float

    @property
    def folder(self) -> Path:
        """Folder for what a tracker writes."""
        return self.path / FOLDER


class Tracker(Protocol):
    """Takes views. It lives in a process of its own; whatever it raises ends that process and nothing else.

    It is made by calling the class with the TrackedRun.
    """

    def show(self, view: RunView) -> None:
        """Take the present state of the run. `pbt_rl.display.scalars` turns it into tags and numbers."""

    def close(self, ended: str) -> None:
        """Write what is left. ended: why the run ended, such as `frames`; `failed` also if it was killed."""


def run_id(run: TrackedRun) -> str:
    """Return the id of a run at a tracker's service, which is made if it is missing. Raises OSError.

    It stands in `tracking/id`: a run that goes on goes on there too.
    """
    run.folder.mkdir(exist_ok=True)
    path = run.folder / ID_FILE
    if path.is_file() and not path.is_symlink():
        known = path.read_text(encoding="utf-8", errors="replace").strip()
        if re.fullmatch(r"[0-9a-f]{12}", known):
            return known
    path.unlink(missing_ok=True)
    made = secrets.token_hex(6)
    path.write_text(made + "\n", encoding="utf-8")
    return made


@dataclass(frozen=True)
class TrackerSetup:
    """The first message to a tracker.

    tracker: as `--track` names it. descriptor: of the pipe that views come through, pickled.
    """

    tracker: str
    run: TrackedRun
    descriptor: int


@dataclass(frozen=True)
class Loaded:
    """The answer: the tracker's module is imported."""


@dataclass(frozen=True)
class Ended:
    """The last thing in the pipe, if the run was not killed. why: it ended."""

    why: str


def tracked_scalars(view: RunView) -> Scalars:
    """Return tag -> value of the population for trackers, which are told the newest evaluation with every view."""
    return population_scalars(view) | evaluation_scalars(view.evaluation)
