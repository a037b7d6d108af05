"""Dispatch of changes: the new state of each member, and the messages to its learner.

    change                 message to the learner of the member
    values only            SetValues
    weights of a member    Load from another slot, on the device, if that is in the same pack and unchanged.
                           Otherwise Save of the donor, then Load of that state.
    a remembered state     Load of that state
    initialised weights    Load of initialised weights
    of a parked member     none: only its state in the store changes
    swap of a slot         Save of the member that leaves, Load of the state of the member that enters

A learner processes its messages in order, so it can load a state that it was just told to save. Another learner gets
its message once the state has been written.

Restore points (`store.Origin`) follow the decisions: they are what members go on from if their learner is lost. A
member with copied weights never returns to its own older ones. It goes on from the donor's restore point, or from
initialised weights, which are initialised again. During a checkpoint each member has two restore points: the present
one, and the one for when the checkpoint is complete.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pbt_rl.actors.messages import (
    Acknowledgement,
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
from pbt_rl.population.population import Member, Population
from pbt_rl.population.slot_assignment import Handover
from pbt_rl.population.slots import Slots
from pbt_rl.population.store import Elsewhere, Key, Origin, Pin, State, Store

Read = Callable[[], MemberSnapshot]
Origins = dict[int, Origin]


@dataclass
class Pending:
    """Decision, or swap into a slot, that its learner has not acknowledged yet."""

    decided: float | None
    """time.perf_counter() at the decision of the controller. None: a swap into a slot."""
    source: Pin | None = None
    """State that is loaded."""
    sent: float = 0.0
    """time.perf_counter() when the message was sent."""
    proves: bool = True
    """The acknowledgement is recorded: of a decision, or of one made while the member had no slot."""


@dataclass
class Waiting:
    """Action for when a state has been written. message: the learner then acknowledges it, if not None."""

    source: Pin
    member: int
    message: Pending | None
    act: Callable[[], None]


@dataclass(eq=False)
class Dispatch:
    """Dispatcher of changes to the population, its states and the learners.

    The population and its states change at once; each learner changes in the order of its messages.

    A donor gives the state that it had before all changes of its comparison.
    """

    population: Population = field(metadata=SHARED)
    slots: Slots = field(metadata=SHARED)
    send: Callable[[int, ToLearner], None]
    remembered: frozenset[StateKey] = field(default=frozenset(), init=False)
    """Earlier states that are kept for the controller."""
    replacements: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)
    unproven: set[int] = field(default_factory=set, init=False)
    """Parked members with a change that no learner has applied yet."""
    store: Store = field(init=False, metadata=SHARED)
    """Set by `open_store`."""
    held: dict[int, Pin] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """States of the parked members."""
    _origins: Origins = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Restore point of each member."""
    _coming: Origins = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Restore point of each member once the checkpoint in progress is complete."""
    _kept: dict[StateKey, Pin] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Remembered states."""
    _unsaved: dict[int, State] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Members that the checkpoint in progress still needs unchanged -> their state."""
    _renewed: dict[Key, dict[int, State]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Key of a restore point at the start of the checkpoint in progress -> member -> its state in it."""
    _saving: dict[Key, tuple[int, Pin]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """States that learners are writing, with their pack."""
    _waiting: dict[Key, list[Waiting]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Actions for when a state has been written."""
    _sent: dict[int, deque[Pending]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Messages without acknowledgement per member, oldest first. A checkpoint waits for those of decisions."""
    _decided: dict[int, Pending] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Parked member -> the decision that changed it, until its acknowledgement was taken."""
    _acks: list[Acknowledgement] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """Acknowledgements of decisions that needed no message."""
    _starting: defaultdict[int, list[Pin]] = field(
        default_factory=lambda: defaultdict(list), init=False, metadata=TRANSIENT
    )
    """Pack -> states that its learner starts from."""
    _copied_at: float = field(default=0.0, init=False, metadata=TRANSIENT)

    @property
    def busy(self) -> bool:
        """True if a decision is not applied yet or a message waits for a state."""
        decided = any(one.decided is not None for sent in self._sent.values() for one in sent)
        return decided or bool(self._waiting) or bool(self._decided)

    def restored(self) -> None:
        """Check that the members of the remembered states exist. Raises ValueError."""
        strange = sorted(key for key in self.remembered if key[0] not in self.slots.pack_of)
        if strange:
            raise ValueError(f"the saved state remembers member {strange[0][0]}, which does not exist")

    # -- the start of a run -------------------------------------------------------------------------------------

    def open_store(self, store: Store, sources: Iterable[tuple[int, Read]]) -> None:
        """Fill the store at the start of a run.

        sources: (member, reader of its state or of a remembered one). Other members start from initialised weights.
        Raises as reading does.
        """
        self.store = store
        resident = {member for _, member in self._residents()}
        for number, read in sources:
            snapshot = read()
            header = snapshot.header
            source = {"checkpoint": None, "member": number}
            if header.remembered:
                source["generation"] = header.generation
            pin = store.add_read(snapshot, Elsewhere(read, source))
            if header.remembered:
                self._kept[number, header.generation] = pin
                continue
            member = self.population.members[number]
            member.note_counts(header.frames, header.steps, header.updates)
            self._origins[number] = Origin(pin.state, -member.frames)
            if number in resident:
                self._starting[self.slots.pack_of[number]].append(pin)
            else:
                self.held[number] = pin
        for member in self.population.members:
            if member.id not in self._origins:
                source = {"checkpoint": None, "member": member.id}
                header = SnapshotHeader(member.id, 0, dict(member.values), 0, 0, 0, 0)
                state = store.add_drawn(header, (member.id, 0), source)
                self._origins[member.id] = Origin(state, -member.frames)
                if member.id not in resident:
                    self.held[member.id] = Pin(state)

    def _residents(self) -> list[tuple[int, int]]:
        """Return (pack, member) of all members with slots."""
        packs = range(len(self.slots.packs))
        return [(pack, m) for pack in packs for m in self.slots.members_of(pack) if m is not None]

    def first_loads(self, pack: int) -> tuple[Load | None, ...]:
        """Return the first load of each slot of a pack: the restore point of its member."""
        return tuple(
            None if member is None else self._first_load(pack, slot, self.population.members[member])
            for slot, member in enumerate(self.slots.members_of(pack))
        )

    def _first_load(self, pack: int, slot: int, member: Member) -> Load:
        state = self._origins[member.id].state.readable
        if state.drawn == (member.id, 0):
            return self._load(slot, member, drawn=(member.id, 0))
        self._starting[pack].append(Pin(state))
        return self._load(slot, member, entry=state.entry())

    def started(self, pack: int) -> None:
        """Release the first loads of a pack, once its learner has read them or failed."""
        self._starting.pop(pack, None)

    def send_limits(self, pack: int | None = None) -> None:
        """Send the frame limits of the members to new learners. pack: to this one only."""
        for member in self.population.members:
            if pack in (None, self.slots.pack_of[member.id]):
                self._send_limit(member)

    def _send_limit(self, member: Member) -> None:
        if member.until_frames is not None:
            self.send(self.slots.pack_of[member.id], TrainUntil(member.id, member.until_frames))
        if member.evaluates and not member.parked:  # a parked one is evaluated in its next time slice
            self.send(self.slots.pack_of[member.id], EvaluateMember(member.id, begins=True))

    # -- decisions ----------------------------------------------------------------------------------------------

    def enact(self, changes: Sequence[Change], remembered: frozenset[StateKey]) -> None:
        """Apply the changes of one comparison. remembered: states to keep for the controller from now on."""
        decided = time.perf_counter()
        now: dict[int, Pin] = {}
        """Members -> their states before any change."""
        for past in sorted(remembered - self._kept.keys()):
            self._kept[past] = self._state_now(past[0], now)
        for donor in sorted(self._donors_to_save(changes)):
            self._state_now(donor, now)
        before = dict(self._origins), dict(self._coming)
        sources = {c.member: self._source(c, now) for c in changes if c.weights == "copy"}
        evaluated = {m.id for m in self.population.members if m.evaluates}
        self.population.apply(changes, remembered)
        for change in changes:
            self._carry_out(change, sources.get(change.member), change.member in evaluated, before, decided)
        for past in self._kept.keys() - remembered:
            del self._kept[past]
        self.remembered = remembered

    def _donors_to_save(self, changes: Sequence[Change]) -> set[int]:
        """Return the donors to save, because no slot of the pack can be copied."""
        changed = {c.member for c in changes if c.weights != "keep"}
        found = set()
        for change in changes:
            if change.weights_from is None or change.remembered:
                continue
            donor, member = change.weights_from[0], change.member
            if donor != member and (
                donor in changed
                or member in self.held
                or donor in self.held
                or self.slots.pack_of[donor] != self.slots.pack_of[member]
            ):
                found.add(donor)
        return found

    def _source(self, change: Change, now: dict[int, Pin]) -> Pin | None:
        """Return the state to copy. None: another slot has it, or the member itself."""
        assert change.weights_from is not None
        if change.remembered:
            return self._kept[change.weights_from]
        donor = change.weights_from[0]
        return self.held.get(donor) if donor == change.member else now.get(donor)

    def _state_now(self, number: int, now: dict[int, Pin]) -> Pin:
        """Return a member's present state, saved if necessary and cached in `now`."""
        if number not in now:
            now[number] = self.held.get(number) or self._save(self.population.members[number])
        return now[number]

    def _save(self, member: Member) -> Pin:
        """Request a save of a member with a slot, and return its future state."""
        state = self._unsaved.pop(member.id, None) or self._unwritten(member)
        return self._send_save(member.id, state)

    def _unwritten(self, member: Member) -> State:
        """Return the member's present state, which its learner will write."""
        return State(self.store, _header(member), before=self._origins[member.id].state)

    def _send_save(self, member: int, state: State) -> Pin:
        pack, pin = self.slots.pack_of[member], Pin(state)
        self._saving[state.key] = (pack, pin)
        self.send(pack, Save(member, state.key, state.entry(to_write=True)))
        return pin

    def _carry_out(
        self,
        change: Change,
        source: Pin | None,
        evaluated: bool,
        before: tuple[Origins, Origins],
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
            self._follow(change, source, before)
        if member.id in self.held:
            self._change_parked(member, change, source, decided)
        else:
            self._tell(member, change, source, decided)

    def _follow(self, change: Change, source: Pin | None, before: tuple[Origins, Origins]) -> None:
        """Update a member's restore points to those of its new weights.

        source: remembered state that is copied. before: restore points of all members before the comparison.
        """
        member = self.population.members[change.member]
        if change.weights == "fresh":
            header = SnapshotHeader(member.id, change.generation, {}, 0, 0, 0, member.frames)
            state = self.store.add_drawn(header, (member.id, change.generation))
            given = Origin(state, -member.frames)
        elif change.remembered:
            assert source is not None
            given = Origin(source.state, -member.frames, source)
        else:
            assert change.weights_from is not None
            donor = self.population.members[change.weights_from[0]]
            for origins, former in zip((self._origins, self._coming), before, strict=True):
                if donor.id in former:
                    origin = former[donor.id]
                    moved = origin.frames + donor.frames - member.frames
                    origins[member.id] = replace(origin, frames=moved)
            return
        self._origins[member.id] = given
        if self._coming:
            self._coming[member.id] = given

    def _tell(self, member: Member, change: Change, source: Pin | None, decided: float) -> None:
        """Send a change to the learner of a member. source: see `_source`."""
        if member.id in self._unsaved:  # the checkpoint in progress needs it unchanged
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

    def _change_parked(self, member: Member, change: Change, source: Pin | None, decided: float) -> None:
        """Apply a change to a parked member."""
        self.unproven.add(member.id)
        self._decided[member.id] = Pending(decided, sent=time.perf_counter())
        donor = change.source[0] if change.source is not None else None
        ack = Acknowledgement(
            member.id, donor, change.generation, 0.0, {}, {}, {}, donor_unchanged=True, parked=True
        )
        if change.weights == "fresh":
            self.held[member.id] = Pin(self._origins[member.id].state)
        if source is None:
            self._acks.append(ack)
        else:
            self.held[member.id] = source
            self._when_saved(source, member.id, None, lambda: self._acks.append(ack))

    # -- swaps --------------------------------------------------------------------------------------------------

    def hand_over(self) -> list[tuple[int, Handover]]:
        """Swap the members that are due, and return (pack, swap)."""
        moves = self.slots.assign()
        for pack, handover in moves:
            self.pass_slot(pack, handover)
        return moves

    def pass_slot(self, pack: int, handover: Handover) -> None:
        """Swap the member of a slot, and save the one that leaves."""
        members = self.population.members
        if handover.leaves is not None:
            self.held[handover.leaves] = self._save(members[handover.leaves])
        if handover.enters is None:
            self.send(pack, Load(handover.slot, None, 0, {}))
            return
        member = members[handover.enters]
        source = self.held.pop(member.id)
        pending = Pending(None, source, proves=member.id in self.unproven)
        self.unproven.discard(member.id)
        self._post_state(member.id, pending, self._load(handover.slot, member), source)

    def scatter(self, pack: int) -> list[tuple[int, int]]:
        """Park the members of a lost pack in running ones, and return (member, new pack)."""
        resident = self.slots.members_of(pack)
        moved = self.slots.scatter(pack)
        if moved:
            self.started(pack)
            self.held |= {m: Pin(self._origins[m].state) for m in resident if m is not None}
        return moved

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

    def _post_state(self, member: int, pending: Pending, load: Load, source: Pin) -> None:
        """Send a load of a state, once it was written or the same learner writes it before."""
        state, pack = source.state, self.slots.pack_of[member]

        def post() -> None:
            entry = state.entry() if state.drawn is None else None
            self._post(member, pending, replace(load, drawn=state.drawn, entry=entry))
            if pending.decided is None:
                self._send_limit(self.population.members[member])

        if state.key in self._saving and self._saving[state.key][0] == pack:
            post()
        else:
            self._when_saved(source, member, pending, post)

    def _when_saved(self, source: Pin, member: int, message: Pending | None, act: Callable[[], None]) -> None:
        if source.state.before is None:
            act()
        else:
            self._waiting.setdefault(source.state.key, []).append(Waiting(source, member, message, act))

    def _act(self, key: Key) -> None:
        for one in self._waiting.pop(key, ()):
            one.act()

    def saved(self, message: Saved) -> State:
        """Process a written state, and run the actions that waited for it."""
        _, pin = self._saving.pop(message.key)
        state = pin.state
        state.saved()
        header = state.header
        held = self.held.get(header.member)
        if held is not None and held.state is state:  # it left its slot, possibly after its last report
            member = self.population.members[header.member]
            member.note_counts(header.frames, header.steps, header.updates)
        self._act(state.key)
        return state

    def take_acks(self) -> list[Acknowledgement]:
        """Return the acknowledgements of decisions that needed no message."""
        acks, self._acks = self._acks, []
        return acks

    def applied(self, ack: Acknowledgement) -> Pending:
        """Return the acknowledged message."""
        if ack.parked:
            return self._decided.pop(ack.member)
        sent = self._sent[ack.member]
        pending = sent.popleft()
        if not sent:
            del self._sent[ack.member]
        return pending

    # -- checkpoints --------------------------------------------------------------------------------------------

    def begin_checkpoint(
        self, packs: Iterable[int], *, to_disk: bool
    ) -> list[tuple[Pin, SnapshotHeader | None]]:
        """Return every present state. No decision may be pending.

        packs: those with a learner. to_disk: False keeps the states in memory only. Each state has the header for its
        file, or None if its learner must save it first (`save_next`). States that can be initialised from the seed of
        the run are omitted.
        """
        here = set(packs)
        self._copied_at = time.monotonic()
        wanted: list[tuple[Pin, SnapshotHeader | None]] = []
        resident = {member for pack, member in self._residents() if pack in here}
        for member in self.population.members:
            if member.id in resident:
                state = self._unsaved[member.id] = self._unwritten(member)
                header = None
            else:
                held = self.held.get(member.id)
                state = self._origins[member.id].state if held is None else held.state
                header = _header(member, state.header.fresh_frames)
            self._coming[member.id] = Origin(state, -member.frames, None if to_disk else Pin(state))
            self._renewed.setdefault(self._origins[member.id].state.key, {})[member.id] = state
            if state.drawn != (member.id, 0):
                wanted.append((Pin(state), header))
        for number, generation in sorted(self._kept):
            pin = self._kept[number, generation]
            header = replace(pin.state.header, member=number, generation=generation, remembered=True)
            wanted.append((pin, header))
        return wanted

    def save_next(self, pack: int) -> bool:
        """Request the next save that the checkpoint needs from a pack. False if there is none."""
        number = next((m for m in self._unsaved if self.slots.pack_of[m] == pack), None)
        if number is None:
            return False
        self._send_save(number, self._unsaved.pop(number))
        return True

    def end_checkpoint(self, *, whole: bool) -> None:
        """Switch to the restore points of a complete checkpoint; else discard them."""
        self._unsaved.clear()
        coming, self._coming = self._coming, {}
        renewed, self._renewed = self._renewed, {}
        if not whole:
            return
        for _, pin in self._saving.values():  # the checkpoint of its substitute may be deleted
            number, before = pin.state.header.member, pin.state.before
            if before is self._origins[number].state:
                pin.state.before = coming[number].state
            elif (
                before is not None and before.key in renewed
            ):  # the member has been given other weights since
                of = renewed[before.key]
                pin.state.before = of.get(number, next(iter(of.values())))
        self._origins = coming

    # -- lost learners ------------------------------------------------------------------------------------------

    def lost(self, pack: int) -> list[dict[str, Any]]:
        """Settle the messages and states of a lost learner. No checkpoint may be in progress.

        Its members return to their restore points, with all decisions applied. A member that had just received a slot
        returns to the state that it entered with. The states that the learner was saving are replaced by their
        substitutes, for other members too. Returns the journal entries of the members that lost frames. Raises as
        reading a state does.
        """
        members = self.population.members
        for number in [n for n in self._sent if self.slots.pack_of[n] == pack]:
            entered, *others = self._sent.pop(number)
            if entered.decided is None and not others:
                assert entered.source is not None
                frames = -members[number].frames
                self._origins[number] = Origin(entered.source.state, frames, entered.source)
        self.started(pack)
        mine = sorted(key for key, (writer, _) in self._saving.items() if writer == pack)
        hit = [members[number] for number, pin in self.held.items() if pin.state.key in mine]
        resident = [members[number] for number in self.slots.members_of(pack) if number is not None]
        accounts = [self._account(m) for m in sorted([*hit, *resident], key=lambda m: m.id)]
        for key in mine:
            state = self._saving.pop(key)[1].state
            state.lost()
        for key, waiting in [*self._waiting.items()]:
            left = [one for one in waiting if one.message is None or self.slots.pack_of[one.member] != pack]
            self._waiting[key] = left
            if not left:
                del self._waiting[key]
        for member in [*hit, *resident]:
            self._origins[member.id] = replace(self._origins[member.id], frames=-member.frames)
        for key in mine:
            self._act(key)
        return accounts

    def _account(self, member: Member) -> dict[str, Any]:
        """Return a member's lost training frames and its restore point, for the journal."""
        origin = self._origins[member.id]
        source = origin.state.source
        if not source:
            age = {"copy_age_seconds": time.monotonic() - self._copied_at} if self._copied_at else {}
            source = age | {"member": origin.state.header.member}
        return {"member": member.id, "frames_lost": origin.frames + member.frames, "from": source}


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
