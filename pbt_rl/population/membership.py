"""Which pack each member belongs to. Members move between packs if machines come and go during a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PackSlots(Protocol):
    """The members that belong to a pack at first, and how many of them hold its slots at a time."""

    @property
    def members(self) -> tuple[int, ...]:
        """In order of id."""

    @property
    def slots(self) -> int:
        """P."""


class Membership:
    """Members of every pack. packs: at first."""

    def __init__(self, packs: Sequence[PackSlots]) -> None:
        self._members = [list(pack.members) for pack in packs]
        self.pack_of = {member: number for number, pack in enumerate(packs) for member in pack.members}
        """Member -> number of its pack."""

    def of(self, pack: int) -> tuple[int, ...]:
        """Return the members of a pack, in order of id."""
        return tuple(self._members[pack])

    def move(self, member: int, pack: int) -> None:
        """Let a member belong to another pack."""
        self._members[self.pack_of[member]].remove(member)
        self._members[pack] = sorted([*self._members[pack], member])
        self.pack_of[member] = pack
