"""Members in the slots of a pack, and commands about them: load, save, set values, evaluate.

Hold the lock `Updater.changing` during each call, because other threads may write a policy's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from pbt_rl.actors.messages import Acknowledgement, Load, Save, SetValues
from pbt_rl.actors.state_pool import Counts, StatePool
from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.optim import OF_ALL_OPTIMIZERS
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.update import CurrentSlots
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.learner.build import Arrays, initialised_arrays
from pbt_rl.learner.shared import SharedState
from pbt_rl.learner.simulators.simulator_sampler import SlotShaping


class PackMembers:
    """Manager of the members in one pack's slots: loads, saves and evaluates members, and sets their values.

    shaping: table of the slots' shaping, read by actors or a device simulator.
    states: shared memory for states of members.
    initialise: returns a network with initialised weights; arguments: member and generation.
    frame_skip: emulator frames per step.
    """

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        shaping: SlotShaping,
        states: StatePool,
        initialise: Callable[[int, int], PolicyNet],
        frame_skip: int = 1,
    ) -> None:
        self._pack, self._shared = pack, shared
        self._shaping, self._states = shaping, states
        self._initialise, self._frame_skip = initialise, frame_skip
        self.current = CurrentSlots(pack.num_policies, pack.device)
        """Slots that may learn from the current batch."""
        self.generations: dict[int, int] = {}
        """Member -> its last generation here, for each member that has been in a slot of this pack."""
        self._values: dict[int, Values] = {}
        self.fresh_steps = np.zeros(len(shared.members) + 1, np.int64)
        """Member index -> environment steps of the member at the last initialisation of its weights. A copy gets the
        number of its donor."""

    def place_first(self, loads: Iterable[Load]) -> None:
        """Register the initial members, which are already in their slots, and load their states.

        States with initialised weights of generation 0 are not loaded, because the pack already contains them.
        """
        for load in loads:
            assert load.member is not None
            self.generations[load.member], self._values[load.member] = load.generation, load.values
            self._note_counts(load)
            if load.initialised == (load.member, 0):  # the pack has these weights already
                self._note_fresh(load)
            else:
                self._import(load.slot, self._given(load))

    def slot_of(self, member: int) -> int | None:
        """Return the slot of a member, or None if the member is in no slot of this pack."""
        index = self._shared.members.index(member)
        slot_members = self._shared.pack.slot_members
        return next((p for p, h in enumerate(slot_members) if h is not None and h.member == index), None)

    # -- states ---------------------------------------------------------------------------------------------

    def save(self, save: Save) -> None:
        """Write a member's arrays and counts to the entry `save.entry` of the shared memory (`StatePool`)."""
        slot, index = self._held_slot(save.member), self._shared.members.index(save.member)
        counts = Counts(
            int(self._shared.sampling.steps[index]) * self._frame_skip,
            self._shared.learning.steps[index],
            self._shared.learning.updates[index],
            int(self.fresh_steps[index]) * self._frame_skip,
        )
        state = {name: x.numpy() for name, x in self._pack.export_member(slot).items()}
        self._states.write(save.entry, state, counts)

    def _held_slot(self, member: int) -> int:
        slot = self.slot_of(member)
        assert slot is not None, f"member {member} holds no slot"
        return slot

    def _import(self, slot: int, arrays: Arrays) -> None:
        self._pack.import_member(slot, {name: torch.from_numpy(x) for name, x in arrays.items()})

    def load(self, load: Load) -> Acknowledgement | None:
        """Load a member's state into a slot. If `load.member` is None, empty the slot instead.

        The former state of the slot is discarded. Return the acknowledgement with the values in use, or None if the
        slot is emptied.
        """
        began, slot = time.perf_counter(), load.slot
        enters = self._shared.member_of(slot) != load.member
        donor = None if load.of_slot is None else self._pack.bit_sums(load.of_slot)
        if enters:
            # Until the new member holds the slot, episodes and steps of the slot count for no member.
            self._shared.pack.hold(slot, None, len(self._shared.members))
        self._pack.idle[slot] = load.member is None
        if load.member is None:
            self._begin_anew(slot)
            return None
        if enters:
            self._note_counts(load)
        if load.of_slot is not None:
            self._pack.copy_member(load.of_slot, slot)
            self._note_fresh(load)
        else:
            self._import(slot, self._given(load))
        self._pack.set_hypers(slot, load.values)
        self.generations[load.member], self._values[load.member] = load.generation, load.values
        if enters:
            index = self._shared.members.index(load.member)
            self._shared.pack.hold(slot, index, len(self._shared.members))
        self._begin_anew(slot)
        self._write_shaping(slot, load.generation, load.values)
        written = time.perf_counter()
        unchanged = load.of_slot in (None, slot) or donor == self._pack.bit_sums(load.of_slot)
        return self._ack(slot, load.member, load.donor, began, written, unchanged)

    def _note_counts(self, load: Load) -> None:
        """Continue a member's counts of steps and updates. Its last slot may have been on another learner."""
        assert load.member is not None
        index, shared = self._shared.members.index(load.member), self._shared
        frames, steps, updates, _ = load.counts
        shared.sampling.steps[index] = max(shared.sampling.steps[index], frames // self._frame_skip)
        shared.learning.steps[index] = max(shared.learning.steps[index], steps)
        shared.learning.updates[index] = max(shared.learning.updates[index], updates)

    def _given(self, load: Load) -> Arrays:
        """Return the state to load. Record the member's number of steps at the initialisation of the weights."""
        self._note_fresh(load)
        if load.entry is not None:
            return self._states.views(load.entry)
        assert load.initialised is not None
        return initialised_arrays(self._pack, self._initialise(*load.initialised))

    def _note_fresh(self, load: Load) -> None:
        assert load.member is not None
        index = self._shared.members.index(load.member)
        if load.entry is not None:
            self.fresh_steps[index] = self._states.counts(load.entry).fresh_frames // self._frame_skip
        elif load.of_slot is not None:
            donor = self._shared.member_of(load.of_slot)
            assert donor is not None
            self.fresh_steps[index] = self.fresh_steps[self._shared.members.index(donor)]
        else:
            self.fresh_steps[index] = self._shared.sampling.steps[index]

    # -- values ---------------------------------------------------------------------------------------------

    def set_values(self, change: SetValues) -> Acknowledgement:
        """Set a member's values. Return the acknowledgement with the values in use."""
        began, slot = time.perf_counter(), self._held_slot(change.member)
        self.generations[change.member], self._values[change.member] = change.generation, change.values
        self._pack.set_hypers(slot, change.values)
        self._write_shaping(slot, change.generation, change.values)
        return self._ack(slot, change.member, change.donor, began, time.perf_counter(), unchanged=True)

    def _begin_anew(self, slot: int) -> None:
        """Discard the rollouts and recurrent states that the former weights of a slot produced."""
        self._shared.note_exchanged_weights(slot)
        self.current.drop(slot)

    def _write_shaping(self, slot: int, generation: int, values: Values) -> None:
        """Write a slot's shaping under a new version.

        First store the generation of this version, because actors may use the version immediately.
        """
        slot_member = self._shared.pack.slot_members[slot]
        assert slot_member is not None
        slot_member.forget_before(self._shared.oldest_version(slot))
        version = int(self._shaping.shaping_version[slot]) + 1
        slot_member.generation_of[version] = generation
        if self._shared.pack.evaluated[slot]:
            slot_member.evaluations.add(version)
        shaping = {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)}
        self._shaping.write(slot, version, shaping)

    def evaluate(self, member: int, *, begins: bool) -> None:
        """Start or end an evaluation, in which the member acts without learning. begins: False ends the evaluation.

        Episodes that start after this call get a new shaping version.
        """
        slot, evaluated = self._held_slot(member), self._shared.pack.evaluated
        if evaluated[slot] == begins:  # already restored from a checkpoint
            return
        evaluated[slot] = begins
        if begins:
            self.current.drop(slot)
        self._write_shaping(slot, self.generations[member], self._values[member])

    def _ack(
        self, slot: int, member: int, donor: int | None, began: float, written: float, unchanged: bool
    ) -> Acknowledgement:
        of_optimizer = {*OF_ALL_OPTIMIZERS, *self._pack.optimizer.hypers}
        in_use = self._pack.hypers_in_force(slot)
        shaping = self._shaping.read(slot)[1]
        proved = time.perf_counter()
        return Acknowledgement(
            member=member,
            donor=donor,
            generation=self.generations[member],
            milliseconds=(proved - began) * 1000,
            in_optimizer={k: v for k, v in in_use.items() if k in of_optimizer},
            in_loss={k: v for k, v in in_use.items() if k not in of_optimizer},
            in_environment=shaping,
            donor_unchanged=unchanged,
            clock={"begun": began, "written": written, "proved": proved},
        )
