"""Slot assignment within a pack, if there are more members than slots or if members wait for decisions.

A member without a slot is *parked*. The time in which a member has a slot is a *time slice*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field


@dataclass(frozen=True)
class Swap:
    """Change of the member in a slot.

    leaves: former member. enters: new member. None: the slot was empty, or becomes empty.
    """

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
    """Candidate for a slot: a member that was not stopped.

    frames: total frames of the member. until_frames: the member may not train from this frame count on. None: no limit.
    """

    member: int
    frames: int
    until_frames: int | None

    @property
    def may_train(self) -> bool:
        """True if the member has not reached `until_frames`."""
        return self.until_frames is None or self.frames < self.until_frames


def first_members(candidates: Sequence[Candidate], slots: int) -> list[int | None]:
    """Return the first member of each slot. Of the members that may train, those with the fewest frames get the slots.

    Ties go to the lower id. A slot is empty (None) if no further member may train.
    """
    chosen = [c.member for c in _by_need(candidates)[:slots]]
    return [*chosen, *[None] * (slots - len(chosen))]


def _by_need(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that may train, in order of their frames."""
    return sorted((c for c in candidates if c.may_train), key=lambda c: (c.frames, c.member))


@dataclass(eq=False)
class SlotAssigner:
    """Assignment of slots to members.

    - A member leaves its slot when the member is stopped or may not train. At the end of its time slice, a member
      leaves if a parked member that may train has fewer frames, and no free slot remains for the parked member.
    - A free slot goes to a parked member that may train: the member with the fewest frames. Ties go to the lower id.
    - A slot stays empty if no parked member may train.

    first: first member of each slot. slot_frames: length of a time slice in frames of the member. None: no limit.
    entered_frames: for each slot, frames of its first member at the start of the time slice. Default: 0.
    """

    first: InitVar[Sequence[int | None]]
    slot_frames: int | None
    entered_frames: InitVar[Sequence[int]] = ()
    _holders: list[int | None] = field(init=False)
    """Member of each slot. Saved runs contain the name of this field."""
    _entered_frames: list[int] = field(init=False)

    def __post_init__(self, first: Sequence[int | None], entered_frames: Sequence[int]) -> None:
        assert first
        self._holders = list(first)
        self._entered_frames = list(entered_frames) or [0] * len(first)
        self._slots = len(first)  # not saved, because the options determine it

    def restored(self) -> None:
        """Raise ValueError if the number of restored slots is wrong, or a member has two slots."""
        held = [member for member in self._holders if member is not None]
        sizes = {len(self._holders), len(self._entered_frames), self._slots}
        if len(sizes) > 1 or len(set(held)) < len(held):
            raise ValueError(f"the saved slot assignment {self._holders} does not fit {self._slots} slots")

    @property
    def members(self) -> tuple[int | None, ...]:
        """Member of each slot."""
        return tuple(self._holders)

    def assign(self, candidates: Sequence[Candidate]) -> list[Swap]:
        """Apply the swaps that are due, and return them in order of slot."""
        by_member = {c.member: c for c in candidates}
        on_slot = set(self._holders)
        waiting = deque(_by_need(c for c in candidates if c.member not in on_slot))
        swaps = []
        kept: list[tuple[int, Candidate]] = []
        for slot, member in enumerate(self._holders):
            present = by_member.get(member) if member is not None else None
            if present is not None and present.may_train:
                kept.append((slot, present))
            elif waiting or member is not None:
                swaps.append(self._give(slot, waiting.popleft() if waiting else None))
        # Free slots are filled first, because no member must leave while another slot is empty.
        for slot, present in kept:
            if waiting and self._must_yield(slot, present, waiting[0]):
                swaps.append(self._give(slot, waiting.popleft()))
        return sorted(swaps, key=lambda swap: swap.slot)

    def vacate(self) -> None:
        """Remove the members from all slots."""
        self._holders = [None] * self._slots
        self._entered_frames = [0] * self._slots

    def _give(self, slot: int, candidate: Candidate | None) -> Swap:
        swap = Swap(slot, self._holders[slot], candidate.member if candidate else None)
        self._holders[slot] = swap.enters
        self._entered_frames[slot] = candidate.frames if candidate else 0
        return swap

    def _must_yield(self, slot: int, present: Candidate, next_one: Candidate) -> bool:
        if self.slot_frames is None:
            return False
        over = present.frames - self._entered_frames[slot] >= self.slot_frames
        return over and next_one.frames < present.frames
