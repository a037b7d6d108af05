"""Who holds the slots of each pack if there are more members than slots, or if members wait for decisions.

One `SlotAssigner` per pack. Axes: N members, C slots, C <= N. A member that holds no slot is *parked*; the time that it
holds one is a *turn*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field

from pbt_rl.controllers.state import TRANSIENT
from pbt_rl.population.population import Member
from pbt_rl.population.slots import Handover, Slots


@dataclass(frozen=True)
class Candidate:
    """A member that was not stopped.

    until_frames: with this many frames it waits for a decision; None for no limit.
    """

    member: int
    frames: int
    until_frames: int | None

    @property
    def may_train(self) -> bool:
        """Whether it has frames left before it must wait for a decision."""
        return self.until_frames is None or self.frames < self.until_frames


def first_holders(candidates: Sequence[Candidate], slots: int) -> list[int | None]:
    """Return the members that hold the slots at first: those that may train and have the fewest frames.

    Ties go to the lower id. A slot stays empty if no further member may train.
    """
    chosen = [c.member for c in _by_need(candidates)[:slots]]
    return [*chosen, *[None] * (slots - len(chosen))]


def _by_need(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return those that may train, the least trained first."""
    return sorted((c for c in candidates if c.may_train), key=lambda c: (c.frames, c.member))


@dataclass(eq=False)
class SlotAssigner:
    """Assigns the slots to the members. Pure.

    - A member leaves its slot when it is stopped, when it must wait for a decision, or when its turn is over and
      a parked member that may train has fewer frames. A turn lasts `slot_frames` frames of the member.
    - A free slot goes to the parked member that may train and has the fewest frames; ties go to the lower id. Members
      that never trained therefore start in the order of their ids.
    - A slot stays empty if no parked member may train.

    first: the member that holds each slot at first. entered_frames: the frames of each at that time; 0 if left out.
    """

    first: InitVar[Sequence[int | None]]
    slot_frames: int | None
    entered_frames: InitVar[Sequence[int]] = ()
    _holders: list[int | None] = field(init=False)
    _entered_frames: list[int] = field(init=False)

    def __post_init__(self, first: Sequence[int | None], entered_frames: Sequence[int]) -> None:
        assert first
        self._holders = list(first)
        self._entered_frames = list(entered_frames) or [0] * len(first)
        self._slots = len(first)  # a setting, though derived

    def restored(self) -> None:
        """Check that there is one holder or none for every slot. Raises ValueError."""
        held = [member for member in self._holders if member is not None]
        sizes = {len(self._holders), len(self._entered_frames), self._slots}
        if len(sizes) > 1 or len(set(held)) < len(held):
            raise ValueError(f"the saved holders, {self._holders}, are not those of {self._slots} slots")

    @property
    def holders(self) -> tuple[int | None, ...]:
        """The member that holds each slot."""
        return tuple(self._holders)

    def assign(self, candidates: Sequence[Candidate]) -> list[Handover]:
        """Return the handovers that are due now, in order of slot, and counts them as made."""
        by_member = {c.member: c for c in candidates}
        resident = set(self._holders)
        waiting = deque(_by_need(c for c in candidates if c.member not in resident))
        handovers = []
        kept: list[tuple[int, Candidate]] = []
        for slot, holder in enumerate(self._holders):
            present = by_member.get(holder) if holder is not None else None
            if present is not None and present.may_train:
                kept.append((slot, present))
            elif waiting or holder is not None:
                handovers.append(self._give(slot, waiting.popleft() if waiting else None))
        # Turns end only after the free slots are filled: no member yields while another slot is empty.
        for slot, present in kept:
            if waiting and self._must_yield(slot, present, waiting[0]):
                handovers.append(self._give(slot, waiting.popleft()))
        return sorted(handovers, key=lambda handover: handover.slot)

    def vacate(self) -> None:
        """Let nobody hold a slot any more."""
        self._holders = [None] * self._slots
        self._entered_frames = [0] * self._slots

    def _give(self, slot: int, candidate: Candidate | None) -> Handover:
        handover = Handover(slot, self._holders[slot], candidate.member if candidate else None)
        self._holders[slot] = handover.enters
        self._entered_frames[slot] = candidate.frames if candidate else 0
        return handover

    def _must_yield(self, slot: int, present: Candidate, next_one: Candidate) -> bool:
        if self.slot_frames is None:
            return False
        over = present.frames - self._entered_frames[slot] >= self.slot_frames
        return over and next_one.frames < present.frames


@dataclass(eq=False)
class TurnSlots(Slots):
    """The slots of all packs, which members take in turns. Keeps `Member.parked` up to date.

    slot_frames: see SlotAssigner. budget_frames: with this many a member leaves its slot to one that waits for it; None
    if the controller sets every limit.
    """

    slot_frames: int | None
    budget_frames: int | None
    _assigners: tuple[SlotAssigner, ...] = field(init=False)
    _idle_reports: list[int] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """Reports of each pack's learner since a member could train."""

    def choose_holders(self) -> None:
        """See Slots."""
        self._assigners = tuple(map(self._assigner, range(len(self.packs))))
        self._idle_reports = [0] * len(self.packs)
        self._note_parked()

    def _assigner(self, pack: int) -> SlotAssigner:
        holders = first_holders(self.candidates(pack), self.packs[pack].slots)
        frames = [0 if member is None else self.population.members[member].frames for member in holders]
        return SlotAssigner(holders, self.slot_frames, frames)

    def restored(self) -> None:
        """Check that every slot is held by a member of its pack or by none. Raises ValueError."""
        self._idle_reports = [0] * len(self.packs)
        for pack, assigner in enumerate(self._assigners):
            if not {*assigner.holders} <= {None, *self.of(pack)}:
                raise ValueError(f"the saved holders of slots, {assigner.holders}, are not all members")
        self._note_parked()

    def slot_of(self, member: int) -> int | None:
        """See Slots."""
        holders = self._assigners[self.pack_of[member]].holders
        return holders.index(member) if member in holders else None

    def members_of(self, pack: int) -> list[int | None]:
        """See Slots."""
        return [*self._assigners[pack].holders]

    def assign(self) -> list[tuple[int, Handover]]:
        """Hand slots over; returns (pack, handover)."""
        moves = [
            (number, handover)
            for number, assigner in enumerate(self._assigners)
            for handover in assigner.assign(self.candidates(number))
        ]
        self._note_parked()
        return moves

    def candidates(self, pack: int) -> list[Candidate]:
        """Return the members of a pack that were not stopped."""
        members = [self.population.members[member] for member in self.of(pack)]
        return [Candidate(m.id, m.frames, self._limit(pack, m)) for m in members if not m.stopped]

    def _limit(self, pack: int, member: Member) -> int | None:
        limits = [member.until_frames]
        # Else no member waits for a slot: it trains on while others catch up.
        if self.packs[pack].slots < len(self.of(pack)):
            limits.append(self.budget_frames)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for number, assigner in enumerate(self._assigners):
            for member in self.of(number):
                self.population.members[member].parked = member not in assigner.holders

    def vacate(self, pack: int) -> None:
        """Let nobody hold a slot of a pack any more: it has lost its members."""
        self._assigners[pack].vacate()
        self._note_parked()

    # -- the end --------------------------------------------------------------------------------------------

    def note_report(self, pack: int) -> None:
        """Count a report of a learner, after the controller has observed it."""
        if any(c.may_train for number in range(len(self.packs)) for c in self.candidates(number)):
            self._idle_reports = [0] * len(self._idle_reports)
        else:
            self._idle_reports[pack] += 1

    @property
    def stuck(self) -> bool:
        """Whether no member may train, and no report that could change this is still to come.

        Two reports of every learner are waited for: the first may be older than the last decisions.
        """
        return min((self._idle_reports[pack] for pack in self.serving), default=0) >= 2
