"""Rollouts: T steps of one unit, kept on the device of its pack.

Axes: T steps, R rows of a unit (R = P * b, policy-major), P policies, B = b rows of a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .fields import FIELDS, OUTCOMES, Span, Transitions, poisoned
from .observations import MAX_STACK, ObsLayout, bytes_of, push_frames
from .streams import Mark


def native(tensor: Tensor) -> Any:
    """Return a CPU tensor as numpy, whose small writes cost a tenth; a tensor of another device as it is."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


Stacks = Mapping[str, Tensor]
"""Newest stack of each observation whose frames are stacked, [R, H, W]; a unit has one, whatever rollout it fills."""


def make_stacks(layouts: Mapping[str, ObsLayout], rows: int, device: torch.device) -> dict[str, Tensor]:
    """Make the stacks of a unit, poisoned."""
    return {
        name: poisoned((rows, *layout.stored[1]), layout.stored[0], device)
        for name, layout in layouts.items()
        if layout.stack > 1
    }


OBS = "obs."
"""Begins the names of observations among those of other arrays."""


def shapes_on_device(
    layouts: Mapping[str, ObsLayout], steps: int, rows: int, action: tuple[int, torch.dtype], state_size: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return name -> (shape, dtype) of a rollout's arrays on the device: what policies write, and `OBS`."""
    sizes = {"action": action[0], "state": state_size}
    shapes = {
        name: (
            spec.shape(steps, rows, sizes),
            action[1] if spec.dtype == "action" else getattr(torch, spec.dtype),
        )
        for name, spec in FIELDS.items()
        if spec.source == "policy"
    }
    return shapes | {
        OBS + name: ((layout.history + steps + 1, rows, *layout.kept[1]), layout.kept[0])
        for name, layout in layouts.items()
    }


@dataclass(frozen=True)
class Memory:
    """All that the units of a sampler have on the device, of one kind in one piece."""

    rollouts: dict[str, Tensor]
    """Name as in `shapes_on_device` -> [rollouts, ...]."""
    stacks: dict[str, Tensor]
    """Name -> [units, R, H, W]."""
    states: Tensor
    """[units, R, S] recurrent state before the newest observation."""

    @classmethod
    def make(
        cls,
        layouts: Mapping[str, ObsLayout],
        steps: int,
        rows: int,
        action: tuple[int, torch.dtype],
        state_size: int,
        device: torch.device,
        rollouts: int,
        units: int,
    ) -> Memory:
        """Make it, poisoned but for the states."""
        shapes = shapes_on_device(layouts, steps, rows, action, state_size)
        return cls(
            {name: poisoned((rollouts, *shape), dtype, device) for name, (shape, dtype) in shapes.items()},
            {
                name: stack.view(units, rows, *stack.shape[1:])
                for name, stack in make_stacks(layouts, units * rows, device).items()
            },
            torch.zeros(units, rows, state_size, device=device),
        )


class Rollout(Transitions[NDArray[Any]]):
    """Buffers of T steps of a unit, made once and used again and again. Fresh memory is poisoned.

    Beside the fields of `Transitions`:

    obs: name -> [T+1, R, ...] on the device, as kept; of stacked frames [3+T+1, R, ...], three from before step 0.
    updates[t, p]: batches that the weights which acted at step t had learned from.
    weights_epoch[p]: that of the slot when the rollout began; exchanged weights make the rollout outdated.
    unit: number of the unit that fills it, among those of the pack.
    number: among those of a sampler, whose `memory` they share; it is given and stays.
    on_device: all memory that it has there.
    ready: set by whoever hands the rollout on; the next one uses it after this mark (streams.py).

    The same memory prepared for writing, so that a step costs no look-up of shapes:

    by_policy: name -> [T(+1), P, B, ...] of every field that the policy writes at each step, as `native` gives it.
    outcomes: the arrays of OUTCOMES, in that order.
    unstacked[t]: name -> [P, B, ...] of every observation without stacked frames.
    """

    def __init__(
        self,
        layouts: Mapping[str, ObsLayout],
        steps: int,
        rows: int,
        policies: int,
        action: tuple[int, torch.dtype],
        state_size: int,
        device: torch.device,
        number: int = 0,
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        shapes = shapes_on_device(layouts, steps, rows, action, state_size)
        of_device = {
            name: poisoned(shape, dtype, device) if memory is None else memory[name][number]
            for name, (shape, dtype) in shapes.items()
        }
        arrays: dict[str, Any] = {
            name: spec.on_host(spec.shape(steps, rows, {}))
            if spec.source == "environment"
            else of_device[name]
            for name, spec in FIELDS.items()
        }
        super().__init__(**arrays)
        self.number = number

        self.layouts, self.steps, self.rows = layouts, steps, rows
        self.obs = {name: of_device[OBS + name] for name in layouts}
        self.updates = np.full((steps, policies), -1, np.int64)
        self.weights_epoch = np.full(policies, -1, np.int64)
        self.unit = -1
        self.ready: Mark | None = None

        def split(x: Tensor) -> Tensor:
            return x.view(x.shape[0], policies, rows // policies, *x.shape[2:])

        self.by_policy = {
            name: native(split(arrays[name]))
            for name, spec in FIELDS.items()
            if spec.source == "policy" and spec.span is not Span.START
        }
        self.outcomes = [arrays[name] for name in OUTCOMES]
        unstacked = {name: split(obs) for name, obs in self.obs.items() if layouts[name].stack == 1}
        self.unstacked = [{name: obs[t] for name, obs in unstacked.items()} for t in range(steps + 1)]
        self.on_device = list(of_device.values())
        self._on_host = device.type == "cpu"
        self._obs = {name: native(obs) for name, obs in self.obs.items()}

    def write_obs(
        self, t: int, obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_], stacks: Stacks
    ) -> None:
        """Copy the observation of step t from the host, and push frames onto the unit's stacks.

        t = 0 only for a unit's very first: all rows are `first`.
        """
        self.first[t] = first
        for name, layout in self.layouts.items():
            row = layout.history + t
            if self._on_host:
                self._obs[name][row] = obs[name]
            else:
                self.obs[name][row].copy_(torch.from_numpy(obs[name]), non_blocking=True)
            if layout.stack > 1:
                push_frames(stacks[name], self.obs[name][row], first)
                if t == 0:
                    self._begin_with(name, stacks[name])

    def follow(self, before: Rollout, stacks: Stacks) -> None:
        """Begin where `before` ended: its last observation, of which `stacks` are, is this one's first."""
        for name, obs in self._obs.items():
            if name in stacks:
                self._begin_with(name, stacks[name])
            else:
                obs[0] = before._obs[name][-1]
        self.first[0] = before.first[-1]

    def _begin_with(self, name: str, stack: Tensor) -> None:
        """Keep a stack as the frame of step 0 and those before it."""
        self._obs[name][:MAX_STACK] = native(bytes_of(stack))
