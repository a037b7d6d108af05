"""Slots of all packs of a run: one `SlotAssigner` per pack, and its handovers as messages to the learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pbt_rl.pbt.state import SHARED, TRANSIENT
from pbt_rl.population.assigner import Candidate, SlotAssigner, first_holders
from pbt_rl.population.population import Member, Population
from pbt_rl.wire.messages import SlotChange


class PackSlots(Protocol):
    """The members that belong to a pack, and how many of them hold its slots at a time."""

    @property
    def members(self) -> tuple[int, ...]:
        """In order of id."""

    @property
    def slots(self) -> int:
        """P."""


@dataclass(eq=False)
class Slots:
    """The slots of all packs. Keeps `Member.parked` up to date.

    slot_frames: see SlotAssigner. budget_frames: with this many a member leaves its slot to one that waits for it; None
    if the controller sets every limit.
    """

    packs: Sequence[PackSlots] = field(metadata=SHARED)
    population: Population = field(metadata=SHARED)
    slot_frames: int | None
    budget_frames: int | None
    held_back: bool = field(default=False, init=False)
    """Slots kept their holders because the run was about to end: they may have to change hands if it goes on."""
    _assigners: tuple[SlotAssigner, ...] = field(init=False)
    _idle_reports: list[int] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """Reports of each pack's learner since a member could train."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Choose the holders from the members as they are."""
        self._assigners = tuple(map(self._assigner, self.packs))
        self._idle_reports = [0] * len(self.packs)
        self._note_parked()

    def _assigner(self, pack: PackSlots) -> SlotAssigner:
        holders = first_holders(self._candidates(pack), pack.slots)
        frames = [0 if i is None else self.population.members[pack.members[i]].frames for i in holders]
        return SlotAssigner(holders, self.slot_frames, frames)

    def restored(self) -> None:
        """Check that every slot is held by a member of its pack or by none. Raises ValueError."""
        self._idle_reports = [0] * len(self.packs)
        for pack, assigner in zip(self.packs, self._assigners, strict=True):
            strange = [i for i in assigner.holders if i is not None and not 0 <= i < len(pack.members)]
            if strange:
                raise ValueError(f"the saved holders of slots, {assigner.holders}, are not all members")
        self._note_parked()

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Members and slots of every pack: holders can be restored if they are the same."""
        return [{"members": list(pack.members), "slots": pack.slots} for pack in self.packs]

    def start(self) -> list[tuple[int, SlotChange]]:
        """Return (pack, slot change) for every slot that a member holds, as if each had been empty."""
        return [
            (number, self._change(slot, None, member))
            for number in range(len(self.packs))
            for slot, member in enumerate(self.members_of(number))
            if member is not None
        ]

    def _change(self, slot: int, leaves: int | None, enters: int | None) -> SlotChange:
        if enters is None:
            return SlotChange(slot, leaves, None, 0, {})
        member = self.population.members[enters]
        return SlotChange(slot, leaves, enters, member.generation, dict(member.values))

    def members_of(self, pack: int) -> list[int | None]:
        """Return the member that holds each slot of a pack."""
        members = self.packs[pack].members
        return [None if i is None else members[i] for i in self._assigners[pack].holders]

    def assign(self) -> list[tuple[int, SlotChange]]:
        """Hand slots over; returns (pack, what its learner must do)."""
        moves = []
        for number, (pack, assigner) in enumerate(zip(self.packs, self._assigners, strict=True)):
            for handover in assigner.assign(self._candidates(pack)):
                leaves, enters = (
                    None if i is None else pack.members[i] for i in (handover.leaves, handover.enters)
                )
                moves.append((number, self._change(handover.slot, leaves, enters)))
        self._note_parked()
        return moves

    def _candidates(self, pack: PackSlots) -> list[Candidate]:
        members = [(i, self.population.members[member]) for i, member in enumerate(pack.members)]
        return [Candidate(i, m.frames, self._limit(pack, m)) for i, m in members if not m.stopped]

    def _limit(self, pack: PackSlots, member: Member) -> int | None:
        limits = [member.until_frames]
        if pack.slots < len(
            pack.members
        ):  # else no member waits for a slot: it trains on while others catch up
            limits.append(self.budget_frames)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for pack, assigner in zip(self.packs, self._assigners, strict=True):
            for i, member in enumerate(pack.members):
                self.population.members[member].parked = i not in assigner.holders

    # -- the end --------------------------------------------------------------------------------------------

    def note_report(self, pack: int) -> None:
        """Count a report of a learner, after the controller has observed it."""
        if any(c.may_train for p in self.packs for c in self._candidates(p)):
            self._idle_reports = [0] * len(self._idle_reports)
        else:
            self._idle_reports[pack] += 1

    @property
    def stuck(self) -> bool:
        """Whether no member may train, and no report that could change this is still to come.

        Two reports of every learner are waited for: the first may be older than the last decisions.
        """
        return min(self._idle_reports) >= 2
