"""Changes of members without a slot, and slots that change hands.

a decision about a parked member    it has another state in the store from now on; no learner is told
another holder                      Save of the member that leaves, Load of the state of the member that enters
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from pbt_rl.actors.messages import Applied, Load
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.state import SHARED, TRANSIENT
from pbt_rl.population.dispatch import Dispatch, Pending
from pbt_rl.population.population import Member
from pbt_rl.population.slots import Handover
from pbt_rl.population.store import Key, Origin
from pbt_rl.population.turns.slots import TurnSlots


@dataclass(eq=False)
class TurnDispatch(Dispatch):
    """Applies changes to members that hold slots, and to those that wait for one."""

    slots: TurnSlots = field(metadata=SHARED)
    unproven: set[int] = field(default_factory=set, init=False)
    """Members without a slot with a change that is not in force anywhere yet."""
    _parked: dict[int, Pending] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Member without a slot -> the decision that changed it, until its proof was taken."""
    _proofs: list[Applied] = field(default_factory=list, init=False, metadata=TRANSIENT)

    @property
    def busy(self) -> bool:
        """See Dispatch."""
        return super().busy or bool(self._parked)

    def take_proofs(self) -> list[Applied]:
        """See Dispatch."""
        proofs, self._proofs = self._proofs, []
        return proofs

    def applied(self, proof: Applied) -> Pending:
        """See Dispatch."""
        return self._parked.pop(proof.member) if proof.parked else super().applied(proof)

    def _tell(self, member: Member, change: Change, source: Key | None, decided: float) -> None:
        if member.held is None:
            super()._tell(member, change, source, decided)
        else:
            self._change_parked(member, change, source, decided)

    def _change_parked(self, member: Member, change: Change, source: Key | None, decided: float) -> None:
        """Let a member without a slot be in another state."""
        self.unproven.add(member.id)
        self._parked[member.id] = Pending(decided, sent=time.perf_counter())
        donor = change.source[0] if change.source is not None else None
        proof = Applied(
            member.id, donor, change.generation, 0.0, {}, {}, {}, donor_unchanged=True, parked=True
        )
        if change.weights == "fresh":
            self._park(member, self.store.pin(member.origin.key))
        elif source is not None:
            self._park(member, self.store.pin(source))
        if source is None:
            self._proofs.append(proof)
            return

        def prove() -> None:
            self.store.unpin(source)
            self._proofs.append(proof)

        self._when_saved(source, member.id, None, prove)

    def _park(self, member: Member, key: Key) -> None:
        former, member.held = member.held, key
        if former is not None:
            self.store.unpin(former)

    def lost(self, pack: int) -> list[dict[str, Any]]:
        """See Dispatch. A member that had just been given a slot goes on from the state that it entered with."""
        for number, sent in self._sent.items():
            if self.slots.pack_of[number] == pack and len(sent) == 1 and sent[0].decided is None:
                member, key = self.population.members[number], sent[0].key
                assert key is not None
                self._origins.set_to(member, Origin(key, -member.frames, pinned=True), None)
        return super().lost(pack)

    def hand_over(self) -> list[tuple[int, Handover]]:
        """See Dispatch."""
        moves = self.slots.assign()
        for pack, handover in moves:
            self._hand_over(pack, handover)
        return [(pack, replace(handover, text=_said(pack, handover))) for pack, handover in moves]

    def _hand_over(self, pack: int, handover: Handover) -> None:
        """Let a slot of a pack change hands: the state of the member that leaves is saved."""
        members = self.population.members
        if handover.leaves is not None:
            left = members[handover.leaves]
            key = self._save(left)
            left.held = self.store.pin(key)
            self.store.release(key)
        if handover.enters is None:
            self.send(pack, Load(handover.slot, None, 0, {}))
            return
        member = members[handover.enters]
        assert member.held is not None, f"member {member.id} has no state"
        key, member.held = member.held, None
        pending = Pending(None, key, proves=member.id in self.unproven)
        self.unproven.discard(member.id)
        self._post_state(member.id, pending, self._load(handover.slot, member), key)


def _said(pack: int, handover: Handover) -> str:
    """Return the event line of a slot that changes hands."""
    leaves, enters = handover.leaves, handover.enters
    where = f"slot {handover.slot} of learner {pack}"
    if enters is None:
        return f"member {leaves} leaves {where}; no member waits for it"
    return f"member {enters} takes {where}" + ("" if leaves is None else f" from member {leaves}")
