"""Slots of all packs of a run: one `SlotAssigner` per pack, and its handovers as messages to the learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pbt_rl.pbt.state import SHARED, TRANSIENT
from pbt_rl.population.assigner import Candidate, SlotAssigner, first_holders
from pbt_rl.population.membership import Membership, PackSlots
from pbt_rl.population.population import Member, Population
from pbt_rl.wire.messages import SlotChange


@dataclass(eq=False)
class Slots:
    """The slots of all packs. Keeps `Member.parked` up to date.

    slot_frames: see SlotAssigner. budget_frames: with this many a member leaves its slot to one that waits for it; None
    if the controller sets every limit. travel: members that wait may move to a free slot of another pack.
    """

    packs: Sequence[PackSlots] = field(metadata=SHARED)
    population: Population = field(metadata=SHARED)
    slot_frames: int | None
    budget_frames: int | None
    travel: bool = False
    membership: Membership = field(init=False, metadata=SHARED)
    serving: set[int] = field(default_factory=set, init=False, metadata=TRANSIENT)
    """Packs whose learner has started."""
    held_back: bool = field(default=False, init=False)
    """Slots kept their holders because the run was about to end: they may have to change hands if it goes on."""
    _assigners: tuple[SlotAssigner, ...] = field(init=False)
    _idle_reports: list[int] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """Reports of each pack's learner since a member could train."""

    def __post_init__(self) -> None:
        self.membership = Membership(self.packs)
        self.begin()

    def begin(self) -> None:
        """Choose the holders from the members as they are."""
        self._assigners = tuple(map(self._assigner, range(len(self.packs))))
        self._idle_reports = [0] * len(self.packs)
        self._note_parked()

    def _assigner(self, pack: int) -> SlotAssigner:
        holders = first_holders(self._candidates(pack), self.packs[pack].slots)
        frames = [0 if member is None else self.population.members[member].frames for member in holders]
        return SlotAssigner(holders, self.slot_frames, frames)

    def restored(self) -> None:
        """Check that every slot is held by a member of its pack or by none. Raises ValueError."""
        self._idle_reports = [0] * len(self.packs)
        for pack, assigner in enumerate(self._assigners):
            if not {*assigner.holders} <= {None, *self.membership.of(pack)}:
                raise ValueError(f"the saved holders of slots, {assigner.holders}, are not all members")
        self._note_parked()

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Members and slots of every pack: holders can be restored if they are the same."""
        return [
            {"members": list(self.membership.of(number)), "slots": pack.slots}
            for number, pack in enumerate(self.packs)
        ]

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
        return [*self._assigners[pack].holders]

    def assign(self) -> list[tuple[int, SlotChange]]:
        """Hand slots over; returns (pack, what its learner must do)."""
        moves = []
        for number, assigner in enumerate(self._assigners):
            moves += [
                (number, self._change(handover.slot, handover.leaves, handover.enters))
                for handover in assigner.assign(self._candidates(number))
            ]
        self._note_parked()
        return moves

    def _candidates(self, pack: int) -> list[Candidate]:
        members = [self.population.members[member] for member in self.membership.of(pack)]
        return [Candidate(m.id, m.frames, self._limit(pack, m)) for m in members if not m.stopped]

    def _limit(self, pack: int, member: Member) -> int | None:
        limits = [member.until_frames]
        # Else no member waits for a slot: it trains on while others catch up.
        if self.packs[pack].slots < len(self.membership.of(pack)):
            limits.append(self.budget_frames)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for number, assigner in enumerate(self._assigners):
            for member in self.membership.of(number):
                self.population.members[member].parked = member not in assigner.holders

    # -- between packs --------------------------------------------------------------------------------------

    def journeys(self) -> list[tuple[int, int]]:
        """Return (member, pack) of the members that should move to a free slot of another pack, after `assign`.

        A slot that is free then has no member of its own pack that may train. The least trained move first, ties to the
        lower id, each to the pack with the most free slots.
        """
        free = {number: self._assigners[number].free for number in sorted(self.serving)}
        if not self.travel or not any(free.values()):
            return []
        waiting = [
            candidate
            for number in free
            for candidate in self._candidates(number)
            if candidate.may_train and candidate.member not in self._assigners[number].holders
        ]
        journeys = []
        for candidate in sorted(waiting, key=lambda c: (c.frames, c.member)):
            pack = max(free, key=lambda number: (free[number], -number))
            if free[pack] > 0:
                free[pack] -= 1
                journeys.append((candidate.member, pack))
        return journeys

    def scatter(self, pack: int) -> list[tuple[int, int]]:
        """Let the members of a pack that has no machine any more belong to packs that serve; return (member, pack).

        Each goes to the pack with the fewest members per slot. None if no pack serves.
        """
        others = sorted(self.serving - {pack})
        moved = []
        for member in self.membership.of(pack) if others else ():
            chosen = min(others, key=lambda n: ((len(self.membership.of(n)) + 1) / self.packs[n].slots, n))
            self.membership.move(member, chosen)
            moved.append((member, chosen))
        if moved:
            self._assigners[pack].vacate()
            self._note_parked()
        return moved

    # -- the end --------------------------------------------------------------------------------------------

    def note_report(self, pack: int) -> None:
        """Count a report of a learner, after the controller has observed it."""
        if any(c.may_train for number in range(len(self.packs)) for c in self._candidates(number)):
            self._idle_reports = [0] * len(self._idle_reports)
        else:
            self._idle_reports[pack] += 1

    @property
    def stuck(self) -> bool:
        """Whether no member may train, and no report that could change this is still to come.

        Two reports of every learner are waited for: the first may be older than the last decisions.
        """
        return min((self._idle_reports[pack] for pack in self.serving), default=0) >= 2
