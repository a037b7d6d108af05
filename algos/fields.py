"""The fields of a transition on the learner's side: one table, and one name per field from environment to loss.

    StepArrays (mailbox) -> Rollout [T, R] -> Batch [P, T, B] -> Samples [G, T, B] -> loss [N]

`Transitions` is that table: rollouts, batches and samples are classes of it, and their arrays are made, placed side by
side, cut and uploaded by the specs in it. A field that the environment produces has the same name in
`envs.base.StepArrays`. Observations travel beside it, because an environment may have several (see observations.py).

Axes: T steps, R rows of a unit (R = P * b, policy-major), P policies, B rows of a policy in a batch, G policies of a
group, A action components, S recurrent state, N samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
