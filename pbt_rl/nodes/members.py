"""Members that move to the packs which have a machine."""

from __future__ import annotations

from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.population.population import Population
from pbt_rl.population.turns.dispatch import TurnDispatch
from pbt_rl.population.turns.slots import TurnSlots
from pbt_rl.run.comparisons import Comparisons


def travel(slots: TurnSlots) -> list[tuple[int, int]]:
    """Let members belong to another pack that has a free slot for them, after `assign`; return (member, pack).

    A slot that is free then has no member of its own pack that may train. The least trained move first, ties to the
    lower id, each to the pack with the most free slots.
    """
    free = {number: slots.members_of(number).count(None) for number in sorted(slots.serving)}
    if not any(free.values()):
        return []
    waiting = [
        candidate
        for number in free
        for candidate in slots.candidates(number)
        if candidate.may_train and candidate.member not in slots.members_of(number)
    ]
    moved = []
    for candidate in sorted(waiting, key=lambda c: (c.frames, c.member)):
        pack = max(free, key=lambda number: (free[number], -number))
        if free[pack] > 0:
            free[pack] -= 1
            slots.pack_of[candidate.member] = pack
            moved.append((candidate.member, pack))
    return moved


def scatter(slots: TurnSlots, pack: int) -> list[tuple[int, int]]:
    """Let the members of a pack that has no machine any more belong to packs that serve; return (member, pack).

    Each goes to the pack with the fewest members per slot. None if no pack serves.
    """
    others = sorted(slots.serving - {pack})
    moved = []
    for member in slots.of(pack) if others else ():
        chosen = min(others, key=lambda n: ((len(slots.of(n)) + 1) / slots.packs[n].slots, n))
        slots.pack_of[member] = chosen
        moved.append((member, chosen))
    if moved:
        slots.vacate(pack)
    return moved


def leave(dispatch: TurnDispatch, pack: int) -> list[tuple[int, int]]:
    """Let the members of a pack that has no machine wait in others for a slot; return (member, its pack now)."""
    resident = [member for member in dispatch.slots.members_of(pack) if member is not None]
    moved = scatter(dispatch.slots, pack)
    if moved:
        dispatch.started(pack)
        for number in resident:
            member = dispatch.population.members[number]
            member.held = dispatch.store.pin(member.origin.key)
    return moved


def play_elsewhere(population: Population, number: int, environments: int) -> None:
    """Let a member play in so many environments from now on: other ones, of which none has ended an episode.

    What is held back of the ones before is let go.
    """
    member = population.members[number]
    member.ended.clear()
    begun = save_state(member.shares) | {"_held": {}}
    member.shares = population.shares(environments)
    restore_state(member.shares, begun)


class SpreadComparisons(Comparisons):
    """Compares members of packs on several machines."""

    ONE_CLOCK = False
    dispatch: TurnDispatch
    slots: TurnSlots

    def scatter(self, pack: int) -> None:
        """Let the members of a pack that has no machine wait in others for a slot."""
        for member, now in leave(self.dispatch, pack):
            self._note_moved(member, now)
        self.change_slots()

    def _note_moved(self, member: int, pack: int) -> None:
        play_elsewhere(self._population, member, self._packs[pack].environments_of_member)
        self._recorder.write("moved", member=member, pack=pack)
        self._recorder.note(f"member {member} moves to learner {pack}")

    def _hand_over(self) -> None:
        while True:
            super()._hand_over()
            moved = travel(self.slots)
            for member, pack in moved:
                self._note_moved(member, pack)
            if not moved:
                return
