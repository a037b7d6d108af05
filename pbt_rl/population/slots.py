"""Slots: which members hold the places of the packs. `SlotAssigner` decides; here it is told, and its word is passed on."""

from __future__ import annotations

from pbt_rl.plan import PackPlan, Plan
from pbt_rl.population.assigner import Candidate, SlotAssigner
from pbt_rl.population.population import Member, Population
from pbt_rl.wire.messages import Seat


class Slots:
    """The places of all packs. Keeps `Member.parked`.

    turn_frames: see SlotAssigner. budget_frames: a member that has them makes way for one that waits for its place; None
    where the controller sets every limit.
    """

    def __init__(
        self, plan: Plan, population: Population, turn_frames: int | None, budget_frames: int | None
    ) -> None:
        self._plan, self._population, self._budget = plan, population, budget_frames
        self._seats = [SlotAssigner(len(p.members), p.places, turn_frames) for p in plan.packs]
        self._reports_in_vain = [0] * len(plan.packs)
        self._note_parked()

    def start(self) -> list[tuple[int, Seat]]:
        """Who holds the places at first, pack by pack."""
        return [
            (number, Seat(place, None, member, 0, self._population.members[member].values))
            for number, pack in enumerate(self._plan.packs)
            for place, member in enumerate(pack.members[: pack.places])
        ]

    def members_of(self, pack: int) -> list[int | None]:
        """Who holds the places of a pack, place by place."""
        members = self._plan.packs[pack].members
        return [None if i is None else members[i] for i in self._seats[pack].occupants]

    def assign(self) -> list[tuple[int, Seat]]:
        """Let places change hands: (pack, what its learner must do)."""
        moves = []
        for number, (pack, seats) in enumerate(zip(self._plan.packs, self._seats, strict=True)):
            for change in seats.assign(self._candidates(pack)):
                leaves, enters = (
                    None if i is None else pack.members[i] for i in (change.leaves, change.enters)
                )
                member = None if enters is None else self._population.members[enters]
                seat = Seat(
                    change.place,
                    leaves,
                    enters,
                    0 if member is None else member.generation,
                    {} if member is None else dict(member.values),
                )
                moves.append((number, seat))
        self._note_parked()
        return moves

    def _candidates(self, pack: PackPlan) -> list[Candidate]:
        members = [(i, self._population.members[member]) for i, member in enumerate(pack.members)]
        return [Candidate(i, m.frames, self._limit(pack, m)) for i, m in members if not m.stopped]

    def _limit(self, pack: PackPlan, member: Member) -> int | None:
        limits = [member.until_frames]
        if pack.places < len(
            pack.members
        ):  # else nobody waits for its place: it goes on while others catch up
            limits.append(self._budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def _note_parked(self) -> None:
        for pack, seats in zip(self._plan.packs, self._seats, strict=True):
            for i, member in enumerate(pack.members):
                self._population.members[member].parked = i not in seats.occupants

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
