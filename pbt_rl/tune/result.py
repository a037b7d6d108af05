"""The result of `tune.run`. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.lineage import Lineage


@dataclass(frozen=True)
class Outcome:
    """One member at the end. objective: the mean of its last evaluations; None if it is broken."""

    member: int
    values: Values
    objective: float | None
    steps: int
    generation: int
    stopped: bool
    broken: bool


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a member, after this many of its steps."""

    member: int
    generation: int
    steps: int
    objective: float


@dataclass(frozen=True)
class Result:
    """The result of a run.

    members: in order of id. best: id of the member with the highest finite objective, stopped or not; ties go to the
    lower id. best_state: its `state()`. Both None if no member has such an objective.
    history: all evaluations, in their order.
    """

    members: tuple[Outcome, ...]
    best: int | None
    best_state: Any
    lineage: Lineage
    history: tuple[Evaluation, ...]

    @property
    def objectives(self) -> list[float | None]:
        """Of all members, in order of id."""
        return [m.objective for m in self.members]

    @property
    def values(self) -> list[Values]:
        """Final values of all members, in order of id."""
        return [m.values for m in self.members]
