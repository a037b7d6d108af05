"""The members of a pack: which slot each holds, the states of those that hold none, and every change to any.

    resident     holds a slot of the pack: acts and learns
    parked       its whole state lies in host memory
    remembered   a past state of a member, kept for the controller until it is forgotten

All of it happens in the trainer's thread between two optimiser steps, so nothing else writes a policy's state
meanwhile. States in host memory are never written to: taking one is taking a reference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pbt_rl.algos.optim import ADAM, RMSPROP
from pbt_rl.algos.pack import Pack
from pbt_rl.learner.build import weights_seed
from pbt_rl.learner.shared import SharedState
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.wire.messages import Applied, Edit, SlotChange
from pbt_rl.wire.tables import ShapingTable

OPTIMIZER_HYPERS = {"learning_rate", "max_grad_norm", *ADAM.hypers, *RMSPROP.hypers}
State = Mapping[str, Tensor]


class PackMembers:
    """Members of one pack. `exchange`: memory for one member's state between packs, as bytes."""

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        shaping: ShapingTable,
        exchange: Tensor,
        seed: int,
    ) -> None:
        self._pack, self._shared = pack, shared
        self._shaping, self._exchange, self._seed = shaping, exchange, seed
        self.current_P = torch.ones(pack.num_policies, dtype=torch.bool, device=pack.device)
        """Slots that may learn from the current batch; False if their holder or weights changed during it."""
        self.generations = dict.fromkeys(shared.members, 0)
        self._parked: dict[int, State] = {}
        self._remembered: dict[tuple[int, int], State] = {}
        self._unproven: set[int] = set()
        """Parked members with a change that is not in force anywhere yet."""
        self.fresh_steps = np.zeros(len(shared.members) + 1, np.int64)
        """Steps of each member (by index among the pack's) when its weights were last drawn."""

    def slot_of(self, member: int) -> int | None:
        """Slot that a member holds."""
        index = self._shared.members.index(member)
        holders = self._shared.pack.holders
        return next((p for p, h in enumerate(holders) if h is not None and h.member == index), None)

    def state(self, member: int, generation: int | None = None) -> State:
        """Return a member's whole state in host memory, as it is or as it was remembered."""
        if generation is not None:
            return self._remembered[member, generation]
        slot = self.slot_of(member)
        if slot is not None:
            return self._pack.export_member(slot)
        if member not in self._parked:
            self._parked[member] = self._fresh(member, 0)
        return self._parked[member]

    def remember(self, member: int, generation: int) -> None:
        """Keep a member's present state under its generation."""
        self._remembered[member, generation] = self.state(member)

    def forget(self, member: int, generation: int) -> None:
        """Drop a remembered state."""
        del self._remembered[member, generation]

    def _fresh(self, member: int, generation: int) -> State:
        torch.manual_seed(weights_seed(self._seed, member, generation))
        return {name: x.cpu() for name, x in self._pack.fresh_state().items()}

    # -- edits ----------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> Applied:
        """Change a member, and read back the values that are in force."""
        began = time.perf_counter()
        donor = edit.donor if edit.donor in self._shared.members else None
        before = self._fingerprint(donor, edit.donor_generation)
        slot = self.slot_of(edit.member)
        self.generations[edit.member] = edit.generation
        if edit.weights != "keep":
            self._take_weights(edit, slot)
        if slot is None:
            self._unproven.add(edit.member)
        else:
            self._pack.set_hypers(slot, edit.values)
            if edit.weights != "keep":
                self._begin_anew(slot)
            self._write_shaping(slot, edit.generation, edit.values)
        unchanged = before == self._fingerprint(donor, edit.donor_generation)
        return self._proof(slot, edit.member, edit.donor, began, unchanged)

    def _take_weights(self, edit: Edit, slot: int | None) -> None:
        if edit.weights == "copy" and edit.donor_generation is None and slot is not None:
            assert edit.donor is not None
            source = self.slot_of(edit.donor)
            if source is not None:  # from slot to slot, on the device
                self._pack.copy_member(source, slot)
                return
        if edit.weights == "copy":
            assert edit.donor is not None
            state = self.state(edit.donor, edit.donor_generation)
        elif edit.weights == "import":
            state = self._read_exchange()
        else:
            state = self._fresh(edit.member, edit.generation)
            index = self._shared.members.index(edit.member)
            self.fresh_steps[index] = self._shared.sampling.steps[index]
        if slot is None:
            self._parked[edit.member] = state
        else:
            self._pack.import_member(slot, state)

    def _begin_anew(self, slot: int) -> None:
        """Discard what the slot's former weights sampled: it holds others now."""
        self._shared.note_exchanged_weights(slot)
        self.current_P[slot] = False

    def _write_shaping(self, slot: int, generation: int, values: Values) -> None:
        """Set a slot's shaping under a new version, whose generation the sampler finds before an actor reads it."""
        holder = self._shared.pack.holders[slot]
        assert holder is not None
        version = int(self._shaping.shaping_version[slot]) + 1
        holder.generation_of[version] = generation
        shaping = {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)}
        self._shaping.write(slot, version, shaping)

    def _proof(
        self, slot: int | None, member: int, donor: int | None, began: float, donor_unchanged: bool
    ) -> Applied:
        milliseconds = (time.perf_counter() - began) * 1000
        of_optimizer = OPTIMIZER_HYPERS | set(self._pack.optimizer.hypers)
        in_use = (
            {} if slot is None else {name: float(column[slot]) for name, column in self._pack.hypers.items()}
        )
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
            return [_bit_sum(stacked[slot]) for stacked in self._pack.state.values()]
        return [_bit_sum(part) for part in self.state(member, generation).values()]

    # -- slots ---------------------------------------------------------------------------------------------

    def change_slot(self, change: SlotChange) -> Applied | None:
        """Park the member that leaves a slot and let another enter; returns the proof of a change that waited."""
        began, slot = time.perf_counter(), change.slot
        self._shared.pack.hold(
            slot, None, len(self._shared.members)
        )  # from here on no episode and no step of this slot counts for any member
        if change.leaves is not None:
            self._parked[change.leaves] = self._pack.export_member(slot)
        self._pack.idle[slot] = change.enters is None
        if change.enters is None:
            self._begin_anew(slot)
            return None
        self._pack.import_member(slot, self.state(change.enters))
        del self._parked[change.enters]
        self._pack.set_hypers(slot, change.values)
        self.generations[change.enters] = change.generation
        self._shared.pack.hold(slot, self._shared.members.index(change.enters), len(self._shared.members))
        self._begin_anew(slot)
        self._write_shaping(slot, change.generation, change.values)
        if change.enters not in self._unproven:
            return None
        self._unproven.remove(change.enters)
        return self._proof(slot, change.enters, None, began, donor_unchanged=True)

    # -- between packs --------------------------------------------------------------------------------------

    def write_exchange(self, member: int, generation: int | None = None) -> None:
        """Put a member's whole state into the exchange memory."""
        offset = 0
        for tensor in self.state(member, generation).values():
            data = tensor.reshape(-1).view(torch.uint8)
            self._exchange[offset : offset + data.numel()].copy_(data)
            offset += data.numel()

    def _read_exchange(self) -> State:
        offset, state = 0, {}
        for name, stacked in self._pack.state.items():
            size = stacked[0].numel() * stacked.element_size()
            data = self._exchange[offset : offset + size].clone()
            state[name] = data.view(stacked.dtype).view(stacked[0].shape)
            offset += size
        return state


def _bit_sum(tensor: Tensor) -> int:
    """Sum a tensor's memory as 64-bit integers: a number that changes with any single bit."""
    data = tensor.reshape(-1).view(torch.uint8)
    if data.numel() % 8 or data.storage_offset() % 8:
        return int.from_bytes(data.cpu().numpy().tobytes(), "little")
    return int(data.view(torch.int64).sum())
