"""Rollouts: T steps of one vector env on its pack's device, and the table of transition fields of the learner.

Each field has one name from environment to loss:

    StepArrays (mailbox) -> Rollout [T, R] -> Batch [P, T, B] -> Samples [G, T, B] -> loss [N]

`Transitions` is the table of fields. Rollouts, batches and samples are subclasses of it, and its specs determine how
their arrays are allocated, concatenated, sliced and uploaded. Fields produced by the environment have the same name in
`envs.base.StepArrays`. Observations are stored separately, because an environment may have several (see
observations.py).

Axes: T steps, R rows of a vector env (R = P * b, policy-major), P policies, B rows of a policy in a batch (in one
rollout: b), G policies of a group, A action components, S recurrent state, N samples.
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
"""Type of environment fields: a numpy array in a rollout, a device tensor in a batch."""


class Span(Enum):
    """Range of steps for which a field has values."""

    STEPS = auto()
    """[T, R, ...]: every step"""
    STEPS_AND_NEXT = auto()
    """[T+1, R, ...]: every step and the observation after the last one"""
    START = auto()
    """[R, ...]: before the first step"""


@dataclass(frozen=True)
class FieldSpec:
    """Specification of one field. Source environment: float32 or bool on the host; source policy: on the device."""

    source: Literal["environment", "policy"]
    span: Span
    dtype: Literal["float32", "bool", "action"] = "float32"
    """`action`: the dtype of the environment's actions."""
    width: Literal["action", "state"] | None = None
    """Name of the size of the last axis; None: one value per row."""
    poison: bool = True
    """Initial value of a bool."""

    def shape(self, steps: int, rows: int, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of the array in a rollout."""
        leading = {Span.STEPS: (steps,), Span.STEPS_AND_NEXT: (steps + 1,), Span.START: ()}[self.span]
        return (*leading, rows, *((sizes[self.width],) if self.width else ()))

    def on_host(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Allocate poisoned memory on the host."""
        return np.full(shape, self.poison if self.dtype == "bool" else np.nan, self.dtype)


@dataclass(frozen=True, eq=False)
class Transitions(Generic[HostArray]):
    """Table of the fields of T steps."""

    action: Annotated[Tensor, FieldSpec("policy", Span.STEPS, "action", width="action")]
    """Sampled at each step, before clipping by an environment."""
    log_prob: Annotated[Tensor, FieldSpec("policy", Span.STEPS)]
    """Log probability of the action under the weights that sampled it."""
    value: Annotated[Tensor, FieldSpec("policy", Span.STEPS_AND_NEXT)]
    """Value of the observation under the acting weights, in reward units."""
    state: Annotated[Tensor, FieldSpec("policy", Span.START, width="state")]
    """Recurrent state before the first step."""
    reward: Annotated[HostArray, FieldSpec("environment", Span.STEPS)]
    """Reward for learning."""
    terminated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition reached a terminal state: no bootstrap."""
    truncated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition reached a time limit: bootstrap from the observation that came with it."""
    first: Annotated[HostArray, FieldSpec("environment", Span.STEPS_AND_NEXT, "bool", poison=False)]
    """The observation starts an episode; the transition to it was a reset. The poison is False, so that NaN of
    unwritten steps reaches the loss."""


FIELDS: dict[str, FieldSpec] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Transitions, include_extras=True).items()
}
OUTCOMES = tuple(
    name for name, spec in FIELDS.items() if spec.source == "environment" and spec.span is Span.STEPS
)
"""Fields that the environment returns for an action."""


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate device memory filled with poison, which exposes reads of unwritten memory."""
    return torch.full(shape, poison(dtype), dtype=dtype, device=device)


def poison(dtype: torch.dtype) -> float:
    """Return the fill value of unwritten memory."""
    if dtype.is_floating_point:
        return torch.nan
    return 0xA5 if dtype == torch.uint8 else -0x5A5A5A5B


def native(tensor: Tensor) -> Any:
    """Convert a CPU tensor to numpy, whose small writes cost a tenth; keep other tensors."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


Stacks = Mapping[str, Tensor]
"""Newest stack of each observation with frame stacking, [R, H, W]; one per vector env, shared by its rollouts."""


def make_stacks(layouts: Mapping[str, ObsLayout], rows: int, device: torch.device) -> dict[str, Tensor]:
    """Allocate the stacks of a vector env, poisoned."""
    return {
        name: poisoned((rows, *layout.stored[1]), layout.stored[0], device)
        for name, layout in layouts.items()
        if layout.stack > 1
    }


OBS = "obs."
"""Prefix of observation names among the names of other arrays."""
LAST_STATE = "last_state"


@dataclass(frozen=True)
class RolloutShape:
    """Sizes and dtypes of the rollouts of a pack's vector envs."""

    layouts: Mapping[str, ObsLayout]
    steps: int
    """T"""
    rows: int
    """R, over all policies in one vector env"""
    policies: int
    action: tuple[int, torch.dtype]
    """Columns and dtype."""
    state_size: int
    device: torch.device

    @property
    def envs(self) -> int:
        """Rows per policy."""
        return self.rows // self.policies

    def array(self, spec: FieldSpec, rows: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and dtype of a field's array with `rows` rows."""
        dtype = self.action[1] if spec.dtype == "action" else getattr(torch, spec.dtype)
        return spec.shape(self.steps, rows, {"action": self.action[0], "state": self.state_size}), dtype

    def on_device(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return name -> (shape, dtype) of a rollout's device arrays.

        Names: the fields of the policy, LAST_STATE, and observations with prefix OBS.
        """
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
    """Device memory of all vector envs of a sampler, one tensor per kind."""

    rollouts: dict[str, Tensor]
    """Name as in `RolloutShape.on_device` -> [rollouts, ...]."""
    stacks: dict[str, Tensor]
    """Name -> [U, R, H, W]."""
    states: Tensor
    """[U, R, S] recurrent state before the newest observation"""

    @classmethod
    def make(cls, of: RolloutShape, rollouts: int, vector_envs: int) -> Memory:
        """Allocate the memory: states are zero, the rest is poisoned."""
        device = of.device
        stacks = make_stacks(of.layouts, vector_envs * of.rows, device)
        return cls(
            {
                name: poisoned((rollouts, *shape), dtype, device)
                for name, (shape, dtype) in of.on_device().items()
            },
            {name: stack.view(vector_envs, of.rows, *stack.shape[1:]) for name, stack in stacks.items()},
            torch.zeros(vector_envs, of.rows, of.state_size, device=device),
        )


class Rollout(Transitions[NDArray[Any]]):
    """Reusable buffers of T steps of a vector env, initially poisoned.

    Fields in addition to those of `Transitions`:

    obs: name -> [T+1, R, ...] on the device, as stored; with frame stacking [3+T+1, R, ...], three from before step 0.
    last_state: [R, S] recurrent state before the observation after the last step.
    weights_version[t, p]: number of optimiser steps of the weights that acted at step t.
    lineage_version[p]: the slot's value when the rollout started; exchanged weights make the rollout outdated.
    vector_env: number of the vector env that fills it, within the pack.
    number: fixed index of this rollout in the sampler's `memory`.
    on_device: all its device memory.
    ready: mark set by the previous user; the next user waits for it (device.py).

    Views of the same memory, precomputed so that a step needs no shape look-ups:

    by_policy: name -> [T(+1), P, B, ...] of every field that the policy writes at each step, as `native` returns it.
    outcomes: the arrays of OUTCOMES, in that order.
    unstacked[t]: name -> [P, B, ...] of every observation without frame stacking.
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
        self.lineage_version = np.full(of.policies, -1, np.int64)
        self.vector_env = -1
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
        """Copy the observation of step t from the host, and push frames.

        t = 0 only for the very first observation of a vector env: all rows are `first`.
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
        """Start with the last observation of `before`, which has these stacks."""
        for name, obs in self._obs.items():
            if name in stacks:
                self._begin_with(name, stacks[name])
            else:
                obs[0] = before._obs[name][-1]
        self.first[0] = before.first[-1]

    def _begin_with(self, name: str, stack: Tensor) -> None:
        """Store a stack's frames as step 0 and the steps before it."""
        self._obs[name][:MAX_STACK] = native(bytes_of(stack))
