"""Carries changes out: which state each member is in from now on, as messages to the learners.

    a decision             what its learner is told
    values alone           SetValues
    weights of a member    Load of another slot, on the device, if that is in the same pack and does not change itself
                           Save of the donor, then Load of that state, else
    a remembered state     Load of that state
    fresh weights          Load of drawn ones

Messages to one learner are carried out in order, so that it may load what it was told to save; another learner is told
once the state is there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pbt_rl.actors.messages import (
    Applied,
    EvaluateMember,
    Load,
    Save,
    Saved,
    SetValues,
    ToLearner,
    TrainUntil,
)
from pbt_rl.actors.store import Counts, MemberSnapshot, SnapshotHeader
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import StateKey
from pbt_rl.controllers.state import SHARED, TRANSIENT
from pbt_rl.population.origins import Origins
from pbt_rl.population.population import Member, Population
from pbt_rl.population.slots import Handover, Slots
from pbt_rl.population.store import Elsewhere, Key, Origin, Store

Read = Callable[[], MemberSnapshot]


@dataclass
class Pending:
    """Something on its way to a learner that it answers with a proof."""

    decided: float | None
    """time.perf_counter() when the controller had decided; None: a member takes a slot."""
    key: Key | None = None
    """The state that is loaded: pinned until the proof is there."""
    sent: float = 0.0
    """time.perf_counter() when it was sent."""
    proves: bool = True
    """The proof is recorded: of a decision, or of one that was made while the member had no slot."""


@dataclass(eq=False)
class Dispatch:
    """Applies changes to the population and its states at once, and to the learners in order.

    A donor gives the state that it had before any change of its comparison.
    """

    population: Population = field(metadata=SHARED)
    slots: Slots = field(metadata=SHARED)
    send: Callable[[int, ToLearner], None]
    remembered: frozenset[StateKey] = field(default=frozenset(), init=False)
    """States of the past that are kept for the controller."""
    replacements: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)
    store: Store = field(init=False, metadata=SHARED)
    """Known from `open_store` on."""
    _origins: Origins = field(init=False, metadata=SHARED)
    _kept: dict[StateKey, Key] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """The remembered states in the store."""
    _unsaved: dict[int, Key] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Members that the checkpoint in progress still needs as they are -> their state."""
    _saving: dict[Key, int] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """State -> the pack whose learner writes it."""
    _waiting: dict[Key, list[tuple[int, Pending | None, Callable[[], None]]]] = field(
        default_factory=dict, init=False, metadata=TRANSIENT
    )
    """State -> (member, what is sent to its learner if anything, what is done) once it is there."""
    _sent: dict[int, deque[Pending]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Member -> what its learner has still to prove, oldest first. Decisions are proven whenever the run is saved."""
    _starting: dict[int, list[Key]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Pack -> the states that its learner starts from."""
    _copied_at: float = field(default=0.0, init=False, metadata=TRANSIENT)

    @property
    def busy(self) -> bool:
        """Some decision is not applied yet, or some message waits for a state."""
        decided = any(one.decided is not None for sent in self._sent.values() for one in sent)
        return decided or bool(self._waiting)

    def restored(self) -> None:
        """Check that the remembered states are of members that there are. Raises ValueError."""
        strange = sorted(key for key in self.remembered if key[0] not in self.slots.pack_of)
        if strange:
            raise ValueError(f"the saved state remembers member {strange[0][0]}, and there is none")

    # -- the start of a run -------------------------------------------------------------------------------------

    def open_store(self, store: Store, sources: Iterable[tuple[int, Read]]) -> None:
        """Begin with a store. sources: (member, what reads its state or a remembered one); others are drawn.

        Raises as reading does.
        """
        self.store, self._origins = store, Origins(self.population, store)
        resident = {member for _, member in self._residents()}
        for number, read in sources:
            snapshot = read()
            header = snapshot.header
            source = {"checkpoint": None, "member": number}
            if header.remembered:
                source["generation"] = header.generation
            key = store.add_read(snapshot, Elsewhere(read, source))
            if header.remembered:
                self._kept[number, header.generation] = key
                store.release(key)
                continue
            member = self.population.members[number]
            member.note_counts(header.frames, header.steps, header.updates)
            member.origin = Origin(key, -member.frames)
            if number in resident:
                self._starting.setdefault(self.slots.pack_of[number], []).append(key)
            else:
                member.held = key
        for member in self.population.members:
            if member.origin.key < 0:
                source = {"checkpoint": None, "member": member.id}
                header = SnapshotHeader(member.id, 0, dict(member.values), 0, 0, 0, 0)
                member.origin = Origin(store.add_drawn(header, (member.id, 0), source), -member.frames)
                if member.id not in resident:
                    member.held = store.pin(member.origin.key)

    def _residents(self) -> list[tuple[int, int]]:
        """Return (pack, member) of all members that hold slots."""
        packs = range(len(self.slots.packs))
        return [(pack, m) for pack in packs for m in self.slots.members_of(pack) if m is not None]

    def first_loads(self, pack: int) -> tuple[Load | None, ...]:
        """Return what each slot of a pack holds when its learner starts: the origins of its members."""
        return tuple(
            None if member is None else self._first_load(slot, self.population.members[member])
            for slot, member in enumerate(self.slots.members_of(pack))
        )

    def _first_load(self, slot: int, member: Member) -> Load:
        key, pack = self.store.readable(member.origin.key), self.slots.pack_of[member.id]
        if self.store.drawn(key) == (member.id, 0):
            return self._load(slot, member, drawn=(member.id, 0))
        starting = self._starting.setdefault(pack, [])
        if key not in starting:
            starting.append(self.store.pin(key))
        return self._load(slot, member, entry=self.store.entry(key))

    def started(self, pack: int) -> None:
        """Release what the learner of a pack has started from, since it has read it or will never do."""
        for key in self._starting.pop(pack, ()):
            self.store.unpin(key)

    def send_limits(self, pack: int | None = None) -> None:
        """Tell new learners, or that of one pack, how far the members may train."""
        for member in self.population.members:
            if pack in (None, self.slots.pack_of[member.id]):
                self._send_limit(member)

    def _send_limit(self, member: Member) -> None:
        if member.until_frames is not None:
            self.send(self.slots.pack_of[member.id], TrainUntil(member.id, member.until_frames))
        self._send_evaluation(member)

    def _send_evaluation(self, member: Member) -> None:
        """Tell the learner of a member that it is being evaluated, if it is. A parked one is so in its next turn."""
        if member.evaluates and not member.parked:
            self.send(self.slots.pack_of[member.id], EvaluateMember(member.id, begins=True))

    # -- decisions ----------------------------------------------------------------------------------------------

    def enact(self, changes: Sequence[Change], remembered: frozenset[StateKey]) -> None:
        """Apply the changes of one comparison. remembered: the states that the controller wants kept from now on."""
        decided = time.perf_counter()
        now: dict[int, Key] = {}
        """Members -> their states before any change, pinned."""
        for past in sorted(remembered - self._kept.keys()):
            self._kept[past] = self.store.pin(self._state_now(past[0], now))
        for donor in sorted(self._donors_to_save(changes)):
            self._state_now(donor, now)
        before = {m.id: (m.origin, m.coming) for m in self.population.members}
        origins = [origin.key for pair in before.values() for origin in pair if origin is not None]
        for key in origins:
            self.store.hold(key)
        sources = {c.member: self._source(c, now) for c in changes if c.weights == "copy"}
        for source in sources.values():
            if source is not None:
                self.store.pin(source)
        evaluated = {m.id for m in self.population.members if m.evaluates}
        self.population.apply(changes, remembered)
        for change in changes:
            self._carry_out(change, sources.get(change.member), change.member in evaluated, before, decided)
        for past in sorted(self._kept.keys() - remembered):
            self.store.unpin(self._kept.pop(past))
        for key in now.values():
            self.store.unpin(key)
        for key in origins:
            self.store.release(key)
        self.remembered = remembered

    def _donors_to_save(self, changes: Sequence[Change]) -> set[int]:
        """Return the donors whose present state must be in the store: no slot of the same pack has it then."""
        changed = {c.member for c in changes if c.weights != "keep"}
        found = set()
        for change in changes:
            if change.weights_from is None or change.remembered:
                continue
            donor, member = change.weights_from[0], change.member
            if donor != member and (
                donor in changed
                or self.population.members[member].held is not None
                or self.population.members[donor].held is not None
                or self.slots.pack_of[donor] != self.slots.pack_of[member]
            ):
                found.add(donor)
        return found

    def _source(self, change: Change, now: dict[int, Key]) -> Key | None:
        """Return the state whose weights are copied; None if another slot has it, or the member itself."""
        assert change.weights_from is not None
        if change.remembered:
            return self._kept[change.weights_from]
        donor = change.weights_from[0]
        if donor == change.member:
            return self.population.members[donor].held
        return now.get(donor)

    def _state_now(self, number: int, now: dict[int, Key]) -> Key:
        """Return a member's present state; it is saved if it was not, and pinned in `now`."""
        if number not in now:
            member = self.population.members[number]
            now[number] = self.store.pin(self._save(member) if member.held is None else member.held)
            if member.held is None:
                self.store.release(now[number])
        return now[number]

    def _save(self, member: Member) -> Key:
        """Have a member that holds a slot saved as it is now; returns its state, held once."""
        key = self._unsaved.pop(member.id, None)
        if key is None:
            key = self.store.begin_save(_header(member), member.origin.key)
        else:
            self.store.hold(key)
        self._send_save(member.id, key)
        return key

    def _send_save(self, member: int, key: Key) -> None:
        pack = self.slots.pack_of[member]
        self._saving[key] = pack
        self.send(pack, Save(member, key, self.store.entry_to_write(key)))

    def _carry_out(
        self,
        change: Change,
        source: Key | None,
        evaluated: bool,
        before: dict[int, tuple[Origin, Origin | None]],
        decided: float,
    ) -> None:
        member, pack = self.population.members[change.member], self.slots.pack_of[change.member]
        if (evaluated or change.evaluates) and not member.parked:
            self.send(pack, EvaluateMember(member.id, change.evaluates > 0))
        if change.until_frames is not None:
            self.send(pack, TrainUntil(member.id, change.until_frames))
        if change.values is None:
            return
        self.replacements += change.decision == "replace"
        self.mutations += change.decision == "mutate"
        if change.weights != "keep":
            self._origins.follow(change, source, before)
        self._tell(member, change, source, decided)

    def _tell(self, member: Member, change: Change, source: Key | None, decided: float) -> None:
        """Tell the learner of a member what it is from now on. source: see `_source`."""
        if member.id in self._unsaved:  # the checkpoint in progress needs it as it was
            self._send_save(member.id, self._unsaved.pop(member.id))
        donor = change.source[0] if change.source is not None else None
        pending = Pending(decided, source)
        slot = self.slots.slot_of(member.id)
        assert slot is not None, f"member {member.id} has neither a slot nor a state"
        if change.weights == "keep":
            self._post(
                member.id, pending, SetValues(member.id, change.generation, dict(member.values), donor)
            )
            return
        load = replace(self._load(slot, member), donor=donor)
        if change.weights == "fresh":
            self._post(member.id, pending, replace(load, drawn=(member.id, change.generation)))
        elif source is None:
            assert donor is not None
            self._post(member.id, pending, replace(load, of_slot=self.slots.slot_of(donor)))
        else:
            self._post_state(member.id, pending, load, source)

    # -- messages -----------------------------------------------------------------------------------------------

    def _load(
        self, slot: int, member: Member, entry: int | None = None, drawn: tuple[int, int] | None = None
    ) -> Load:
        counts = Counts(member.frames, member.steps, member.updates)
        return Load(
            slot, member.id, member.generation, dict(member.values), entry, drawn=drawn, counts=counts
        )

    def _post(self, member: int, pending: Pending, message: Load | SetValues) -> None:
        pending.sent = time.perf_counter()
        self._sent.setdefault(member, deque()).append(pending)
        self.send(self.slots.pack_of[member], message)

    def _post_state(self, member: int, pending: Pending, load: Load, key: Key) -> None:
        """Send a load of a pinned state, once it is there or the same learner writes it before."""

        def post() -> None:
            drawn = self.store.drawn(key)
            entry = self.store.entry(key) if drawn is None else None
            self._post(member, pending, replace(load, drawn=drawn, entry=entry))
            if pending.decided is None:
                self._send_limit(self.population.members[member])

        if self._saving.get(key) == self.slots.pack_of[member]:
            post()
        else:
            self._when_saved(key, member, pending, post)

    def _when_saved(self, key: Key, member: int, pending: Pending | None, act: Callable[[], None]) -> None:
        if self.store.is_saved(key):
            act()
        else:
            self._waiting.setdefault(key, []).append((member, pending, act))

    def _act(self, key: Key) -> None:
        for _, _, act in self._waiting.pop(key, ()):
            act()

    def saved(self, message: Saved) -> None:
        """Go on with a state that is there now."""
        del self._saving[message.key]
        header = self.store.saved(message.key)
        member = self.population.members[header.member]
        if member.held == message.key:  # it has left its slot, perhaps after its last report
            member.note_counts(header.frames, header.steps, header.updates)
        self._act(message.key)

    def take_proofs(self) -> list[Applied]:
        """Return the proofs of what no learner was asked for."""
        return []

    def applied(self, proof: Applied) -> Pending:
        """Return what was applied."""
        sent = self._sent[proof.member]
        pending = sent.popleft()
        if not sent:
            del self._sent[proof.member]
        self._forget(pending)
        return pending

    def hand_over(self) -> list[tuple[int, Handover]]:
        """Let slots change hands where it is time; return (pack, handover). Here nobody takes turns."""
        return []

    # -- checkpoints --------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, packs: Iterable[int], *, to_disk: bool
    ) -> list[tuple[Key, SnapshotHeader | None]]:
        """Return every state as it is now, pinned once; no decision may be on its way.

        packs: those that have a learner. to_disk: else the states stay in memory. With each state comes what a file of
        it says besides, or None if its learner is still to save it (`save_next`). What was never drawn is left out.
        """
        here = set(packs)
        self._copied_at = time.monotonic()
        wanted: list[tuple[Key, SnapshotHeader | None]] = []
        resident = {member for pack, member in self._residents() if pack in here}
        for member in self.population.members:
            if member.id in resident:
                key = self.store.begin_save(_header(member), member.origin.key)
                self._unsaved[member.id] = key
                header = None
            else:
                key = self.store.hold(member.origin.key if member.held is None else member.held)
                header = _header(member, self.store.header(key).fresh_frames)
            member.coming = Origin(key, -member.frames, pinned=not to_disk)
            if not to_disk:
                self.store.pin(key)
                self.store.release(key)
            if self.store.drawn(key) != (member.id, 0):
                wanted.append((self.store.pin(key), header))
        for (number, generation), key in sorted(self._kept.items()):
            header = replace(self.store.header(key), member=number, generation=generation, remembered=True)
            wanted.append((self.store.pin(key), header))
        return wanted

    def save_next(self, pack: int) -> bool:
        """Have the next member of a pack saved that the checkpoint needs; return whether there was one."""
        number = next((m for m in self._unsaved if self.slots.pack_of[m] == pack), None)
        if number is None:
            return False
        self._send_save(number, self._unsaved.pop(number))
        return True

    def end_checkpoint(self, *, whole: bool) -> None:
        """Note that the checkpoint is whole, so that members go on from it, or that it was given up."""
        self._unsaved.clear()
        for member in self.population.members:
            former, coming = (member.origin, member.coming) if whole else (member.coming, member.origin)
            if former is not None and coming is not None:
                if whole:  # the checkpoint that holds the former one may be deleted
                    self.store.stand_in(member.id, former.key, coming.key)
                self._origins.release(former)
                member.origin = coming
            member.coming = None

    # -- lost learners ------------------------------------------------------------------------------------------

    def lost(self, pack: int) -> list[dict[str, Any]]:
        """Settle what was on its way to and from a learner that is lost. No checkpoint may be in progress.

        Its members go on from their origins, as all decisions have left them; what it was saving is replaced by what
        stands for it, for others too. Returns what the journal notes of each member that has lost anything. Raises as
        reading a state does.
        """
        self.started(pack)
        mine = sorted(key for key, writer in self._saving.items() if writer == pack)
        members = self.population.members
        hit = [m for m in members if m.held in mine]
        resident = [members[number] for number in self.slots.members_of(pack) if number is not None]
        accounts = [self._account(m) for m in sorted([*hit, *resident], key=lambda m: m.id)]
        for key in mine:
            del self._saving[key]
            self.store.lost(key)
        for number in [n for n in self._sent if self.slots.pack_of[n] == pack]:
            for pending in self._sent.pop(number):
                self._forget(pending)
        for key, waiting in [*self._waiting.items()]:
            left = []
            for one in waiting:
                number, message, _ = one
                if message is None or self.slots.pack_of[number] != pack:
                    left.append(one)
                else:
                    self._forget(message)
            self._waiting[key] = left
            if not left:
                del self._waiting[key]
        for member in [*hit, *resident]:
            member.origin = replace(member.origin, frames=-member.frames)
        for key in mine:
            self._act(key)
        return accounts

    def _forget(self, pending: Pending) -> None:
        if pending.key is not None:
            self.store.unpin(pending.key)

    def _account(self, member: Member) -> dict[str, Any]:
        """Return the frames of training that a member loses, and what it goes on from."""
        key = member.origin.key
        source = self.store.source(key)
        if not source:
            age = {"copy_age_seconds": time.monotonic() - self._copied_at} if self._copied_at else {}
            source = age | {"member": self.store.header(key).member}
        return {"member": member.id, "frames_lost": member.frames_lost, "from": source}


def _header(member: Member, fresh_frames: int = 0) -> SnapshotHeader:
    return SnapshotHeader(
        member.id,
        member.generation,
        dict(member.values),
        member.frames,
        member.steps,
        member.updates,
        fresh_frames,
    )
