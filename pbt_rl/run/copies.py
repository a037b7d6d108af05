"""Copies of all members in the memory of the supervisor: what members of a lost machine go on from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pbt_rl.record.net_names import NetNames
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader


@dataclass(frozen=True)
class CopySet:
    """States of all members, and all remembered ones, as they were between two comparisons.

    begun, ended: `time.monotonic()`; no state is older than `begun`.
    """

    states: dict[tuple[int, int | None], MemberSnapshot]
    """By member, and generation of a remembered state."""
    begun: float
    ended: float

    @property
    def age_seconds(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self.begun

    def members(self) -> list[SnapshotHeader]:
        """Return the headers of the members."""
        return [one.header for (_, generation), one in self.states.items() if generation is None]

    def load(self, member: int, _names: NetNames) -> MemberSnapshot:
        """Return a member."""
        return self.states[member, None]

    def load_remembered(self, member: int, generation: int, _names: NetNames) -> MemberSnapshot:
        """Return a remembered state."""
        return self.states[member, generation]


class CopyKeeper:
    """Collects copies as `CheckpointWriter` collects what it writes; arrays that it is given are never written to."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, int | None], MemberSnapshot] = {}
        self._expected = 0
        self._begun = 0.0

    @property
    def busy(self) -> bool:
        """Whether copies are still expected."""
        return self._expected > 0

    def begin(self, expected: int) -> None:
        """Begin a set of `expected` states."""
        self._states, self._expected, self._begun = {}, expected, time.monotonic()

    def add(self, snapshot: MemberSnapshot, done: Callable[[], None]) -> None:
        """Add one of them. done: called when the memory that it came through may be used again."""
        header = snapshot.header
        self._states[header.member, header.generation if header.remembered else None] = snapshot
        done()

    def poll(self) -> list[CopySet]:
        """Return the set once it is whole."""
        if not self._expected or len(self._states) < self._expected:
            return []
        found = CopySet(self._states, self._begun, time.monotonic())
        self._states, self._expected = {}, 0
        return [found]

    def abandon(self) -> None:
        """Give up the set in progress."""
        self._states, self._expected = {}, 0
