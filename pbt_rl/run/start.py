"""Where the processes of a run begin: fresh, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import Plan
from pbt_rl.record.net_names import NetNames
from pbt_rl.wire.snapshot import MemberSnapshot

Load = Callable[[NetNames], MemberSnapshot]
"""Loads a snapshot of a network whose parameters lie so."""


@dataclass(frozen=True)
class Start:
    """Members, the slots that they hold, and what each process continues from."""

    values: Sequence[Values]
    """Of every member."""
    generations: Sequence[int]
    holders: Sequence[tuple[int | None, ...]]
    """Of each pack: the member of each slot."""
    sources: Sequence[tuple[int, Load]] = ()
    """(member, its state or a remembered one), as far as there are any; the weights of other members are drawn."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Of each pack, what its learner continues from; none if the plan is another one."""
    units: Sequence[Any] = ()
    """State of the environments of every unit, actor by actor; none if they cannot be saved."""
    resumes: int = 0
    """How often the run was resumed: the seeds of processes differ each time."""
    elsewhere: Sequence[int] = ()
    """Members of packs on other machines, which may move here."""
    renewals: int = 0
    """How often the processes were started anew on another machine: their seeds differ each time."""
    seeds_before: int = 0
    """Seeds that the processes of packs on other machines take before those of this one."""

    @classmethod
    def fresh(cls, plan: Plan, values: Sequence[Values]) -> Start:
        """Begin anew: the first members of each pack hold its slots."""
        return cls(values, [0] * len(values), [pack.members[: pack.slots] for pack in plan.packs])

    def of(self, members: Sequence[int]) -> list[Load]:
        """Return what loads the snapshots of these members."""
        return [load for member, load in self.sources if member in members]
