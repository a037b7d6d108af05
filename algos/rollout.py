"""Rollouts: T steps of one unit, kept on the device of its pack; and the fields of a transition on the learner's side.

There is one table of fields, and one name per field from environment to loss:

    StepArrays (mailbox) -> Rollout [T, R] -> Batch [P, T, B] -> Samples [G, T, B] -> loss [N]

`Transitions` is that table: rollouts, batches and samples are classes of it, and their arrays are made, placed side by
side, cut and uploaded by the specs in it. A field that the environment produces has the same name in
`envs.base.StepArrays`. Observations travel beside it, because an environment may have several (see observations.py).

Axes: T steps, R rows of a unit (R = P * b, policy-major), P policies, B rows of a policy in a batch (of one rollout:
b), G policies of a group, A action components, S recurrent state, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import Mark
from .observations import MAX_STACK, ObsLayout, bytes_of, push_frames

HostArray = TypeVar("HostArray", Tensor, NDArray[Any])
"""Where rewards arrive: a numpy array in a rollout, a tensor on the device in a batch."""


class Span(Enum):
    """The steps of a rollout that a field has values for."""

    STEPS = auto()
    """[T, R, ...]: every step."""
    STEPS_AND_NEXT = auto()
    """[T+1, R, ...]: every step, and the observation after the last one."""
    START = auto()
    """[R, ...]: before the first step."""


@dataclass(frozen=True)
class FieldSpec:
    """One field. From the environment: on the host, float32 or bool. From the policy: on the device."""

    source: Literal["environment", "policy"]
    span: Span
    dtype: Literal["float32", "bool", "action"] = "float32"
    """`action`: that of the environment's actions."""
    width: Literal["action", "state"] | None = None
    """Name of the size of the last axis; None: one number per row."""
    poison: bool = True
    """Value of a bool that was never written."""

    def shape(self, steps: int, rows: int, sizes: dict[str, int]) -> tuple[int, ...]:
        """Shape of the array in a rollout."""
        leading = {Span.STEPS: (steps,), Span.STEPS_AND_NEXT: (steps + 1,), Span.START: ()}[self.span]
        return (*leading, rows, *((sizes[self.width],) if self.width else ()))

    def on_host(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Make poisoned memory on the host."""
        return np.full(shape, self.poison if self.dtype == "bool" else np.nan, self.dtype)


@dataclass(frozen=True, eq=False)
class Transitions(Generic[HostArray]):
    """T steps of some rows: the table of fields."""

    action: Annotated[Tensor, FieldSpec("policy", Span.STEPS, "action", width="action")]
    """Drawn at each step, before an environment clips it."""
    log_prob: Annotated[Tensor, FieldSpec("policy", Span.STEPS)]
    """Log probability of the action under the weights that drew it."""
    value: Annotated[Tensor, FieldSpec("policy", Span.STEPS_AND_NEXT)]
    """Value of the observation under the weights that acted, in reward units."""
    state: Annotated[Tensor, FieldSpec("policy", Span.START, width="state")]
    """Recurrent state before the first step."""
    reward: Annotated[HostArray, FieldSpec("environment", Span.STEPS)]
    """Reward for learning."""
    terminated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition ended in a terminal state: no bootstrap."""
    truncated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition reached a limit: bootstrap from the observation that came with it."""
    first: Annotated[HostArray, FieldSpec("environment", Span.STEPS_AND_NEXT, "bool", poison=False)]
    """The observation begins an episode; the transition to it was a reset. Poison: a step that was never written
    counts, so that its NaN reaches the loss."""


FIELDS: dict[str, FieldSpec] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Transitions, include_extras=True).items()
}
OUTCOMES = tuple(
    name for name, spec in FIELDS.items() if spec.source == "environment" and spec.span is Span.STEPS
)
"""Fields by which the environment answers an action."""


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make memory on a device that shows if it is read before it is written."""
    return torch.full(shape, poison(dtype), dtype=dtype, device=device)


def poison(dtype: torch.dtype) -> float:
    """Return what memory holds that was never written."""
    if dtype.is_floating_point:
        return torch.nan
    return 0xA5 if dtype == torch.uint8 else -0x5A5A5A5B


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
LAST_STATE = "last_state"


@dataclass(frozen=True)
class RolloutShape:
    """What the rollouts of a pack's units are made for."""

    layouts: Mapping[str, ObsLayout]
    steps: int
    """T"""
    rows: int
    """R: of all policies in one unit."""
    policies: int
    action: tuple[int, torch.dtype]
    """Columns and dtype."""
    state_size: int
    device: torch.device

    @property
    def envs(self) -> int:
        """Rows of each policy."""
        return self.rows // self.policies

    def array(self, spec: FieldSpec, rows: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and dtype of a field's array, of so many rows."""
        dtype = self.action[1] if spec.dtype == "action" else getattr(torch, spec.dtype)
        return spec.shape(self.steps, rows, {"action": self.action[0], "state": self.state_size}), dtype

    def on_device(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return name -> (shape, dtype) of a rollout's arrays on the device: of the policies, LAST_STATE and `OBS`."""
        shapes = {
            name: self.array(spec, self.rows) for name, spec in FIELDS.items() if spec.source == "policy"
        }
        shapes[LAST_STATE] = ((self.rows, self.state_size), torch.float32)
        return shapes | {
            OBS + name: ((layout.history + self.steps + 1, self.rows, *layout.kept[1]), layout.kept[0])
            for name, layout in self.layouts.items()
        }


@dataclass(frozen=True)
class Memory:
    """All that the units of a sampler have on the device, of one kind in one piece."""

    rollouts: dict[str, Tensor]
    """Name as in `RolloutShape.on_device` -> [rollouts, ...]."""
    stacks: dict[str, Tensor]
    """Name -> [units, R, H, W]."""
    states: Tensor
    """[units, R, S] recurrent state before the newest observation."""

    @classmethod
    def make(cls, of: RolloutShape, rollouts: int, units: int) -> Memory:
        """Make it, poisoned but for the states."""
        device = of.device
        stacks = make_stacks(of.layouts, units * of.rows, device)
        return cls(
            {
                name: poisoned((rollouts, *shape), dtype, device)
                for name, (shape, dtype) in of.on_device().items()
            },
            {name: stack.view(units, of.rows, *stack.shape[1:]) for name, stack in stacks.items()},
            torch.zeros(units, of.rows, of.state_size, device=device),
        )


class Rollout(Transitions[NDArray[Any]]):
    """Buffers of T steps of a unit, made once and used again and again. Fresh memory is poisoned.

    Beside the fields of `Transitions`:

    obs: name -> [T+1, R, ...] on the device, as kept; of stacked frames [3+T+1, R, ...], three from before step 0.
    last_state: [R, S] recurrent state before the observation after the last step.
    weights_version[t, p]: optimiser steps that the weights which acted at step t had taken.
    weights_epoch[p]: that of the slot when the rollout began; exchanged weights make the rollout outdated.
    unit: number of the unit that fills it, among those of the pack.
    number: among those of a sampler, whose `memory` they share; it is given and stays.
    on_device: all memory that it has there.
    ready: set by whoever hands the rollout on; the next one uses it after this mark (device.py).

    The same memory prepared for writing, so that a step costs no look-up of shapes:

    by_policy: name -> [T(+1), P, B, ...] of every field that the policy writes at each step, as `native` gives it.
    outcomes: the arrays of OUTCOMES, in that order.
    unstacked[t]: name -> [P, B, ...] of every observation without stacked frames.
    """

    def __init__(self, of: RolloutShape, number: int = 0, memory: Mapping[str, Tensor] | None = None) -> None:
        of_device = {
            name: poisoned(shape, dtype, of.device) if memory is None else memory[name][number]
            for name, (shape, dtype) in of.on_device().items()
        }
        arrays: dict[str, Any] = {
            name: spec.on_host(of.array(spec, of.rows)[0])
            if spec.source == "environment"
            else of_device[name]
            for name, spec in FIELDS.items()
        }
        super().__init__(**arrays)
        self.number = number

        self.layouts, self.steps, self.rows = of.layouts, of.steps, of.rows
        self.obs = {name: of_device[OBS + name] for name in of.layouts}
        self.last_state = of_device[LAST_STATE]
        self.weights_version = np.full((of.steps, of.policies), -1, np.int64)
        self.weights_epoch = np.full(of.policies, -1, np.int64)
        self.unit = -1
        self.ready: Mark | None = None

        def split(x: Tensor) -> Tensor:
            return x.view(x.shape[0], of.policies, of.envs, *x.shape[2:])

        self.by_policy = {
            name: native(split(arrays[name]))
            for name, spec in FIELDS.items()
            if spec.source == "policy" and spec.span is not Span.START
        }
        self.outcomes = [arrays[name] for name in OUTCOMES]
        unstacked = {name: split(obs) for name, obs in self.obs.items() if of.layouts[name].stack == 1}
        self.unstacked = [{name: obs[t] for name, obs in unstacked.items()} for t in range(of.steps + 1)]
        self.on_device = list(of_device.values())
        self._on_host = of.device.type == "cpu"
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
