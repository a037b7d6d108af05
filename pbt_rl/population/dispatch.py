"""The way of changes to the learners: each becomes an edit of a member, sent in order, one comparison at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pbt_rl.pbt.changes import Change
from pbt_rl.pbt.decisions import StateKey
from pbt_rl.pbt.state import SHARED, TRANSIENT
from pbt_rl.population.population import Population
from pbt_rl.wire.messages import (
    AdmitMember,
    Applied,
    Edit,
    EvaluateMember,
    ExportMember,
    ForgetMember,
    ReleaseMember,
    RememberMember,
    ToLearner,
    TrainUntil,
)

Fill = Callable[[int], int]
"""Writes the weights that a member is given into the exchange memory, shrunk if they are to be; returns the donor's
frames when they were drawn."""
BORROWED = -1
"""Stands for the generation of a donor that is remembered because the same comparison changes it."""


@dataclass
class Pending:
    """An edit on its way to a learner."""

    edit: Edit
    decided: float
    """time.perf_counter() when the controller had decided."""
    crosses: bool
    """The donor is on another pack: its state is exported first."""
    sent: float = 0.0
    """time.perf_counter() when the edit was sent last."""
    exported: bool = False
    """The donor's state lies in the exchange memory, and the edit was sent."""
    fill: Fill | None = None
    """Set if the donor's learner is lost."""


@dataclass(eq=False)
class Dispatch:
    """Applies changes to the population at once, and to the learners in order.

    A donor that the same comparison changes is remembered first, so that it gives the state from before. States that
    the controller wants remembered are kept before any edit is sent, and forgotten after all of them were.
    """

    population: Population = field(metadata=SHARED)
    pack_of: Mapping[int, int]
    send: Callable[[int, ToLearner], None]
    exchange_per_pack: bool = field(default=False, kw_only=True)
    """Edits of different packs may cross at the same time; else one memory serves all packs, and one edit at a time."""
    remembered: frozenset[StateKey] = field(default=frozenset(), init=False)
    """States of the past that the learners keep."""
    replacements: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)
    _queue: deque[Pending | tuple[int, ToLearner]] = field(
        default_factory=deque, init=False, metadata=TRANSIENT
    )
    """Empty whenever a state is saved, as is `_sent`."""
    _sent: dict[int, Pending] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    _void_exports: set[int] = field(default_factory=set, init=False, metadata=TRANSIENT)
    """Donors that are being exported for nobody any more: until that is done, the exchange memory is taken."""
    _journeys: dict[int, int] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Member that its pack was asked to release -> the pack that it moves to."""

    @property
    def busy(self) -> bool:
        """Some message waits, or some edit is not applied yet, or some member is on its way to another pack."""
        return bool(self._queue or self._sent or self._journeys)

    def send_limits(self, pack: int | None = None) -> None:
        """Tell new learners, or that of one pack, how far the members may train."""
        for member in self.population.members:
            if pack in (None, self.pack_of[member.id]):
                self.send_limit(member.id)

    def restored(self) -> None:
        """Check that the remembered states are of members that there are. Raises ValueError."""
        strange = sorted(key for key in self.remembered if key[0] not in self.pack_of)
        if strange:
            raise ValueError(f"the saved state remembers member {strange[0][0]}, and there is none")

    def enact(self, changes: Sequence[Change], remembered: frozenset[StateKey]) -> None:
        """Apply the changes of one comparison. remembered: the states that the controller wants kept from now on."""
        decided = time.perf_counter()
        borrowed = _changing_donors(changes)
        for key in [
            *sorted(remembered - self.remembered),
            *((donor, BORROWED) for donor in sorted(borrowed)),
        ]:
            self._queue.append((self.pack_of[key[0]], RememberMember(*key)))
        for change in changes:
            self._take(change, borrowed, decided)
        for key in [
            *sorted(self.remembered - remembered),
            *((donor, BORROWED) for donor in sorted(borrowed)),
        ]:
            self._queue.append((self.pack_of[key[0]], ForgetMember(*key)))
        self.remembered = remembered
        self._send_next()

    def _take(self, change: Change, borrowed: set[int], decided: float) -> None:
        """Apply a change to the population, whose windows start empty at once, and queue its edit."""
        member = self.population.members[change.member]
        evaluated = member.evaluates > 0
        member.apply(change)
        if (evaluated or change.evaluates) and not member.parked:
            self.send(self.pack_of[change.member], EvaluateMember(change.member, change.evaluates > 0))
        if change.until_frames is not None:
            self.send(self.pack_of[change.member], TrainUntil(change.member, change.until_frames))
        if change.values is None:
            return
        donor, generation = change.source or (None, None)
        crosses = False
        if change.weights_from is not None:
            crosses = self.pack_of[change.weights_from[0]] != self.pack_of[change.member]
        if not change.remembered:
            generation = BORROWED if change.weights_from is not None and donor in borrowed else None
        edit = Edit(
            change.member,
            change.generation,
            "import" if crosses else change.weights,
            donor,
            change.values,
            generation,
            change.shrink_perturb,
        )
        self._queue.append(Pending(edit, decided, crosses))
        self.replacements += change.decision == "replace"
        self.mutations += change.decision == "mutate"

    def _send_next(self) -> None:
        """Send what waits, except while an edit that crosses packs holds the exchange memory."""
        while self._queue and not self._must_wait(self._queue[0]):
            item = self._queue.popleft()
            if not isinstance(item, Pending):
                self.send(*item)
                continue
            self._sent[item.edit.member] = item
            if item.fill is not None:
                self._send_filled(item, item.fill)
            elif item.crosses:
                donor = item.edit.donor
                assert donor is not None
                self.send(self.pack_of[donor], ExportMember(donor, item.edit.donor_generation))
            else:
                self._send_edit(item)

    def _must_wait(self, item: Pending | tuple[int, ToLearner]) -> bool:
        """Whether the exchange memory is taken that this message needs, or that one before it to the same pack does."""
        taken = {self.pack_of[donor] for donor in self._void_exports}
        for pending in self._sent.values():
            if pending.crosses:
                taken |= self._packs_of(pending)
        return bool(taken & self._packs_of(item) if self.exchange_per_pack else taken)

    def _packs_of(self, item: Pending | tuple[int, ToLearner]) -> set[int]:
        """Return the packs that a message concerns."""
        if not isinstance(item, Pending):
            return {item[0]}
        own = {self.pack_of[item.edit.member]}
        return own | {self._donor_pack(item.edit)} if item.crosses else own

    def _send_filled(self, pending: Pending, fill: Fill) -> None:
        fresh_frames = fill(pending.edit.member)
        pending.edit = replace(pending.edit, shrink_perturb=None, fresh_frames=fresh_frames)
        pending.exported = True
        self._send_edit(pending)

    def _send_edit(self, pending: Pending) -> None:
        pending.sent = time.perf_counter()
        self.send(self.pack_of[pending.edit.member], pending.edit)

    def exported(self, donor: int, fresh_frames: int = 0) -> None:
        """Send the edit that waits for this donor's state, which is in the exchange memory now."""
        if donor in self._void_exports:
            self._void_exports.remove(donor)
            self._send_next()
            return
        for pending in self._sent.values():
            if pending.crosses and not pending.exported and pending.edit.donor == donor:
                pending.edit = replace(pending.edit, fresh_frames=fresh_frames)
                pending.exported = True
                self._send_edit(pending)

    def lost(self, pack: int, fill: Fill) -> None:
        """Settle what was on its way when a learner was lost, before anything is sent to the one that replaces it.

        That one begins with its members as all decisions have left them: nothing is sent to it again. Members of other
        packs still get the weights of a donor that it held; fill: writes those for such a member into the exchange
        memory.
        """
        self._void_exports = {donor for donor in self._void_exports if self.pack_of[donor] != pack}
        # A member that was to leave the lost pack stays; it is restored with the others.
        self._journeys = {member: to for member, to in self._journeys.items() if self.pack_of[member] != pack}
        for member, pending in list(self._sent.items()):
            donor = pending.edit.donor if pending.crosses and not pending.exported else None
            if self.pack_of[member] == pack:
                if donor is not None and self.pack_of[donor] != pack:
                    self._void_exports.add(donor)
                del self._sent[member]
            elif donor is not None and self.pack_of[donor] == pack:
                self._send_filled(pending, fill)
        waiting, self._queue = self._queue, deque()
        for item in waiting:
            if (self.pack_of[item.edit.member] if isinstance(item, Pending) else item[0]) == pack:
                continue
            if isinstance(item, Pending) and item.crosses and self._donor_pack(item.edit) == pack:
                item.fill = fill
            self._queue.append(item)
        self._send_next()

    # -- members that move --------------------------------------------------------------------------------------

    def move(self, member: int, pack: int) -> None:
        """Begin to move a parked member to another pack. Nothing else may be on its way."""
        self._journeys[member] = pack
        self.send(self.pack_of[member], ReleaseMember(member))

    def released(self, admission: AdmitMember) -> tuple[int, int]:
        """Note that a member has left its pack; return (it, the pack that it was to move to)."""
        return admission.member, self._journeys.pop(admission.member)

    def send_limit(self, member: int) -> None:
        """Tell the learner of a member how far it may train, and whether it is being evaluated."""
        until = self.population.members[member].until_frames
        if until is not None:
            self.send(self.pack_of[member], TrainUntil(member, until))
        self.send_evaluation(member)

    def send_evaluation(self, member: int) -> None:
        """Tell the learner of a member that it is being evaluated, if it is. A parked one is so in its next turn."""
        record = self.population.members[member]
        if record.evaluates and not record.parked:
            self.send(self.pack_of[member], EvaluateMember(member, begins=True))

    def _donor_pack(self, edit: Edit) -> int:
        assert edit.donor is not None
        return self.pack_of[edit.donor]

    def applied(self, applied: Applied) -> Pending:
        """Return the edit that was applied, and sends the next ones."""
        pending = self._sent.pop(applied.member)
        self._send_next()
        return pending


def _changing_donors(changes: Sequence[Change]) -> set[int]:
    """Return the members whose present weights one change copies and another one changes."""
    changed = {c.member for c in changes if c.weights != "keep"}
    copied = [(c.member, c.weights_from) for c in changes if not c.remembered]
    return {source[0] for member, source in copied if source is not None and source[0] != member} & changed
