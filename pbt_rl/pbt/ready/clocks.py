"""The members' own clocks, for the rules that do not wait for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.ready.base import grown


@dataclass
class Clocks:
    """When each member is due, in its own frames: first at `start_frames`, but not before one whole period."""

    period_frames: int
    start_frames: int
    growth: float
    held: int = field(default=0, init=False)
    """Comparisons."""
    _due: dict[int, int] = field(default_factory=dict, init=False)
    _rounds: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        assert self.period_frames > 0
        assert self.growth >= 1

    def arrived(self, member: MemberReport) -> bool:
        """Return whether the member is due."""
        return self.frames_left(member) == 0

    def frames_left(self, member: MemberReport) -> int:
        """Return the frames until the member is due."""
        due = self._due.get(member.member, max(self.start_frames, self.period_frames))
        return max(0, due - member.frames)

    def restart(self, members: Iterable[MemberReport]) -> None:
        """Count a comparison of these members."""
        self.held += 1
        for m in members:
            rounds = self._rounds[m.member] = self._rounds.get(m.member, 0) + 1
            self._due[m.member] = m.frames + grown(self.period_frames, self.growth, rounds)
