"""Who sits where when there are more members than slots: a slot is one row of a pack on a device.

Axes and words: N members, C slots, C <= N. A member that has no slot is *parked*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A member that may train: none that was stopped.

    until_frames: it waits for a decision once it has this many frames; None for no limit.
    """

    member: int
    frames: int
    until_frames: int | None

    @property
    def may_train(self) -> bool:
        """It has frames left before it must wait for a decision."""
        return self.until_frames is None or self.frames < self.until_frames


@dataclass(frozen=True)
class Change:
    """One slot changes hands; None stands for nobody."""

    slot: int
    leaves: int | None
    enters: int | None


class SlotAssigner:
    """Gives the slots to the members.

    - A member leaves its slot when it is stopped, when it must wait for a decision, or when its turn is over and
      a parked member that may train has fewer frames. A turn is `turn_frames` frames of the member.
    - A free slot goes to the parked member that may train and has fewest frames; ties go to the lower id. Members
      that never trained are therefore started in the order of their ids.
    - Where nobody wants a slot it stays empty.

    The first C members sit at the start. Pure: it knows only what it is told.
    """

    def __init__(self, num_members: int, slots: int, turn_frames: int | None) -> None:
        assert 0 < slots <= num_members
        self._occupants: list[int | None] = list(range(slots))
        self._entered_frames = [0] * slots
        self._turn_frames = turn_frames

    @property
    def occupants(self) -> tuple[int | None, ...]:
        """Member of each slot."""
        return tuple(self._occupants)

    def assign(self, candidates: Sequence[Candidate]) -> list[Change]:
        """Decide who moves now; the changes then count as made. In order of slot."""
        by_member = {c.member: c for c in candidates}
        seated = set(self._occupants)
        waiting = deque(
            sorted(
                (c for c in candidates if c.member not in seated and c.may_train),
                key=lambda c: (c.frames, c.member),
            )
        )
        changes = []
        taken: list[tuple[int, Candidate]] = []
        for slot, occupant in enumerate(self._occupants):
            present = by_member.get(occupant) if occupant is not None else None
            if present is not None and present.may_train:
                taken.append((slot, present))
            elif waiting or occupant is not None:
                changes.append(self._give(slot, waiting.popleft() if waiting else None))
        # Turns end only after the free slots are filled: nobody yields while another slot is empty.
        for slot, present in taken:
            if waiting and self._must_yield(slot, present, waiting[0]):
                changes.append(self._give(slot, waiting.popleft()))
        return sorted(changes, key=lambda change: change.slot)

    def _give(self, slot: int, candidate: Candidate | None) -> Change:
        change = Change(slot, self._occupants[slot], candidate.member if candidate else None)
        self._occupants[slot] = change.enters
        self._entered_frames[slot] = candidate.frames if candidate else 0
        return change

    def _must_yield(self, slot: int, present: Candidate, next_one: Candidate) -> bool:
        if self._turn_frames is None:
            return False
        over = present.frames - self._entered_frames[slot] >= self._turn_frames
        return over and next_one.frames < present.frames
