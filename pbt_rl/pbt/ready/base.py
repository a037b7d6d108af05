"""The protocol of rules of readiness, the comparison that they start, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from pbt_rl.pbt.decisions import MemberReport, PopulationReport

FOREVER = 10**18
"""Frames that no run reaches."""


@dataclass(frozen=True)
class Round:
    """One comparison: its number (from 1), who takes part, and what is unusual about it (may be empty).

    deciding: members that may change; None for all. The others are only there to be compared with.
    """

    number: int
    members: tuple[MemberReport, ...]
    note: str
    deciding: frozenset[int] | None = None


class Ready(Protocol):
    """Decides when members are compared. A dataclass; fields with `init=False` are its state (`pbt.state`)."""

    def next_round(self, report: PopulationReport) -> Round | None:
        """Start a comparison if one is due and can be held; it then counts as held. Else nothing changes."""

    def frames_left(self, report: PopulationReport) -> int:
        """Return the frames of each member until the next comparison is due; 0 if it waits for episodes."""


def comparable(member: MemberReport, min_episodes: int) -> bool:
    """Return whether there is anything to judge a member by: enough episodes, or that it is broken."""
    return member.broken or member.episodes >= min_episodes


def grown(period_frames: int, growth: float, rounds: int) -> int:
    """Return the period after this many comparisons, within what any clock can reach."""
    if rounds * math.log(growth) > math.log(FOREVER / period_frames):
        return FOREVER
    return round(period_frames * growth**rounds)
