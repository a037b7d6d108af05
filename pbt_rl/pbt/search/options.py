"""Options of the searches over configurations (--search) and of a schedule's replay (--replay)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.errors import require


@dataclass(frozen=True)
class SearchConfig:
    """HyperTrick, Successive Halving, Hyperband and random search. The members are the configurations; all are
    drawn from the priors of the values to tune (--pbt.tune), none has the defaults. A slot that a stopped member
    leaves goes to the next one (--resident).
    """

    phases: int = 10
    """Phases of a configuration that is never evicted (all but hyperband)."""
    phase_frames: int = 0
    """Emulator frames of each member in one phase (hyperband: one unit of its resource). 0: --train-for-frames
    divided by --search.phases (hyperband: by --search.resource)."""
    eviction_rate: float = 0.25
    """hypertrick: expected share of members evicted at the end of each phase. successive-halving: the exact share;
    0.5 halves."""
    allocation: Literal["static", "dynamic"] = "dynamic"
    """successive-halving: `dynamic`: any free slot trains any member that has not ended the phase. `static`:
    a member keeps to one place, which idles when its own members have ended the phase."""
    eta: int = 3
    """hyperband: one in so many members of a bracket goes on."""
    resource: int = 27
    """hyperband: units of the longest training (R). With eta 3: 46 configurations in 4 brackets."""
    restart: bool = True
    """hyperband: a member that goes on starts again from fresh weights (Heinrich and Frosio 2019); off: it trains
    on."""
    sampling: Literal["random", "grid"] = "random"
    """`random`: drawn from the priors. `grid`: the points of a grid, evenly spaced on each value's scale."""

    def __post_init__(self) -> None:
        require(self.phases > 0, "search.phases", self.phases, "give 1 or more")
        require(self.phase_frames >= 0, "search.phase-frames", self.phase_frames, "give 0 (derived) or more")
        require(
            0 <= self.eviction_rate < 1,
            "search.eviction-rate",
            self.eviction_rate,
            "give at least 0 and below 1",
        )
        require(self.eta >= 2, "search.eta", self.eta, "give 2 or more")
        require(self.resource > 0, "search.resource", self.resource, "give 1 or more")


@dataclass(frozen=True)
class ReplayConfig:
    """Train by the schedule of a recorded run: every member follows it, with its own weights."""

    run: str = ""
    """Folder of the recorded run."""
    member: str = "best"
    """Whose schedule, along its ancestry: `best`, or the id of a member."""
    hold_final: bool = False
    """Hold the schedule's last values from the start (the paper's ablation) instead of following it."""

    def __post_init__(self) -> None:
        require(
            self.member == "best" or self.member.isdecimal(),
            "replay.member",
            self.member,
            "give `best` or the id of a member",
        )
