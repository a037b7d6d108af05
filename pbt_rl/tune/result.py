"""Progress and result of a run of `tune.run`."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.tune.space import COLUMNS, decode

LINE_SECONDS = 5.0


@dataclass(frozen=True)
class MemberProgress:
    """Progress of one member.

    member: id of the member. objective: None before the first evaluation since the member's last change, NaN for a
    broken member. hypers: values in the form that `step` receives.
    """

    member: int
    generation: int
    steps: int
    objective: float | None
    hypers: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """Progress after a round of evaluations.

    steps: steps of the least trained member that has not been stopped. If all are stopped: of the most trained member.
    of: argument `steps` of the run.
    """

    steps: int
    of: int
    changes: int
    """Number of decisions so far that gave a member new values, with or without new weights."""
    members: Sequence[MemberProgress]

    @property
    def best(self) -> MemberProgress | None:
        """Member with the highest finite objective. None if no objective is finite."""
        known = [m for m in self.members if m.objective is not None and math.isfinite(m.objective)]
        return max(known, key=lambda m: (m.objective or 0.0, -m.member), default=None)

    def line(self, seconds_left: float | None = None) -> str:
        """Format the progress as one line for the screen. seconds_left: estimated time to the end, if known."""
        parts = [f"step {self.steps:,} of {self.of:,}"]
        if self.best is not None and self.best.objective is not None:
            hypers = ", ".join(f"{name} {_short(value)}" for name, value in self.best.hypers.items())
            parts.append(f"best {self.best.objective:.4g} (member {self.best.member}: {hypers})")
        parts.append(f"changes {self.changes}")
        if seconds_left is not None:
            parts.append(f"{seconds_left:.0f} s left")
        return " | ".join(parts)


class Screen:
    """Display that prints progress lines to stderr, at most one in LINE_SECONDS."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began + LINE_SECONDS
        self._first: tuple[float, int] | None = None

    def show(self, progress: Progress) -> None:
        """Print a line if LINE_SECONDS have passed since the last line."""
        now = time.monotonic()
        self._first = self._first or (now, progress.steps)
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        taken = progress.steps - self._first[1]
        left = (now - self._first[0]) / taken * (progress.of - progress.steps) if taken > 0 else None
        print(progress.line(left), file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Outcome:
    """Final state of one member.

    member: id of the member. values: floats, as the controller uses them.
    objective: mean over the window. None for a broken member, and for a member that was stopped before the first
    evaluation since its last change.
    """

    member: int
    values: Values
    objective: float | None
    steps: int
    generation: int
    stopped: bool
    broken: bool
    hypers: Mapping[str, Any]
    """`values` in the form that `step` receives: integers, choices, tuples."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of a member. member: id of the member. steps: steps of the member at the evaluation."""

    member: int
    generation: int
    steps: int
    objective: float


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run.

    members: final states in order of id.
    best: id of the member with the highest finite objective, including stopped members. Ties go to the lower id.
    best_state: result of the best member's `state()`, or None if `state()` failed. `best` and `best_state` are None if
    no objective is finite.
    lineage: ancestry of the members. history: all successful evaluations, round by round.
    table: name -> HyperSpec, with which values are decoded. None: `step` receives the values as floats.
    """

    members: tuple[Outcome, ...]
    best: int | None
    best_state: Any
    lineage: Lineage
    history: tuple[Evaluation, ...]
    ended: str
    """Reason for the end: `steps` (all members that were not stopped have taken all steps), the reason of a `Stop`, or
    `waiting for a decision` (the controller has not continued the members that wait for its decision)."""
    table: Mapping[str, HyperSpec] | None = None

    def __repr__(self) -> str:
        """Format one line: number of members and evaluations, reason for the end, best member with its values."""
        text = f"{len(self.members)} members, {len(self.history)} evaluations, ended: {self.ended}"
        if self.best is None:
            return f"<Result of tune.run: {text}; no member has a finite objective>"
        best = f"member {self.best}, objective {self.members[self.best].objective:.4g}, {self.best_hypers}"
        return f"<Result of tune.run: {text}; best: {best:.400}>"

    @property
    def best_hypers(self) -> Mapping[str, Any] | None:
        """Values of the best member, in the form that `step` receives. None if `best` is None."""
        return None if self.best is None else self.members[self.best].hypers

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per evaluation: member, generation, step, objective, and the values of the member."""
        rows = []
        for one in self.history:
            values = self.lineage[one.member, one.generation].values
            hypers = dict(values) if self.table is None else decode(self.table, values)
            rows.append(dict(zip(COLUMNS, astuple(one), strict=True)) | hypers)
        return rows

    def to_csv(self, path: Path | str) -> None:
        """Write the rows of `rows()` to a CSV file. Raises OSError if the file cannot be written."""
        rows = self.rows()
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["member"])
            writer.writeheader()
            writer.writerows(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary with the keys `best`, `ended`, `members` and `rows`."""
        members = [asdict(member) for member in self.members]
        return {"best": self.best, "ended": self.ended, "members": members, "rows": self.rows()}

    @property
    def objectives(self) -> list[float | None]:
        """Objectives of all members, in order of id."""
        return [m.objective for m in self.members]

    @property
    def values(self) -> list[Values]:
        """Final values of all members, in order of id."""
        return [m.values for m in self.members]
