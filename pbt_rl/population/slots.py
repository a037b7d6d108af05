"""Which members hold the slots of the packs: feeds `SlotAssigner` and turns its changes into messages."""

from __future__ import annotations

from pbt_rl.plan import PackPlan, Plan
from pbt_rl.population.assigner import Candidate, SlotAssigner
from pbt_rl.population.population import Member, Population
from pbt_rl.wire.messages import SlotChange


class Slots:
    """The slots of all packs. Keeps `Member.parked`.

    turn_frames: see SlotAssigner. budget_frames: a member that has them makes way for one that waits for its slot; None
    where the controller sets every limit.
    """

    def __init__(
        self, plan: Plan, population: Population, turn_frames: int | None, budget_frames: int | None
    ) -> None:
        self._plan, self._population, self._budget = plan, population, budget_frames
        self._slots = [SlotAssigner(len(p.members), p.slots, turn_frames) for p in plan.packs]
        self._reports_in_vain = [0] * len(plan.packs)
        self._note_parked()

    def start(self) -> list[tuple[int, SlotChange]]:
        """Who holds the slots at first, pack by pack."""
        return [
            (number, SlotChange(slot, None, member, 0, self._population.members[member].values))
            for number, pack in enumerate(self._plan.packs)
            for slot, member in enumerate(pack.members[: pack.slots])
        ]

    def members_of(self, pack: int) -> list[int | None]:
        """Who holds the slots of a pack, slot by slot."""
        members = self._plan.packs[pack].members
        return [None if i is None else members[i] for i in self._slots[pack].occupants]

    def assign(self) -> list[tuple[int, SlotChange]]:
        """Let slots change hands: (pack, what its learner must do)."""
        moves = []
        for number, (pack, slots) in enumerate(zip(self._plan.packs, self._slots, strict=True)):
            for change in slots.assign(self._candidates(pack)):
                leaves, enters = (
                    None if i is None else pack.members[i] for i in (change.leaves, change.enters)
                )
                member = None if enters is None else self._population.members[enters]
                move = SlotChange(
                    change.slot,
                    leaves,
                    enters,
                    0 if member is None else member.generation,
                    {} if member is None else dict(member.values),
                )
                moves.append((number, move))
        self._note_parked()
        return moves

    def _candidates(self, pack: PackPlan) -> list[Candidate]:
        members = [(i, self._population.members[member]) for i, member in enumerate(pack.members)]
        return [Candidate(i, m.frames, self._limit(pack, m)) for i, m in members if not m.stopped]

    def _limit(self, pack: PackPlan, member: Member) -> int | None:
        limits = [member.until_frames]
        if pack.slots < len(pack.members):  # else nobody waits for its slot: it goes on while others catch up
            limits.append(self._budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for pack, slots in zip(self._plan.packs, self._slots, strict=True):
            for i, member in enumerate(pack.members):
                self._population.members[member].parked = i not in slots.occupants

    # -- the end --------------------------------------------------------------------------------------------

    def heard(self, pack: int) -> None:
        """A learner's report was taken in, and the controller has seen it."""
        if any(c.may_train for p in self._plan.packs for c in self._candidates(p)):
            self._reports_in_vain = [0] * len(self._reports_in_vain)
        else:
            self._reports_in_vain[pack] += 1

    @property
    def stuck(self) -> bool:
        """Nobody may train, and the controller has seen all there is: the first report of each may be an old one."""
        return min(self._reports_in_vain) >= 2
