"""Records of members: the facts on which a controller bases its decisions. This module makes no decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import mean_objective
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.objectives import Judged, ObjectiveWindow
from pbt_rl.controllers.state import ADDED, STATE


@dataclass(eq=False)
class MemberRecord:
    """Record of one member: its values, counters and window of objectives.

    `apply` applies a change, and `report` returns the member's part of the controller's report.
    """

    id: int
    values: Values = field(metadata=STATE)
    objectives: ObjectiveWindow
    """Window with the objectives of the present generation."""
    generation: int = field(default=0, metadata=STATE)
    frames: int = field(default=0, metadata=STATE)
    """Emulator frames over all generations."""
    best: float | None = field(default=None, metadata=STATE)
    """Highest finite mean of the window since the last decision about the member. None without such a mean. Means
    over fewer than `least` rounds (see `note_objectives`) are ignored."""
    judged: int = field(default=0, metadata=ADDED)
    """`objectives.rounds` at the last decision about the member, or 0 if an evaluation has cleared the window since
    then. A round is one episode of every task."""
    until_frames: int | None = field(default=None, metadata=STATE)
    """The member pauses at this frame count until the next decision about the member. None: no limit."""
    stopped: bool = field(default=False, metadata=STATE)
    broken: bool = field(default=False, metadata=STATE)
    """True if the member cannot learn at present (see `MemberReport.broken`)."""
    evaluates: int = field(default=0, metadata=STATE)
    """Minimum number of evaluation episodes (with tasks: rounds) without learning. 0: the member learns."""
    outdated: bool = field(default=False, metadata=STATE)
    """True from the start of an evaluation until its first episode is counted, or until the next decision about the
    member. During this time, the window contains older episodes. They are displayed, but not reported to the
    controller."""

    def __post_init__(self) -> None:
        self.values = dict(self.values)
        self._names = frozenset(self.values)  # not saved, because the options determine the names

    def restored(self) -> None:
        """Raise ValueError if the restored values have other names than the values of this run."""
        strange = sorted(self.values.keys() ^ self._names)
        if strange:
            raise ValueError(
                f"member {self.id} has other values in the saved state than in this run: {', '.join(strange)}"
            )

    @property
    def objective(self) -> float | None:
        """Mean over the rounds in the window. None without a complete round, NaN if the mean is not finite."""
        known = self.objectives.objectives()
        return mean_objective(known) if known else None

    def note_objective(self, objective: float) -> None:
        """Add an objective of the present generation to the window. For members without tasks (`tune.run`)."""
        self.note_objectives([(0, objective, objective)])

    def note_objectives(self, judged: Sequence[Judged], least: int = 1) -> None:
        """Add objectives of the present generation to the window.

        The first objectives of an evaluation replace the window.
        judged: (index of the task, objective, return) of each episode. least: minimum number of rounds (each with one
        episode of every task) in the present generation for an update of `best`.
        """
        if self.outdated:
            self.objectives.clear()
            self.outdated, self.judged = False, 0
        for task, objective, raw_return in judged:
            self.objectives.add(task, objective, raw_return)
        mean = self.objective
        if mean is not None and not math.isnan(mean) and self.objectives.rounds >= least:
            self.best = mean if self.best is None else max(self.best, mean)

    def note_broken(self) -> None:
        """Mark the member as broken, and replace its window with NaN."""
        self.broken = True
        self.objectives.spoil()

    def apply(self, change: Change) -> None:
        """Apply a change of this member.

        A change with values starts a generation with an empty window. New weights repair a broken member.
        """
        assert change.member == self.id
        self.best = None
        self.until_frames = change.until_frames
        self.stopped = self.stopped or change.stopped
        self.evaluates, self.outdated = change.evaluates, change.evaluates > 0
        if change.values is not None:
            self.values = dict(change.values)
            self.generation = change.generation
            self.objectives.clear()
        self.judged = self.objectives.rounds
        if change.weights != "keep":
            self.broken = False

    def report(self, rounds: int | None = None) -> MemberReport:
        """Return the report for the controller. rounds: maximum number of newest objectives. None: the whole window."""
        return MemberReport(
            member=self.id,
            frames=self.frames,
            objectives=() if self.outdated else self.objectives.objectives(rounds),
            episodes=0 if self.outdated else self.objectives.rounds,
            generation=self.generation,
            values=dict(self.values),
            best=self.best,
            broken=self.broken,
            recent=0 if self.outdated else self.objectives.rounds - self.judged,
        )


def population_clock(members: Sequence[MemberRecord]) -> int:
    """Return the fewest frames of any member that has not stopped.

    If all members have stopped: the most frames of any member.
    """
    training = [m.frames for m in members if not m.stopped]
    return min(training) if training else max((m.frames for m in members), default=0)
