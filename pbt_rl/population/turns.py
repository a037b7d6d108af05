"""Who holds the slots of a pack if there are more members than slots, or if members wait for decisions. Pure.

One `SlotAssigner` per pack. Axes: N members, C slots, C <= N. A member that holds no slot is *parked*; the time that it
holds one is a *turn*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field


@dataclass(frozen=True)
class Handover:
    """One slot passes from a member to another; None stands for no member."""

    slot: int
    leaves: int | None
    enters: int | None

    def text(self, pack: int) -> str:
        """Return its event line."""
        where = f"slot {self.slot} of learner {pack}"
        if self.enters is None:
            return f"member {self.leaves} leaves {where}; no member waits for it"
        left = "" if self.leaves is None else f" from member {self.leaves}"
        return f"member {self.enters} takes {where}{left}"


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
