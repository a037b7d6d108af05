"""Options of the searches over configurations (--search)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.options import option


@dataclass(frozen=True)
class SearchConfig:
    """HyperTrick, Successive Halving, Hyperband, ASHA and random search. The members are the configurations; all are
    drawn from the priors of the values to tune (--pbt.tune), none has the defaults. The next member takes the slot of
    a stopped one (--slots).
    """

    phases: int = option(10, at_least=1, at_most=1000)
    """Phases of a configuration that is never stopped (all but hyperband and asha)."""
    phase_frames: int = option(0, at_least=0, zero="derived")
    """Emulator frames of each member per phase (hyperband, asha: per unit of the resource). Derived: --train-for-frames
    divided by --search.phases (hyperband, asha: by --search.resource)."""
    phase_episodes: int = option(0, at_least=0, zero="by frames")
    """hypertrick: a phase ends with this many episodes of the member (Heinrich and Frosio 2019: 2,500), as seen at the
    reports of its learner, twice per second; with --train-for-frames it ends in any case."""
    eviction_rate: float = option(0.25, at_least=0, below=1)
    """Share of members stopped at the end of each phase: expected (hypertrick) or exact (successive-halving; 0.5
    halves)."""
    allocation: Literal["static", "dynamic"] = "dynamic"
    """successive-halving: `dynamic`: any free slot trains any member that has not ended the phase. `static`:
    each slot has members of its own, and idles when these have ended the phase."""
    eta: int = option(3, at_least=2)
    """hyperband, asha: one of this many members of a bracket or rung goes on."""
    resource: int = option(27, at_least=1)
    """hyperband, asha: units of the longest training (R). With eta 3: 46 configurations in 4 brackets; of asha rungs of
    1, 3, 9 and 27 units."""
    restart: bool = True
    """hyperband: members that go on start again from fresh weights (Heinrich and Frosio 2019). Off: they train on."""
    sampling: Literal["random", "grid"] = "random"
    """`random`: drawn from the priors. `grid`: the points of a grid, evenly spaced on each value's scale."""
