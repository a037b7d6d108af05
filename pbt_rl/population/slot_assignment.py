"""Slot assignment within a pack, if members outnumber slots or wait for decisions. Pure.

One `SlotAssigner` per pack. Axes: N members, C slots, C <= N. A member without a slot is *parked*. The time that a
member occupies a slot is a *time slice*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field


@dataclass(frozen=True)
class Handover:
    """Swap of a slot from one member to another. None: no member."""

    slot: int
    leaves: int | None
    enters: int | None

    def text(self, pack: int) -> str:
        """Return the log line of the swap."""
        where = f"slot {self.slot} of learner {pack}"
        if self.enters is None:
            return f"member {self.leaves} leaves {where}; no member waits for it"
        left = "" if self.leaves is None else f" from member {self.leaves}"
        return f"member {self.enters} takes {where}{left}"


@dataclass(frozen=True)
class Candidate:
    """Member that was not stopped.

    until_frames: frames at which it waits for a decision. None: no limit.
    """

    member: int
    frames: int
    until_frames: int | None

    @property
    def may_train(self) -> bool:
        """True if the member may train before its next decision."""
        return self.until_frames is None or self.frames < self.until_frames


def first_holders(candidates: Sequence[Candidate], slots: int) -> list[int | None]:
    """Return the first member of each slot: those that may train and have the fewest frames.

    Ties go to the lower id. A slot stays empty if no further member may train.
    """
    chosen = [c.member for c in _by_need(candidates)[:slots]]
    return [*chosen, *[None] * (slots - len(chosen))]


def _by_need(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that may train, least trained first."""
    return sorted((c for c in candidates if c.may_train), key=lambda c: (c.frames, c.member))


@dataclass(eq=False)
class SlotAssigner:
    """Assignment of slots to members. Pure.

    - A member leaves its slot when it is stopped or must wait for a decision. It also leaves after its time slice if a
      parked member that may train has fewer frames. A time slice is `slot_frames` frames of the member.
    - A free slot goes to the parked member that may train and has the fewest frames; ties go to the lower id. So
      members that have not trained yet start in order of id.
    - A slot stays empty if no parked member may train.

    first: first member of each slot. entered_frames: frames of each at that time; by default 0.
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
        self._slots = len(first)  # a setting, although derived

    def restored(self) -> None:
        """Check that each slot has one member or none. Raises ValueError."""
        held = [member for member in self._holders if member is not None]
        sizes = {len(self._holders), len(self._entered_frames), self._slots}
        if len(sizes) > 1 or len(set(held)) < len(held):
            raise ValueError(f"the saved slot assignment {self._holders} does not fit {self._slots} slots")

    @property
    def holders(self) -> tuple[int | None, ...]:
        """Member of each slot."""
        return tuple(self._holders)

    def assign(self, candidates: Sequence[Candidate]) -> list[Handover]:
        """Return the swaps that are due now, in order of slot, and apply them."""
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
        # Fill free slots first, because no member must leave while another slot is empty.
        for slot, present in kept:
            if waiting and self._must_yield(slot, present, waiting[0]):
                handovers.append(self._give(slot, waiting.popleft()))
        return sorted(handovers, key=lambda handover: handover.slot)

    def vacate(self) -> None:
        """Clear all slots."""
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
