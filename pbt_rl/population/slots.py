"""Slots of all packs of a run: one `SlotAssigner` per pack, and its handovers as messages to the learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pbt_rl.population.assigner import Candidate, SlotAssigner
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


class Slots:
    """The slots of all packs. Keeps `Member.parked` up to date.

    slot_frames: see SlotAssigner. budget_frames: with this many a member leaves its slot to one that waits for it; None
    if the controller sets every limit.
    """

    def __init__(
        self,
        packs: Sequence[PackSlots],
        population: Population,
        slot_frames: int | None,
        budget_frames: int | None,
    ) -> None:
        self._packs, self._population, self._budget = packs, population, budget_frames
        self._assigners = [SlotAssigner(len(p.members), p.slots, slot_frames) for p in packs]
        self._idle_reports = [0] * len(packs)
        self._note_parked()

    def start(self) -> list[tuple[int, SlotChange]]:
        """Return (pack, slot change) for every slot that a member holds at the start."""
        return [
            (number, SlotChange(slot, None, member, 0, self._population.members[member].values))
            for number, pack in enumerate(self._packs)
            for slot, member in enumerate(pack.members[: pack.slots])
        ]

    def members_of(self, pack: int) -> list[int | None]:
        """Return the member that holds each slot of a pack."""
        members = self._packs[pack].members
        return [None if i is None else members[i] for i in self._assigners[pack].holders]

    def assign(self) -> list[tuple[int, SlotChange]]:
        """Hand slots over; returns (pack, what its learner must do)."""
        moves = []
        for number, (pack, assigner) in enumerate(zip(self._packs, self._assigners, strict=True)):
            for handover in assigner.assign(self._candidates(pack)):
                leaves, enters = (
                    None if i is None else pack.members[i] for i in (handover.leaves, handover.enters)
                )
                member = None if enters is None else self._population.members[enters]
                move = SlotChange(
                    handover.slot,
                    leaves,
                    enters,
                    0 if member is None else member.generation,
                    {} if member is None else dict(member.values),
                )
                moves.append((number, move))
        self._note_parked()
        return moves

    def _candidates(self, pack: PackSlots) -> list[Candidate]:
        members = [(i, self._population.members[member]) for i, member in enumerate(pack.members)]
        return [Candidate(i, m.frames, self._limit(pack, m)) for i, m in members if not m.stopped]

    def _limit(self, pack: PackSlots, member: Member) -> int | None:
        limits = [member.until_frames]
        if pack.slots < len(
            pack.members
        ):  # else no member waits for a slot: it trains on while others catch up
            limits.append(self._budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for pack, assigner in zip(self._packs, self._assigners, strict=True):
            for i, member in enumerate(pack.members):
                self._population.members[member].parked = i not in assigner.holders

    # -- the end --------------------------------------------------------------------------------------------

    def note_report(self, pack: int) -> None:
        """Count a report of a learner, after the controller has observed it."""
        if any(c.may_train for p in self._packs for c in self._candidates(p)):
            self._idle_reports = [0] * len(self._idle_reports)
        else:
            self._idle_reports[pack] += 1

    @property
    def stuck(self) -> bool:
        """Whether no member may train, and no report that could change this is still to come.

        Two reports of every learner are waited for: the first may be older than the last decisions.
        """
        return min(self._idle_reports) >= 2
