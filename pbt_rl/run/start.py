"""Where the processes of a run begin: fresh, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import Plan
from pbt_rl.wire.messages import Load
from pbt_rl.wire.store import Counts


@dataclass(frozen=True)
class Start:
    """What the slots hold, and what each process continues from."""

    slots: Sequence[tuple[Load | None, ...]]
    """Of each pack: what its learner loads, from the pool."""
    unheld_values: Values
    """What a slot without a member is built with."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Of each pack, what its learner continues from; none if the plan is another one."""
    units: Sequence[Any] = ()
    """State of the environments of every unit, actor by actor; none if they cannot be saved."""
    resumes: int = 0
    """How often the run was resumed: the seeds of processes differ each time."""
    renewals: int = 0
    """How often the processes were started anew on another machine: their seeds differ each time."""
    seeds_before: int = 0
    """Seeds that the processes of packs on other machines take before those of this one."""

    @classmethod
    def fresh(cls, plan: Plan, values: Sequence[Values]) -> Start:
        """Begin anew: the first members of each pack hold its slots, with drawn weights. values: of every member."""
        return cls(
            [
                tuple(
                    Load(slot, member, 0, dict(values[member]), drawn=(member, 0), counts=Counts())
                    for slot, member in enumerate(pack.members[: pack.slots])
                )
                for pack in plan.packs
            ],
            values[0],
        )
