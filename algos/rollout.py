"""Rollouts, and the table of all transition fields of the learner.

A rollout contains T steps of one vector env: observations and fields of the policy on the device of the pack, fields of
the environment on the host. A field keeps its name from the environment to `Samples`:

    StepArrays (mailbox) -> Rollout [T, R] -> Batch [P, T, B] -> Samples [G, T, B] -> loss [N]

`Transitions` is the table of fields. `Rollout`, `Batch` and `Samples` are subclasses of `Transitions`. A field's spec
determines how the field's arrays are allocated, concatenated, sliced and uploaded. Observations are stored separately,
because an environment may have several (see observations.py).

Axes: T steps, R rows of a vector env (R = P * b, policy-major), P policies, B rows of a policy in a batch, b rows of a
policy in a rollout, G policies of a group, U vector envs, A action components, S recurrent state, N samples.
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

from .kernels import Mark
from .observations import MAX_STACK, ObsLayout, bytes_of, push_frames

HostArray = TypeVar("HostArray", Tensor, NDArray[Any])
"""Type of an environment field: a numpy array in a rollout, a device tensor in a batch."""


class Span(Enum):
    """Range of steps that a field covers."""

    STEPS = auto()
    """[T, R, ...]: every step"""
    STEPS_AND_NEXT = auto()
    """[T+1, R, ...]: every step and the observation after the last step"""
    START = auto()
    """[R, ...]: one value, from before the first step"""


@dataclass(frozen=True)
class FieldSpec:
    """Specification of one transition field.

    source: writer of the field. In a `Rollout`, fields of the environment are on the host, and fields of the policy on
    the device.
    span: steps that the field covers.
    """

    source: Literal["environment", "policy"]
    span: Span
    dtype: Literal["float32", "bool", "action"] = "float32"
    """`action`: the dtype of the environment's actions."""
    width: Literal["action", "state"] | None = None
    """Last axis: A or S. None: one value per row."""
    poison: bool = True
    """Fill value of a bool array that is not written yet."""

    def shape(self, steps: int, rows: int, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of this field's array in a rollout. sizes: name in `width` -> length of the last axis."""
        leading = {Span.STEPS: (steps,), Span.STEPS_AND_NEXT: (steps + 1,), Span.START: ()}[self.span]
        return (*leading, rows, *((sizes[self.width],) if self.width else ()))

    def on_host(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Allocate an array on the host, filled with NaN, or with `poison` if bool."""
        return np.full(shape, self.poison if self.dtype == "bool" else np.nan, self.dtype)


@dataclass(frozen=True, eq=False)
class Transitions(Generic[HostArray]):
    """Table of transition fields for T steps."""

    action: Annotated[Tensor, FieldSpec("policy", Span.STEPS, "action", width="action")]
    """Action as sampled, before clipping or squashing."""
    log_prob: Annotated[Tensor, FieldSpec("policy", Span.STEPS)]
    """Log probability of the action under the weights that sampled it."""
    value: Annotated[Tensor, FieldSpec("policy", Span.STEPS_AND_NEXT)]
    """Value of the observation under the weights that acted, in reward units."""
    state: Annotated[Tensor, FieldSpec("policy", Span.START, width="state")]
    """Recurrent state before the first step."""
    reward: Annotated[HostArray, FieldSpec("environment", Span.STEPS)]
    """Reward for learning."""
    terminated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition reached a terminal state. No bootstrap."""
    truncated: Annotated[HostArray, FieldSpec("environment", Span.STEPS, "bool")]
    """The transition reached a time limit. Bootstrap from the final observation."""
    first: Annotated[HostArray, FieldSpec("environment", Span.STEPS_AND_NEXT, "bool", poison=False)]
    """The observation starts an episode. With next-step resets, the transition to this observation was a reset.
    Unwritten entries are False, so that unwritten steps count as valid and the NaN in their other fields reaches the
    loss."""


FIELDS: dict[str, FieldSpec] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Transitions, include_extras=True).items()
}
OUTCOMES = tuple(
    name for name, spec in FIELDS.items() if spec.source == "environment" and spec.span is Span.STEPS
)
"""Fields that the environment returns for an action."""


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate device memory filled with `poison`, a value that exposes reads of unwritten memory."""
    return torch.full(shape, poison(dtype), dtype=dtype, device=device)


def poison(dtype: torch.dtype) -> float:
    """Return the poison of a dtype: the fill value of memory that is not written yet."""
    if dtype.is_floating_point:
        return torch.nan
    return 0xA5 if dtype == torch.uint8 else -0x5A5A5A5B


def native(tensor: Tensor) -> Any:
    """Convert a CPU tensor to numpy, and return tensors on other devices unchanged.

    A small write to an array takes a tenth of the time of a write to a tensor.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


Stacks = Mapping[str, Tensor]
"""Name -> newest frame stacks of a vector env, int32 [R rows, H, W]. All rollouts of the vector env share these
stacks."""


def make_stacks(layouts: Mapping[str, ObsLayout], rows: int, device: torch.device) -> dict[str, Tensor]:
    """Allocate the frame stacks of one or more vector envs with `rows` rows in total, filled with poison.

    Result: name -> int32 [rows, H, W], only for observations with frame stacking.
    """
    return {
        name: poisoned((rows, *layout.stored[1]), layout.stored[0], device)
        for name, layout in layouts.items()
        if layout.stack > 1
    }


OBS = "obs."
"""Prefix of observation names in mappings that also contain fields."""
LAST_STATE = "last_state"


@dataclass(frozen=True)
class RolloutShape:
    """Sizes and dtypes of the rollouts of a pack's vector envs."""

    layouts: Mapping[str, ObsLayout]
    steps: int
    """T, steps of a rollout"""
    rows: int
    """R, rows of all policies in one vector env"""
    policies: int
    action: tuple[int, torch.dtype]
    """Number of components (A) and dtype."""
    state_size: int
    device: torch.device

    @property
    def envs(self) -> int:
        """b, rows of one policy in a vector env."""
        return self.rows // self.policies

    def array(self, spec: FieldSpec, rows: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and dtype of a field's array with `rows` rows."""
        dtype = self.action[1] if spec.dtype == "action" else getattr(torch, spec.dtype)
        return spec.shape(self.steps, rows, {"action": self.action[0], "state": self.state_size}), dtype

    def on_device(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Map the names of a rollout's device arrays to (shape, dtype).

        The names are the policy's fields, LAST_STATE, and observation names with the prefix OBS.
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
    """Device memory of all rollouts and vector envs of a sampler."""

    rollouts: dict[str, Tensor]
    """Name in `RolloutShape.on_device` -> [rollouts, ...]."""
    stacks: dict[str, Tensor]
    """Name -> frame stacks, int32 [U vector envs, R rows, H, W]."""
    states: Tensor
    """[U, R, S], recurrent state for the next inference"""

    @classmethod
    def make(cls, of: RolloutShape, rollouts: int, vector_envs: int) -> Memory:
        """Allocate the memory. Recurrent states are zero; all other memory is filled with poison."""
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
    """Reusable buffer for T steps of a vector env, initially filled with poison, such as NaN.

    Fields in addition to those of `Transitions`:

    obs: name -> [T+1, R, ...] on the device. With frame stacking [3+T+1, R, ...], including three frames before step 0.
    last_state: [R, S], recurrent state after step T - 1: the network's input together with the last observation.
    weights_version[t, p]: number of optimiser steps that had been published for slot p at step t.
    lineage_version[p]: lineage version of slot p at the start of the rollout. The version changes when the weights in
    the slot are replaced; the rollout is then outdated.
    vector_env: index of the vector env that fills the rollout, within the pack.
    number: index of this rollout in the sampler's `memory`.
    on_device: all device memory of the rollout.
    ready: `Mark` (position in a device stream) after the last use of the buffer. The next user of the buffer waits for
    this mark (kernels.py). None: no wait is needed.

    Views of the memory of these fields, created once because creating views at each step is slow:

    by_policy: name -> [T(+1), P, b, ...] of each field that the policy writes at every step; on a CPU, numpy arrays.
    outcomes: the arrays of OUTCOMES, in that order.
    unstacked[t]: name -> [P, b, ...] of each observation without frame stacking.
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
        """Copy the observation of step t from the host, and push its frames onto `stacks`.

        Use t = 0 only for the first observation of a vector env, where all rows are `first`. Start all later rollouts
        by `follow`.

        obs: name -> [R rows, ...], with frame stacking only the newest frame.
        first: [R], True where the observation is the first of an episode.
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
        """Copy the last observation of the rollout `before` to step 0. stacks: frame stacks of this observation."""
        for name, obs in self._obs.items():
            if name in stacks:
                self._begin_with(name, stacks[name])
            else:
                obs[0] = before._obs[name][-1]
        self.first[0] = before.first[-1]

    def _begin_with(self, name: str, stack: Tensor) -> None:
        """Store the frames of stacks [R, H, W]: the newest frame as step 0, older frames as the steps before step 0."""
        self._obs[name][:MAX_STACK] = native(bytes_of(stack))
