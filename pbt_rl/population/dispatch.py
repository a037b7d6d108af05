"""Dispatch of changes: the new state of each member, and the messages to its learner.

Each member is in one of four conditions. Members of a lost learner become lost, except parked members.

    condition   meaning                                      usual next condition, and its cause
    on slot     a learner has the member's weights           saving, when a swap sends Save
    saving      without a slot; a learner writes the state   parked, when the learner sends Saved
    parked      the store has the member's state             on slot, when a swap sends Load
    lost        the learner is lost, or the run starts       parked, when the restore point is read

    change                      message to the learner of the member
    values only                 SetValues
    weights of a donor          Load from the donor's slot, if both have slots of one pack and the donor keeps its
                                weights. Otherwise Load of the donor's state in the store, after Save of a donor with a
                                slot.
    a remembered state          Load of this state
    initialised weights         Load of initialised weights
    change of a parked member   none of these, because the learner does not have the member's state

A learner applies these messages in order. A resumed run and a new learner load the restore points of their members
(`store.RestorePoint`). A replacement changes the restore point too. Therefore, a copy never returns to its former
weights.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
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
from pbt_rl.actors.state_pool import Counts, SavedStates, SnapshotHeader
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import StateKey
from pbt_rl.controllers.state import SHARED, TRANSIENT
from pbt_rl.population.population import Member, Population
from pbt_rl.population.slot_assignment import Swap
from pbt_rl.population.slots import Slots
from pbt_rl.population.store import Key, RestorePoint, State, Store


@dataclass(eq=False)
class Pending:
    """Unacknowledged message to a learner, caused by a change or by a swap into a slot."""

    decided: float | None = None
    """time.perf_counter() at the start of `Dispatch.enact`. None: a swap into a slot caused the message."""
    source: State | None = None
    """State that the message loads. None: the message loads no state."""
    pack: int = -1
    """Number of the learner's pack."""
    sent: float = 0.0
    """time.perf_counter() when the message was sent."""
    proves: bool = True
    """True if the acknowledgement is recorded in the journal. False for the swap of a member whose changes have all
    been applied before.
    """


@dataclass(eq=False)
class Placement:
    """States and messages of one member."""

    restore: RestorePoint
    state: State | None = None
    """State of a member without a slot. A learner may still be writing this state. None: the member has a slot."""
    unsaved: State | None = None
    """State to save for the checkpoint in progress. None without such a state, or after its save was requested."""
    sent: deque[Pending] = field(default_factory=deque)
    """Messages that the learner has not acknowledged, oldest first."""


@dataclass(eq=False)
class Remembered:
    """Remembered state, with the header of its file and its restore point."""

    state: State
    header: SnapshotHeader
    restore: RestorePoint


@dataclass(eq=False)
class Saving:
    """State that a learner is writing.

    pack: number of the learner's pack. restore: restore point that replaces the state if the learner is lost.
    """

    pack: int
    state: State
    restore: RestorePoint
    waiting: list[tuple[Load, Pending]] = field(default_factory=list)
    """Load messages to send when the state is written."""


@dataclass(eq=False)
class Dispatch:
    """Dispatcher of changes. It updates the population and its states, and sends messages to the learners.

    The population and the parked states change immediately. A learner applies changes in the order of its messages. A
    copy gets a remembered state, or the donor's state before any change of the comparison.

    send: function (pack, message) that sends a message to a learner.
    """

    population: Population = field(metadata=SHARED)
    slots: Slots = field(metadata=SHARED)
    send: Callable[[int, ToLearner], None]
    remembered: frozenset[StateKey] = field(default=frozenset(), init=False)
    """Keys of the remembered states."""
    replacements: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)
    unproven: set[int] = field(default_factory=set, init=False)
    """Parked members with a change that no learner has applied yet."""
    store: Store = field(init=False, metadata=SHARED)
    """States of the run. `open_store` sets this field."""
    _placements: list[Placement] = field(default_factory=list, init=False, metadata=TRANSIENT)
    """States and messages of each member, in order of id."""
    _remembered: dict[StateKey, Remembered] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    _saving: dict[Key, Saving] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    _starting: dict[int, dict[int, State]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Pack of a new learner -> member -> state that the learner loads first."""
    _unapplied: set[Pending] = field(default_factory=set, init=False, metadata=TRANSIENT)
    """Messages of decisions that no learner has acknowledged, and messages that wait for a state."""

    @property
    def busy(self) -> bool:
        """True if a learner has not acknowledged a decision, or if a message waits for a state."""
        return bool(self._unapplied)

    def state_of(self, member: int) -> State | None:
        """Return the state of a member without a slot. None: the member has a slot.

        A learner may still be writing this state.
        """
        return self._placements[member].state

    def restored(self) -> None:
        """Raise ValueError if a remembered state belongs to a member that does not exist."""
        strange = sorted(key for key in self.remembered if key[0] not in self.slots.pack_of)
        if strange:
            raise ValueError(f"the saved state remembers member {strange[0][0]}, which does not exist")

    # -- start and loss of learners -----------------------------------------------------------------------------

    def open_store(self, store: Store, saved: SavedStates, saved_in: str | None = None) -> None:
        """Park all members at the start of a run. Members without a saved state get initialised weights.

        saved: (member, generation) -> function that reads a saved state (`SavedStates`).
        saved_in: name of the checkpoint with these states. Raises the errors of reading a checkpoint.
        """
        self.store = store
        store.saved, store.saved_in = saved, saved_in
        for member in self.population.members:
            initialised = (member.id, None) not in saved
            point = RestorePoint(member.id, 0 if initialised else None, initialised)
            self._placements.append(Placement(point))
            self._restore(member)
        for (number, generation), read in saved.items():
            if generation is not None:
                snapshot, state = read(), State(store, number)
                state.fill(snapshot)
                point = RestorePoint(number, generation, frames=-snapshot.header.frames)
                self._remembered[number, generation] = Remembered(state.keep(), snapshot.header, point)

    def _restore(self, member: Member) -> None:
        """Park a member at its restore point. Raises the errors of reading a checkpoint."""
        record = self._placements[member.id]
        state = record.state = self.store.restored(record.restore).keep()
        _note_counts(member, state)
        record.restore = replace(record.restore, frames=-member.frames)

    def first_loads(self, pack: int) -> tuple[Load | None, ...]:
        """Move parked members to the slots of a new learner, and return the first load of each slot.

        An empty slot has None instead of a load.
        """
        starting = self._starting[pack] = {}
        loads: list[Load | None] = []
        for slot, number in enumerate(self.slots.members_of(pack)):
            if number is None:
                loads.append(None)
                continue
            record = self._placements[number]
            assert record.state is not None, f"member {number} is not parked"
            starting[number], record.state = record.state, None
            load = self._load(slot, self.population.members[number])
            loads.append(replace(load, entry=starting[number].entry, initialised=starting[number].seed))
        return tuple(loads)

    def started(self, pack: int) -> None:
        """Release the first states of a new learner. Call this when the learner has read the states or is lost."""
        for state in self._starting.pop(pack, {}).values():
            state.release()

    def lost(self, pack: int) -> list[dict[str, Any]]:
        """Park the members of a lost learner at their restore points. All decisions stay applied.

        Requires that no checkpoint is in progress. States that the learner was writing are replaced with restore points
        too.
        Returns one journal entry for each of these members, with its lost frames. Raises the errors of reading a
        checkpoint.
        """
        members = self.population.members
        self._drop_messages(pack)
        self.started(pack)
        unwritten = [saving for saving in self._saving.values() if saving.pack == pack]
        states = {saving.state for saving in unwritten}
        on_slot = [members[number] for number in self.slots.members_of(pack) if number is not None]
        hit = [member for member in members if self._placements[member.id].state in states]
        accounts = [self._account(member) for member in sorted([*hit, *on_slot], key=lambda m: m.id)]
        for saving in unwritten:
            del self._saving[saving.state.key]
            if saving.state.users > 1:
                saving.state.restore(saving.restore)
        for member in on_slot:
            self._restore(member)
        for member in hit:
            record = self._placements[member.id]
            record.restore = replace(record.restore, frames=-member.frames)
        for saving in unwritten:
            self._post_waiting(saving)
        return accounts

    def _drop_messages(self, pack: int) -> None:
        """Drop the messages to a lost learner, including loads that wait for a state."""
        dropped: list[Pending] = []
        for record in self._placements:
            dropped += [pending for pending in record.sent if pending.pack == pack]
            record.sent = deque(pending for pending in record.sent if pending.pack != pack)
        for saving in self._saving.values():
            dropped += [pending for _, pending in saving.waiting if pending.pack == pack]
            saving.waiting = [(load, pending) for load, pending in saving.waiting if pending.pack != pack]
        for pending in dropped:
            self._settle(pending)

    def _account(self, member: Member) -> dict[str, Any]:
        """Return a journal entry with the member's lost training frames and its restore point."""
        point = self._placements[member.id].restore
        lost = point.frames + member.frames
        return {"member": member.id, "frames_lost": lost, "from": self.store.source(point)}

    def scatter(self, pack: int) -> list[tuple[int, int]]:
        """Distribute the members of a pack over the running packs, because its machine is gone.

        Return (member, new pack) pairs.
        """
        moved = self.slots.scatter(pack)
        if moved:
            for number, state in self._starting.pop(pack, {}).items():
                self._placements[number].state = state
        return moved

    def send_limits(self, pack: int | None = None) -> None:
        """Send frame limits and evaluations to new learners. pack: pack of the new learner. None: all packs."""
        for member in self.population.members:
            if pack in (None, self.slots.pack_of[member.id]):
                self._send_limit(member)

    def _send_limit(self, member: Member) -> None:
        if member.until_frames is not None:
            self.send(self.slots.pack_of[member.id], TrainUntil(member.id, member.until_frames))
        if member.evaluates and not member.parked:  # a parked member is evaluated in its next time slice
            self.send(self.slots.pack_of[member.id], EvaluateMember(member.id, begins=True))

    # -- decisions ----------------------------------------------------------------------------------------------

    def enact(self, changes: Sequence[Change], remembered: frozenset[StateKey]) -> list[Acknowledgement]:
        """Apply the changes of one comparison. Return the acknowledgements of parked members.

        remembered: keys of the states that the controller remembers after the comparison.
        """
        decided = time.perf_counter()
        present: dict[int, State] = {}
        """Member -> its state before the comparison. Released at the end of this function."""
        for past in sorted(remembered - self._remembered.keys()):
            self._remember(past, present)
        for donor in sorted(self._donors_to_save(changes)):
            self._present(donor, present)
        weights = {c.member: self._weights(c, present) for c in changes if c.weights != "keep"}
        evaluated = {m.id for m in self.population.members if m.evaluates}
        self.population.apply(changes, remembered)
        acks = []
        for change in changes:
            self._change_limits(change, change.member in evaluated)
            if change.values is None:
                continue
            self.replacements += change.decision == "replace"
            self.mutations += change.decision == "mutate"
            record = self._placements[change.member]
            state, restore = weights.get(change.member, (None, record.restore))
            if record.state is None:
                self._tell(change, state, decided)
            else:
                acks.append(self._change_parked(change, state))
            record.restore = restore
        for past in self._remembered.keys() - remembered:
            self._remembered.pop(past).state.release()
        for present_state in present.values():
            present_state.release()
        self.remembered = remembered
        return acks

    def _remember(self, past: StateKey, present: dict[int, State]) -> None:
        number, generation = past
        header = _header(self.population.members[number])
        header = replace(header, generation=generation, remembered=True)
        state = self._present(number, present).keep()
        self._remembered[past] = Remembered(state, header, self._placements[number].restore)

    def _donors_to_save(self, changes: Sequence[Change]) -> set[int]:
        """Return the donors whose state must be in the store, because a copy cannot be loaded from the donor's slot."""
        changed = {c.member for c in changes if c.weights != "keep"}
        found = set()
        for change in changes:
            if change.weights_from is None or change.remembered:
                continue
            donor, member = change.weights_from[0], change.member
            if donor != member and (
                donor in changed
                or self._placements[member].state is not None
                or self._placements[donor].state is not None
                or self.slots.pack_of[donor] != self.slots.pack_of[member]
            ):
                found.add(donor)
        return found

    def _present(self, number: int, present: dict[int, State]) -> State:
        """Return a member's present state. Request a save if necessary, and cache the state in `present`."""
        if number not in present:
            present[number] = (self._placements[number].state or self._save(number)).keep()
        return present[number]

    def _weights(self, change: Change, present: dict[int, State]) -> tuple[State | None, RestorePoint]:
        """Return the state with the new weights of a member, and the member's new restore point.

        A state of None means that the weights are copied from the donor's slot.
        """
        member = self.population.members[change.member]
        if change.weights == "fresh":
            seed = (member.id, change.generation)
            state = State(self.store, member.id, seed, member.frames)
            return state, RestorePoint(*seed, initialised=True, frames=-member.frames)
        assert change.weights_from is not None
        if change.remembered:
            past = self._remembered[change.weights_from]
            return past.state, past.restore.moved(past.header.frames - member.frames)
        donor = self.population.members[change.weights_from[0]]
        record = self._placements[donor.id]
        weights = record.state if donor is member else present.get(donor.id)
        return weights, record.restore.moved(donor.frames - member.frames)

    def _change_limits(self, change: Change, evaluated: bool) -> None:
        member, pack = self.population.members[change.member], self.slots.pack_of[change.member]
        if (evaluated or change.evaluates) and not member.parked:
            self.send(pack, EvaluateMember(member.id, change.evaluates > 0))
        if change.until_frames is not None:
            self.send(pack, TrainUntil(member.id, change.until_frames))

    def _tell(self, change: Change, state: State | None, decided: float) -> None:
        """Send a change to the member's learner.

        state: state with new weights. None: the weights stay the same, or are copied from the donor's slot.
        """
        member, pending = self.population.members[change.member], Pending(decided)
        if (
            self._placements[member.id].unsaved is not None
        ):  # the checkpoint needs the state before the change
            self._save(member.id)
        self._unapplied.add(pending)
        donor = _donor(change)
        if change.weights == "keep":
            message = SetValues(member.id, change.generation, dict(member.values), donor)
            self._post(member.id, message, pending)
            return
        slot = self.slots.slot_of(member.id)
        assert slot is not None, f"member {member.id} has neither a slot nor a state"
        load = replace(self._load(slot, member), donor=donor)
        if state is None:
            assert donor is not None
            self._post(member.id, replace(load, of_slot=self.slots.slot_of(donor)), pending)
        else:
            self._load_state(load, state, pending)

    def _change_parked(self, change: Change, state: State | None) -> Acknowledgement:
        """Apply a change to a member without a slot. state: state with new weights. None: the weights stay the same."""
        self.unproven.add(change.member)
        if state is not None:
            self._park(change.member, state)
        return Acknowledgement(
            change.member,
            _donor(change),
            change.generation,
            0.0,
            {},
            {},
            {},
            donor_unchanged=True,
            parked=True,
        )

    def _park(self, number: int, state: State | None) -> None:
        """Replace the state of a member in the store. state: None if the member takes a slot."""
        record = self._placements[number]
        former, record.state = record.state, None if state is None else state.keep()
        if former is not None:
            former.release()

    # -- swaps --------------------------------------------------------------------------------------------------

    def swap_slots(self) -> list[tuple[int, Swap]]:
        """Apply the swaps that are due, and return (pack, swap) of each."""
        swaps = self.slots.assign()
        for pack, swap in swaps:
            self._swap(pack, swap)
        return swaps

    def _swap(self, pack: int, swap: Swap) -> None:
        """Save the member that leaves a slot, and load the member that enters the slot."""
        if swap.leaves is not None:
            self._park(swap.leaves, self._save(swap.leaves))
        if swap.enters is None:
            self.send(pack, Load(swap.slot, None, 0, {}))
            return
        member = self.population.members[swap.enters]
        state = self._placements[member.id].state
        assert state is not None, f"member {member.id} is not parked"
        pending = Pending(proves=member.id in self.unproven)
        self.unproven.discard(member.id)
        self._load_state(self._load(swap.slot, member), state, pending)
        self._park(member.id, None)

    # -- messages -----------------------------------------------------------------------------------------------

    def _load(self, slot: int, member: Member) -> Load:
        counts = Counts(member.frames, member.steps, member.updates)
        return Load(slot, member.id, member.generation, dict(member.values), counts=counts)

    def _load_state(self, load: Load, state: State, pending: Pending) -> None:
        """Send a message that loads a state. If the state is not written yet, the message waits."""
        assert load.member is not None
        pending.source, pending.pack = state.keep(), self.slots.pack_of[load.member]
        if state.ready:
            self._post_load(load, pending)
        else:
            self._unapplied.add(pending)
            self._saving[state.key].waiting.append((load, pending))

    def _post_load(self, load: Load, pending: Pending) -> None:
        assert load.member is not None
        assert pending.source is not None
        self._post(
            load.member, replace(load, entry=pending.source.entry, initialised=pending.source.seed), pending
        )
        if pending.decided is None:
            self._unapplied.discard(pending)
            self._send_limit(self.population.members[load.member])

    def _post(self, number: int, message: Load | SetValues, pending: Pending) -> None:
        pending.pack, pending.sent = self.slots.pack_of[number], time.perf_counter()
        self._placements[number].sent.append(pending)
        self.send(pending.pack, message)

    def _post_waiting(self, saving: Saving) -> None:
        for load, pending in saving.waiting:
            self._post_load(load, pending)
        saving.state.release()

    def _save(self, number: int) -> State:
        """Request a save of a member with a slot. Return its state, which the learner has not written yet."""
        record, pack = self._placements[number], self.slots.pack_of[number]
        state, record.unsaved = record.unsaved or State(self.store, number), None
        self._saving[state.key] = Saving(pack, state.keep(), record.restore)
        self.send(pack, Save(number, state.key, state.begin()))
        return state

    def saved(self, message: Saved) -> State:
        """Mark a state as written, send the loads that waited for the state, and return the state."""
        saving = self._saving.pop(message.key)
        state, member = saving.state, self.population.members[saving.state.member]
        state.saved()
        if self._placements[member.id].state is state:  # the member has left its slot
            _note_counts(member, state)
        self._post_waiting(saving)
        return state

    def applied(self, ack: Acknowledgement) -> Pending:
        """Process an acknowledgement, and return the acknowledged message."""
        pending = self._placements[ack.member].sent.popleft()
        self._settle(pending)
        return pending

    def _settle(self, pending: Pending) -> None:
        self._unapplied.discard(pending)
        if pending.source is not None:
            pending.source.release()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def begin_checkpoint(self, packs: Collection[int]) -> list[tuple[State, SnapshotHeader]]:
        """Return (state, header of its file) for each state of the checkpoint. Requires that no decision is pending.

        packs: packs with a learner. Members on slots of these packs are saved later, one per call of `save_next`. The
        caller must release each returned state. Initial states are left out, because the seed of the run determines
        them.
        """
        wanted: list[tuple[State, SnapshotHeader]] = []
        for member in self.population.members:
            record, state = self._placements[member.id], self._to_save(member, packs)
            initial = state.seed == (member.id, 0)
            pending = RestorePoint(member.id, 0 if initial else None, initial, -member.frames)
            record.restore = replace(record.restore, pending=pending)
            if not initial:
                wanted.append((state.keep(), _header(member)))
        for (number, generation), past in sorted(self._remembered.items()):
            pending = RestorePoint(number, generation, frames=-past.header.frames)
            past.restore = replace(past.restore, pending=pending)
            wanted.append((past.state.keep(), past.header))
        return wanted

    def _to_save(self, member: Member, packs: Collection[int]) -> State:
        """Return the state of a member for a checkpoint. packs: packs with a learner."""
        record = self._placements[member.id]
        if record.state is not None:
            return record.state
        if self.slots.pack_of[member.id] in packs:
            record.unsaved = State(self.store, member.id)
            return record.unsaved
        return self.store.restored(record.restore)

    def save_next(self, pack: int) -> bool:
        """Request the save of the pack's next member for the checkpoint. Return False if no member is left."""
        for number in self.slots.members_of(pack):
            if number is not None and self._placements[number].unsaved is not None:
                self._save(number)
                return True
        return False

    def end_checkpoint(self, saved: SavedStates | None, saved_in: str | None = None) -> None:
        """End a checkpoint. If the checkpoint is complete, its states become the restore points.

        saved: states of the complete checkpoint. None: the checkpoint was aborted. saved_in: name of the checkpoint.
        """
        for record in self._placements:
            record.unsaved = None
        restorable: list[Placement | Remembered | Saving]
        restorable = [*self._placements, *self._remembered.values(), *self._saving.values()]
        for one in restorable:
            one.restore = one.restore.settled(whole=saved is not None)
        if saved is not None:
            self.store.saved, self.store.saved_in = saved, saved_in


def _note_counts(member: Member, state: State) -> None:
    """Update a member's frames, steps and updates from a state, unless the state is of another member."""
    if state.member == member.id:
        member.note_counts(state.counts.frames, state.counts.steps, state.counts.updates)


def _donor(change: Change) -> int | None:
    return None if change.source is None else change.source[0]


def _header(member: Member) -> SnapshotHeader:
    return SnapshotHeader(
        member.id,
        member.generation,
        dict(member.values),
        member.frames,
        member.steps,
        member.updates,
        fresh_frames=0,
    )
