"""The members of a pack: which slot each holds, the states of those that hold none, and every change to any.

    resident     holds a slot of the pack: acts and learns
    parked       its whole state lies in host memory
    remembered   a past state of a member, kept for the controller until it is forgotten

Whatever moves a member takes or gives one value, its `MemberSnapshot`: parking, remembering, the exchange between
packs, saving and resuming. The caller holds `Updater.changing`, so nothing else writes a policy's state meanwhile.
Snapshots are never written to: taking one is taking a reference.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from pbt_rl.algos.optim import ADAM, RMSPROP
from pbt_rl.algos.pack import Pack, bit_sums
from pbt_rl.algos.update import CurrentSlots
from pbt_rl.learner.build import Arrays, fresh_arrays, shrunk_arrays
from pbt_rl.learner.shared import SharedState
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.wire.messages import AdmitMember, Applied, Edit, SlotChange
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader, SnapshotMemory
from pbt_rl.wire.tables import ShapingTable

OPTIMIZER_HYPERS = {"learning_rate", "max_grad_norm", *ADAM.hypers, *RMSPROP.hypers}
StateOf = tuple[int, int | None]
"""(member, generation of a remembered state; None for the member as it is)."""


class PackMembers:
    """Members of one pack.

    values, generations: of the first of `shared.members`, which belong to the pack at the start; the others may be
    admitted. exchange: memory for one member between packs.
    staging: memory for members on their way to a checkpoint. frame_skip: emulator frames of a step.
    """

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        shaping: ShapingTable,
        values: Sequence[Values],
        generations: Sequence[int],
        exchange: SnapshotMemory,
        staging: SnapshotMemory,
        seed: int,
        frame_skip: int = 1,
    ) -> None:
        self._pack, self._shared = pack, shared
        self._shaping, self._exchange, self._staging = shaping, exchange, staging
        self._seed, self._frame_skip = seed, frame_skip
        self.current = CurrentSlots(pack.num_policies, pack.device)
        here = shared.members[: len(values)]
        self.generations = dict(zip(here, generations, strict=True))
        """Of every member that belongs to the pack now."""
        self._values = dict(zip(here, values, strict=True))
        self._parked: dict[int, Arrays] = {}
        self._remembered: dict[tuple[int, int], MemberSnapshot] = {}
        self.unproven: set[int] = set()
        """Parked members with a change that is not in force anywhere yet."""
        self.fresh_steps = np.zeros(len(shared.members) + 1, np.int64)
        """Steps of each member (by index among the pack's) when its weights were last drawn."""
        self._to_stage: dict[StateOf, MemberSnapshot | None] = {}
        """What the present checkpoint still needs; None for a resident that has not changed since: as it is then."""

    def slot_of(self, member: int) -> int | None:
        """Slot that a member holds."""
        index = self._shared.members.index(member)
        holders = self._shared.pack.holders
        return next((p for p, h in enumerate(holders) if h is not None and h.member == index), None)

    # -- snapshots ------------------------------------------------------------------------------------------

    def snapshot(self, member: int, generation: int | None = None) -> MemberSnapshot:
        """Return a member in host memory, as it is or as it was remembered."""
        if generation is not None:
            return self._remembered[member, generation]
        slot = self.slot_of(member)
        if slot is None and member not in self._parked:
            self._parked[member] = self._fresh(member, 0)
        arrays = self._parked[member] if slot is None else self._exported(slot)
        return MemberSnapshot(self._header(member), arrays)

    def restore(self, snapshots: Iterable[MemberSnapshot]) -> None:
        """Continue from these: into the slots that members hold, else parked or remembered.

        A member that holds a slot has not acted yet.
        """
        for snapshot in snapshots:
            header = snapshot.header
            if header.remembered:
                self._remembered[header.member, header.generation] = snapshot
                continue
            slot, index = self.slot_of(header.member), self._shared.members.index(header.member)
            if slot is None:
                self._parked[header.member] = snapshot.arrays
            else:
                self._import(slot, snapshot.arrays)
            self._shared.sampling.steps[index] = header.frames // self._frame_skip
            self.fresh_steps[index] = header.fresh_frames // self._frame_skip
            self._shared.learning.steps[index] = header.steps
            self._shared.learning.updates[index] = header.updates

    def _header(self, member: int) -> SnapshotHeader:
        index, shared = self._shared.members.index(member), self._shared
        return SnapshotHeader(
            member=member,
            generation=self.generations[member],
            values=self._values[member],
            frames=int(shared.sampling.steps[index]) * self._frame_skip,
            steps=shared.learning.steps[index],
            updates=shared.learning.updates[index],
            fresh_frames=int(self.fresh_steps[index]) * self._frame_skip,
        )

    def _exported(self, slot: int) -> Arrays:
        return {name: x.numpy() for name, x in self._pack.export_member(slot).items()}

    def _import(self, slot: int, arrays: Arrays) -> None:
        self._pack.import_member(slot, {name: torch.from_numpy(x) for name, x in arrays.items()})

    def _fresh(self, member: int, generation: int) -> Arrays:
        return fresh_arrays(self._pack, self._seed, member, generation)

    def remember(self, member: int, generation: int) -> None:
        """Keep a member's present state under its generation."""
        now = self.snapshot(member)
        header = replace(now.header, generation=generation, remembered=True)
        self._remembered[member, generation] = replace(now, header=header)

    def forget(self, member: int, generation: int) -> None:
        """Drop a remembered state."""
        del self._remembered[member, generation]

    # -- a checkpoint ---------------------------------------------------------------------------------------

    def begin_snapshot(self) -> int:
        """Note every state as it is now, to be staged one by one; return their number.

        Members that never held a slot have no state yet: their weights are drawn when they first do.
        """
        self._to_stage = {}
        for member in self.generations:
            resident = self.slot_of(member) is not None
            if resident or member in self._parked:
                self._to_stage[member, None] = None if resident else self.snapshot(member)
        self._to_stage |= {(m, g): kept for (m, g), kept in self._remembered.items() if g >= 0}
        return len(self._to_stage)

    def stage(self, entry: int) -> SnapshotHeader:
        """Write the next state into an entry of the staging memory."""
        member, generation = next(iter(self._to_stage))
        snapshot = self._to_stage.pop((member, generation)) or self.snapshot(member)
        self._staging.write(entry, snapshot.arrays)
        return snapshot.header

    def _keep_for_checkpoint(self, member: int) -> None:
        """Copy a resident that is about to change, if the present checkpoint still needs it as it was."""
        if self._to_stage.get((member, None), False) is None:
            self._to_stage[member, None] = self.snapshot(member)

    # -- edits ----------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> Applied:
        """Change a member, and read back the values that are in force."""
        self._keep_for_checkpoint(edit.member)
        began = time.perf_counter()
        donor = edit.donor if edit.donor in self.generations else None
        before = self._fingerprint(donor, edit.donor_generation)
        slot = self.slot_of(edit.member)
        self.generations[edit.member], self._values[edit.member] = edit.generation, edit.values
        if edit.weights != "keep":
            self._take_weights(edit, slot)
        if edit.shrink_perturb is not None:
            self._shrink_perturb(edit, edit.shrink_perturb, slot)
        if slot is None:
            self.unproven.add(edit.member)
        else:
            self._pack.set_hypers(slot, edit.values)
            if edit.weights != "keep":
                self._begin_anew(slot)
            self._write_shaping(slot, edit.generation, edit.values)
        written = time.perf_counter()
        unchanged = before == self._fingerprint(donor, edit.donor_generation)
        proof = self._proof(slot, edit.member, edit.donor, began, unchanged)
        return replace(proof, clock={"begun": began, "written": written, "proved": time.perf_counter()})

    def _take_weights(self, edit: Edit, slot: int | None) -> None:
        index = self._shared.members.index(edit.member)
        if edit.weights == "copy" and edit.donor_generation is None and slot is not None:
            assert edit.donor is not None
            source = self.slot_of(edit.donor)
            if source is not None:  # from slot to slot, on the device
                self._pack.copy_member(source, slot)
                self.fresh_steps[index] = self.fresh_steps[self._shared.members.index(edit.donor)]
                return
        if edit.weights == "copy":
            assert edit.donor is not None
            snapshot = self.snapshot(edit.donor, edit.donor_generation)
            arrays = snapshot.arrays
            self.fresh_steps[index] = snapshot.header.fresh_frames // self._frame_skip
        elif edit.weights == "import":
            arrays = self._exchange.read(0)
            self.fresh_steps[index] = edit.fresh_frames // self._frame_skip
        else:
            arrays = self._fresh(edit.member, edit.generation)
            self.fresh_steps[index] = self._shared.sampling.steps[index]
        if slot is None:
            self._parked[edit.member] = arrays
        else:
            self._import(slot, arrays)

    def _shrink_perturb(self, edit: Edit, shrink_perturb: tuple[float, float], slot: int | None) -> None:
        """Mix the weights that a member was given with drawn ones."""
        given = self._parked[edit.member] if slot is None else self._exported(slot)
        drawn = self._fresh(edit.member, edit.generation)
        arrays = shrunk_arrays(given, drawn, shrink_perturb, self._pack.optimizer.moments)
        if slot is None:
            self._parked[edit.member] = arrays
        else:
            self._import(slot, arrays)

    def _begin_anew(self, slot: int) -> None:
        """Discard what the slot's former weights sampled: it holds others now."""
        self._shared.note_exchanged_weights(slot)
        self.current.drop(slot)

    def _write_shaping(self, slot: int, generation: int, values: Values) -> None:
        """Set a slot's shaping under a new version, whose generation the sampler finds before an actor reads it."""
        holder = self._shared.pack.holders[slot]
        assert holder is not None
        holder.forget_before(self._shared.oldest_version(slot))
        version = int(self._shaping.shaping_version[slot]) + 1
        holder.generation_of[version] = generation
        if self._shared.pack.evaluated[slot]:
            holder.evaluations.add(version)
        shaping = {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)}
        self._shaping.write(slot, version, shaping)

    def evaluate(self, member: int, *, begins: bool) -> None:
        """Let a member act without learning, or learn again. Episodes that begin from now on are told apart."""
        slot, evaluated = self.slot_of(member), self._shared.pack.evaluated
        assert slot is not None, f"member {member} holds no slot"
        if evaluated[slot] == begins:  # a run that goes on has it from its checkpoint
            return
        evaluated[slot] = begins
        if begins:
            self.current.drop(slot)
        self._write_shaping(slot, self.generations[member], self._values[member])

    def _proof(
        self, slot: int | None, member: int, donor: int | None, began: float, donor_unchanged: bool
    ) -> Applied:
        milliseconds = (time.perf_counter() - began) * 1000
        of_optimizer = OPTIMIZER_HYPERS | set(self._pack.optimizer.hypers)
        in_use = {} if slot is None else self._pack.hypers_in_force(slot)
        return Applied(
            member=member,
            donor=donor,
            generation=self.generations[member],
            milliseconds=milliseconds,
            in_optimizer={k: v for k, v in in_use.items() if k in of_optimizer},
            in_loss={k: v for k, v in in_use.items() if k not in of_optimizer},
            in_environment={} if slot is None else self._shaping.read(slot)[1],
            donor_unchanged=donor_unchanged,
            parked=slot is None,
        )

    def _fingerprint(self, member: int | None, generation: int | None) -> list[int]:
        """Sum the bits of every part of a state (empty for a donor in another pack)."""
        if member is None:
            return []
        slot = self.slot_of(member) if generation is None else None
        if slot is not None:
            return self._pack.bit_sums(slot)
        return bit_sums(torch.from_numpy(part) for part in self.snapshot(member, generation).arrays.values())

    # -- slots ---------------------------------------------------------------------------------------------

    def change_slot(self, change: SlotChange) -> Applied | None:
        """Park the member that leaves a slot and let another enter; returns the proof of a change that waited."""
        if change.leaves is not None:
            self._keep_for_checkpoint(change.leaves)
        began, slot = time.perf_counter(), change.slot
        self._shared.pack.hold(
            slot, None, len(self._shared.members)
        )  # from here on no episode and no step of this slot counts for any member
        if change.leaves is not None:
            self._parked[change.leaves] = self._exported(slot)
        self._pack.idle[slot] = change.enters is None
        if change.enters is None:
            self._begin_anew(slot)
            return None
        self._import(slot, self.snapshot(change.enters).arrays)
        del self._parked[change.enters]
        self._pack.set_hypers(slot, change.values)
        self.generations[change.enters], self._values[change.enters] = change.generation, change.values
        self._shared.pack.hold(slot, self._shared.members.index(change.enters), len(self._shared.members))
        self._begin_anew(slot)
        self._write_shaping(slot, change.generation, change.values)
        if change.enters not in self.unproven:
            return None
        self.unproven.remove(change.enters)
        return self._proof(slot, change.enters, None, began, donor_unchanged=True)

    # -- between packs --------------------------------------------------------------------------------------

    def release(self, member: int) -> AdmitMember:
        """Let a parked member go; return what another pack admits it with."""
        assert self.slot_of(member) is None, f"member {member} holds a slot"
        snapshots = [self.snapshot(member)] if member in self._parked else []
        snapshots += [self._remembered.pop(key) for key in [*self._remembered] if key[0] == member]
        self._parked.pop(member, None)
        unproven = member in self.unproven
        self.unproven.discard(member)
        return AdmitMember(
            member, self.generations.pop(member), self._values.pop(member), tuple(snapshots), unproven
        )

    def admit(self, admission: AdmitMember) -> None:
        """Take in a member, parked."""
        member = admission.member
        self.generations[member], self._values[member] = admission.generation, admission.values
        self.restore(admission.snapshots)
        if admission.unproven:
            self.unproven.add(member)

    def write_exchange(self, member: int, generation: int | None = None) -> SnapshotHeader:
        """Put a member into the exchange memory."""
        snapshot = self.snapshot(member, generation)
        self._exchange.write(0, snapshot.arrays)
        return snapshot.header
