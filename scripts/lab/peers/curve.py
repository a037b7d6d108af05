"""A curve of scores against frames, with the time that it took, as lines of JSON: the same for ours and for a peer.

Standard library only: the peers' interpreter imports it as well.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

WINDOW = 100
"""Games of a score: the mean of so many that ended last."""


@dataclass(frozen=True)
class Point:
    """The state of a run at one moment."""

    frames: int
    score: float
    games: int
    """In the score's window."""
    cpu_seconds: float
    """User and system time of the process that runs everything, over all parts of the run."""
    wall_seconds: float


def read_points(path: Path) -> list[Point]:
    """Return the points of a curve in order; none if there is no file."""
    return [Point(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class Curve:
    """Writes a point about every `every` frames. A run that goes on from a checkpoint keeps what came before it."""

    path: Path
    every: int
    _before: tuple[float, float] = (0.0, 0.0)
    """(CPU, wall) seconds of the earlier parts, lost frames included."""
    _next: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def resume(self, frames: int) -> None:
        """Go on at a checkpoint: drop the points behind it, but not the time that they took."""
        points = read_points(self.path)
        if points:
            self._before = (points[-1].cpu_seconds, points[-1].wall_seconds)
        kept = [point for point in points if point.frames <= frames]
        self.path.write_text("".join(f"{json.dumps(asdict(point))}\n" for point in kept))
        self._next = frames + self.every if kept else 0

    def note(self, frames: int, score: float | None, games: int, *, last: bool = False) -> None:
        """Write a point if one is due, or if it is the last of this part. score: None before the first game ended."""
        if score is None or (frames < self._next and not last):
            return
        cpu, wall = self._before
        point = Point(frames, score, games, cpu + time.process_time(), wall + time.monotonic() - self._begun)
        with self.path.open("a") as file:
            file.write(f"{json.dumps(asdict(point))}\n")
        self._next = frames + self.every


@dataclass
class Window:
    """Scores of the games that ended last, kept in a file from one part of a run to the next."""

    path: Path

    def __post_init__(self) -> None:
        earlier = json.loads(self.path.read_text()) if self.path.exists() else []
        self._scores: deque[float] = deque(earlier, WINDOW)

    def add(self, score: float) -> None:
        """Count one game."""
        self._scores.append(score)

    def save(self) -> None:
        """Write the window."""
        self.path.write_text(json.dumps(list(self._scores)))

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def mean(self) -> float | None:
        """Mean score; None before the first game ended."""
        return sum(self._scores) / len(self._scores) if self._scores else None
