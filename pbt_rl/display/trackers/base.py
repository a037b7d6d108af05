"""What a tracker is, and what it is told about its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pbt_rl.display.view import RunView

FOLDER = "tracking"
"""Of what trackers write into the run's folder."""


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
