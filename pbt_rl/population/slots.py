"""Which pack each member belongs to, and which slot it holds there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pbt_rl.controllers.state import SHARED, TRANSIENT
from pbt_rl.population.population import Population


@dataclass(frozen=True)
class Handover:
    """One slot passes from a member to another; None stands for no member. text: as displays say it."""

    slot: int
    leaves: int | None
    enters: int | None
    text: str = ""


class PackSlots(Protocol):
    """The members that belong to a pack at first, and how many of them hold its slots at a time."""

    @property
    def members(self) -> tuple[int, ...]:
        """In order of id."""

    @property
    def slots(self) -> int:
        """P."""


@dataclass(eq=False)
class Slots:
    """The slots of all packs: each member holds the same one all the time; see `turns` for members that take turns."""

    packs: Sequence[PackSlots] = field(metadata=SHARED)
    population: Population = field(metadata=SHARED)
    pack_of: dict[int, int] = field(init=False, metadata=SHARED)
    """Member -> number of its pack. Some fleets move members during a run."""
    serving: set[int] = field(default_factory=set, init=False, metadata=TRANSIENT)
    """Packs whose learner has started."""
    held_back: bool = field(default=False, init=False)
    """Slots kept their holders because the run was about to end: they may have to change hands if it goes on."""

    def __post_init__(self) -> None:
        self.pack_of = {member: number for number, pack in enumerate(self.packs) for member in pack.members}
        self.choose_holders()

    def choose_holders(self) -> None:
        """Choose the holders from the members as they are."""

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Members and slots of every pack: holders can be restored if they are the same."""
        return [
            {"members": list(self.of(number)), "slots": pack.slots} for number, pack in enumerate(self.packs)
        ]

    def of(self, pack: int) -> tuple[int, ...]:
        """Return the members of a pack, in order of id."""
        return tuple(sorted(member for member, number in self.pack_of.items() if number == pack))

    def slot_of(self, member: int) -> int | None:
        """Return the slot that a member holds in its pack."""
        return self.of(self.pack_of[member]).index(member)

    def members_of(self, pack: int) -> list[int | None]:
        """Return the member that holds each slot of a pack."""
        return [*self.of(pack)]

    def start(self) -> list[tuple[int, Handover]]:
        """Return (pack, handover) for every slot that a member holds, as if each had been empty."""
        return [
            (number, Handover(slot, None, member))
            for number in range(len(self.packs))
            for slot, member in enumerate(self.members_of(number))
            if member is not None
        ]

    def note_report(self, pack: int) -> None:
        """Note a report of a learner, after the controller has observed it."""

    @property
    def stuck(self) -> bool:
        """Whether no member may train, and no report that could change this is still to come."""
        return False
