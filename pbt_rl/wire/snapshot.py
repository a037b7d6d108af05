"""A member's whole state as one value.

N parameters of a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from pbt_rl.pbt.hypers import Values

ArrayLayout: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(name, dtype, shape) of each array of a member's state, in a fixed order."""


@dataclass(frozen=True)
class SnapshotHeader:
    """What a member is besides its arrays; small enough for a message."""

    member: int
    generation: int
    values: Values
    """Hypers and shaping."""
    frames: int
    """Emulator frames that were sampled for it, in total."""
    steps: int
    """Steps that it has learned from, in total."""
    updates: int
    """Batches that it has learned from, in total."""
    fresh_frames: int
    """Its frames when its weights were last drawn: where the learning rate's schedule begins."""
    remembered: bool = False
    """A past state that the controller wants kept."""


@dataclass(frozen=True)
class MemberSnapshot:
    """Everything that makes a member what it is."""

    header: SnapshotHeader
    arrays: Mapping[str, NDArray[Any]]
    """In host memory, never written to. "param" [N] float32 and each moment [N], flat by the network's layout;
    "optimizer_steps" [] float64; "lr_factor" [] float32; normalisers."""


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayLayout:
    """Return the layout of a member's arrays."""
    return tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
