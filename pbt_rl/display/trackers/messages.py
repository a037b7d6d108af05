"""What a run and the process of a tracker tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.display.trackers.base import TrackedRun


@dataclass(frozen=True)
class TrackerSetup:
    """The first message. tracker: as `--track` names it. descriptor: of the pipe that views come through, pickled."""

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
