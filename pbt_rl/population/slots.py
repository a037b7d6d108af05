"""Assignment of members to packs (the policies of one device) and to their slots (places of one policy).

If there are more members than slots, members train in time slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pbt_rl.controllers.state import SHARED, TRANSIENT
from pbt_rl.plan import PackPlan
from pbt_rl.population.population import Member, Population
from pbt_rl.population.slot_assignment import Candidate, SlotAssigner, Swap, first_members


@dataclass(eq=False)
class Slots:
    """Slots of all packs. Updates `Member.parked`.

    slot_frames: length of a time slice in frames of the member. None: no limit. budget_frames: frame count at which a
    member leaves its slot if its pack has more members than slots. None: the controller sets all limits.
    """

    packs: Sequence[PackPlan] = field(metadata=SHARED)
    population: Population = field(metadata=SHARED)
    slot_frames: int | None = None
    budget_frames: int | None = None
    pack_of: dict[int, int] = field(init=False, metadata=SHARED)
    """Member -> number of its pack. On Ray nodes, members may move to another pack during a run."""
    serving: set[int] = field(default_factory=set, init=False, metadata=TRANSIENT)
    """Packs whose learner has started."""
    held_back: bool = field(default=False, init=False)
    """True if a comparison and swaps were skipped because the run was about to end. They are possibly due if the run is
    resumed."""
    _assigners: tuple[SlotAssigner, ...] = field(init=False)
    _idle_reports: list[int] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """Pack -> number of reports of its learner since any member could last train."""

    def __post_init__(self) -> None:
        self.pack_of = {member: number for number, pack in enumerate(self.packs) for member in pack.members}
        self.choose_members()

    def choose_members(self) -> None:
        """Assign all slots anew, from the present state of the members."""
        self._assigners = tuple(map(self._assigner, range(len(self.packs))))
        self._idle_reports = [0] * len(self.packs)
        self._note_parked()

    def _assigner(self, pack: int) -> SlotAssigner:
        first = first_members(self.candidates(pack), self.packs[pack].slots)
        frames = [0 if member is None else self.population.members[member].frames for member in first]
        return SlotAssigner(first, self.slot_frames, frames)

    def restored(self) -> None:
        """Set the state that is not saved. Raise ValueError if a slot's member does not belong to the slot's pack."""
        self._idle_reports = [0] * len(self.packs)
        for pack, assigner in enumerate(self._assigners):
            if not {*assigner.members} <= {None, *self.of(pack)}:
                raise ValueError(
                    f"the saved slot assignment {assigner.members} contains an id that is not a member of pack {pack}"
                )
        self._note_parked()

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Members and slots of each pack. A saved slot assignment can only be restored with an equal plan."""
        return [
            {"members": list(self.of(number)), "slots": pack.slots} for number, pack in enumerate(self.packs)
        ]

    def of(self, pack: int) -> tuple[int, ...]:
        """Return the members of a pack, in order of id."""
        return tuple(sorted(member for member, number in self.pack_of.items() if number == pack))

    def slot_of(self, member: int) -> int | None:
        """Return the slot of a member in its pack. None: the member has no slot."""
        members = self._assigners[self.pack_of[member]].members
        return members.index(member) if member in members else None

    def members_of(self, pack: int) -> list[int | None]:
        """Return the member of each slot of a pack. None: the slot is empty."""
        return [*self._assigners[pack].members]

    def start(self) -> list[tuple[int, Swap]]:
        """Return (pack, swap) for each member with a slot, as if the member entered its slot now."""
        return [
            (number, Swap(slot, None, member))
            for number in range(len(self.packs))
            for slot, member in enumerate(self.members_of(number))
            if member is not None
        ]

    def assign(self) -> list[tuple[int, Swap]]:
        """Apply the swaps that are due, and return (pack, swap)."""
        moves = [
            (number, swap)
            for number, assigner in enumerate(self._assigners)
            for swap in assigner.assign(self.candidates(number))
        ]
        self._note_parked()
        return moves

    def candidates(self, pack: int) -> list[Candidate]:
        """Return the members of a pack that were not stopped."""
        members = [self.population.members[member] for member in self.of(pack)]
        return [Candidate(m.id, m.frames, self._limit(pack, m)) for m in members if not m.stopped]

    def _limit(self, pack: int, member: Member) -> int | None:
        limits = [member.until_frames]
        # If the pack has a slot for each member, a member at its budget continues until all have reached the budget.
        if self.packs[pack].slots < len(self.of(pack)):
            limits.append(self.budget_frames)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for number, assigner in enumerate(self._assigners):
            for member in self.of(number):
                self.population.members[member].parked = member not in assigner.members

    # -- moves between packs ----------------------------------------------------------------------------------

    def travel(self) -> list[tuple[int, int]]:
        """Move waiting members to packs with free slots, and return (member, pack). Call this after `assign`.

        Members with the fewest frames move first (ties: lower id), each to the pack with the most free slots.
        """
        free = {number: self.members_of(number).count(None) for number in sorted(self.serving)}
        if not any(free.values()):
            return []
        waiting = [
            candidate
            for number in free
            for candidate in self.candidates(number)
            if candidate.may_train and candidate.member not in self.members_of(number)
        ]
        moved = []
        for candidate in sorted(waiting, key=lambda c: (c.frames, c.member)):
            pack = max(free, key=lambda number: (free[number], -number))
            if free[pack] > 0:
                free[pack] -= 1
                self.pack_of[candidate.member] = pack
                moved.append((candidate.member, pack))
        return moved

    def scatter(self, pack: int) -> list[tuple[int, int]]:
        """Move the members of a lost pack to running packs, and return (member, new pack).

        Each member moves to the pack that has the fewest members per slot after the move. Returns [] if no other pack
        is running.
        """
        others = sorted(self.serving - {pack})
        moved = []
        for member in self.of(pack) if others else ():
            chosen = min(others, key=lambda n: ((len(self.of(n)) + 1) / self.packs[n].slots, n))
            self.pack_of[member] = chosen
            moved.append((member, chosen))
        if moved:
            self._assigners[pack].vacate()
            self._note_parked()
        return moved

    # -- the end --------------------------------------------------------------------------------------------

    def note_report(self, pack: int) -> None:
        """Count a report of a pack's learner, or reset all counts if a member may train.

        Call this after the controller has observed the report.
        """
        if any(c.may_train for number in range(len(self.packs)) for c in self.candidates(number)):
            self._idle_reports = [0] * len(self._idle_reports)
        else:
            self._idle_reports[pack] += 1

    @property
    def stuck(self) -> bool:
        """True if no member may train, and no pending report can change this.

        The result is False until each running learner has sent two reports since a member could last train. One report
        is not enough, because it can be older than the last decisions.
        """
        return min((self._idle_reports[pack] for pack in self.serving), default=0) >= 2
