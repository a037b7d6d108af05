"""The members of a pack: who holds which row, the states of those that hold none, and every change to any.

    resident     holds a row of the pack: acts and learns
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

from pbt_rl.algos.pack import Pack
from pbt_rl.learner.build import weights_seed
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.shared import SlotHolder
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.wire.messages import Applied, Edit, SlotChange
from pbt_rl.wire.tables import ShapingTable

OPTIMIZER_HYPERS = ("learning_rate", "adam_beta1", "adam_beta2", "rmsprop_alpha", "max_grad_norm")
State = Mapping[str, Tensor]


class PackMembers:
    """Members of one pack. `exchange`: memory for one member's state between packs, as bytes."""

    def __init__(
        self,
        pack: Pack,
        sampler: Sampler,
        members: tuple[int, ...],
        shaping: ShapingTable,
        exchange: Tensor,
        seed: int,
    ) -> None:
        self._pack, self._sampler, self._members = pack, sampler, members
        self._shaping, self._exchange, self._seed = shaping, exchange, seed
        self.current_P = torch.ones(pack.num_policies, dtype=torch.bool, device=pack.device)
        """Rows that may learn from the batch in work; False for those that changed hands or weights since."""
        self.generations = dict.fromkeys(members, 0)
        self._parked: dict[int, State] = {}
        self._remembered: dict[tuple[int, int], State] = {}
        self._unproven: set[int] = set()
        """Parked members with a change that acts nowhere yet."""
        self.fresh_steps = np.zeros(len(members) + 1, np.int64)
        """Steps that each member had (by index among the pack's) when its weights were last drawn."""

    def row_of(self, member: int) -> int | None:
        """Row that a member holds."""
        index = self._members.index(member)
        rows = [p for p, o in enumerate(self._sampler.clock.occupants) if o is not None and o.member == index]
        return rows[0] if rows else None

    def state(self, member: int, generation: int | None = None) -> State:
        """A member's whole state in host memory, as it is or as it was remembered."""
        if generation is not None:
            return self._remembered[member, generation]
        row = self.row_of(member)
        if row is not None:
            return self._pack.export_member(row)
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
        """Change a member, and read back what is in force where it acts."""
        began = time.perf_counter()
        donor = edit.donor if edit.donor in self._members else None
        before = self._fingerprint(donor, edit.donor_generation)
        row = self.row_of(edit.member)
        self.generations[edit.member] = edit.generation
        if edit.weights != "keep":
            self._take_weights(edit, row)
        if row is None:
            self._unproven.add(edit.member)
        else:
            self._pack.set_hypers(row, edit.values)
            if edit.weights != "keep":
                self._begin_anew(row)
            self._write_shaping(row, edit.generation, edit.values)
        unchanged = before == self._fingerprint(donor, edit.donor_generation)
        return self._proof(row, edit.member, edit.donor, began, unchanged)

    def _take_weights(self, edit: Edit, row: int | None) -> None:
        if edit.weights == "copy" and edit.donor_generation is None and row is not None:
            assert edit.donor is not None
            source = self.row_of(edit.donor)
            if source is not None:  # from row to row, on the device
                self._pack.copy_member(source, row)
                return
        if edit.weights == "copy":
            assert edit.donor is not None
            state = self.state(edit.donor, edit.donor_generation)
        elif edit.weights == "import":
            state = self._read_exchange()
        else:
            state = self._fresh(edit.member, edit.generation)
            index = self._members.index(edit.member)
            self.fresh_steps[index] = self._sampler.tally.steps[index]
        if row is None:
            self._parked[edit.member] = state
        else:
            self._pack.import_member(row, state)

    def _begin_anew(self, row: int) -> None:
        """The row's weights are others: what was sampled by those before counts no more."""
        self._sampler.reset_state(row)
        self._sampler.clock.origin[row] += 1
        self.current_P[row] = False

    def _write_shaping(self, row: int, generation: int, values: Values) -> None:
        """Set a row's shaping under a version of its own; sampling knows what it means before any actor sees it."""
        occupant = self._sampler.clock.occupants[row]
        assert occupant is not None
        version = int(self._shaping.shaping_version[row]) + 1
        occupant.generation_of[version] = generation
        shaping = {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)}
        self._shaping.write(row, version, shaping)

    def _proof(
        self, row: int | None, member: int, donor: int | None, began: float, donor_unchanged: bool
    ) -> Applied:
        milliseconds = (time.perf_counter() - began) * 1000
        in_use = (
            {} if row is None else {name: float(column[row]) for name, column in self._pack.hypers.items()}
        )
        return Applied(
            member=member,
            donor=donor,
            generation=self.generations[member],
            milliseconds=milliseconds,
            in_optimizer={k: v for k, v in in_use.items() if k in OPTIMIZER_HYPERS},
            in_loss={k: v for k, v in in_use.items() if k not in OPTIMIZER_HYPERS},
            in_environment={} if row is None else self._shaping.read(row)[1],
            donor_unchanged=donor_unchanged,
            parked=row is None,
        )

    def _fingerprint(self, member: int | None, generation: int | None) -> list[int]:
        """Sum of the bits of every part of a state (empty for a donor elsewhere)."""
        if member is None:
            return []
        row = self.row_of(member) if generation is None else None
        if row is not None:
            return [_bit_sum(rows[row]) for rows in self._pack.state.values()]
        return [_bit_sum(part) for part in self.state(member, generation).values()]

    # -- slots ---------------------------------------------------------------------------------------------

    def change_slot(self, change: SlotChange) -> Applied | None:
        """Park who leaves a row and let another one take it; returns the proof of a change that waited for it."""
        began, row = time.perf_counter(), change.slot
        self._hold(row, None)  # from here on no episode and no step of this row counts for anyone
        if change.leaves is not None:
            self._parked[change.leaves] = self._pack.export_member(row)
        self._pack.idle[row] = change.enters is None
        if change.enters is None:
            self._begin_anew(row)
            return None
        self._pack.import_member(row, self.state(change.enters))
        del self._parked[change.enters]
        self._pack.set_hypers(row, change.values)
        self.generations[change.enters] = change.generation
        self._hold(row, self._members.index(change.enters))
        self._begin_anew(row)
        self._write_shaping(row, change.generation, change.values)
        if change.enters not in self._unproven:
            return None
        self._unproven.remove(change.enters)
        return self._proof(row, change.enters, None, began, donor_unchanged=True)

    def _hold(self, row: int, index: int | None) -> None:
        """Let a member (an index among the pack's) hold a row. The sampler reads either at any moment, whole."""
        clock = self._sampler.clock
        member = clock.member.copy()
        member[row] = len(self._members) if index is None else index
        clock.occupants[row] = None if index is None else SlotHolder(index, {})
        clock.member = member

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
        for name, rows in self._pack.state.items():
            size = rows[0].numel() * rows.element_size()
            data = self._exchange[offset : offset + size].clone()
            state[name] = data.view(rows.dtype).view(rows[0].shape)
            offset += size
        return state


def _bit_sum(tensor: Tensor) -> int:
    """A number that changes with any single bit of a tensor: its memory as 64-bit integers, summed."""
    data = tensor.reshape(-1).view(torch.uint8)
    if data.numel() % 8 or data.storage_offset() % 8:
        return int.from_bytes(data.cpu().numpy().tobytes(), "little")
    return int(data.view(torch.int64).sum())
