"""How observations are stored on the device of a pack, and how frames are stacked there.

An observation crosses from host to device once, when it arrives. If frames are stacked, the stack is built then, as
one 32-bit number per pixel (the newest frame in the highest byte), and serves acting and learning. Viewed as bytes it
is a channels-last image of 4 channels without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import kernel

MAX_STACK = 4


@dataclass(frozen=True)
class ObsLayout:
    """Storage of one observation array: numpy dtype name, shape of one row, number of frames stacked."""

    dtype: str
    shape: tuple[int, ...]
    stack: int = 1

    @property
    def stored(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and row shape of the rollout's array."""
        return (torch.int32 if self.stack > 1 else getattr(torch, self.dtype)), self.shape

    @property
    def seen(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype name of the network's input: stacked frames are channels in front."""
        return ((self.stack, *self.shape) if self.stack > 1 else self.shape), self.dtype

    def as_seen(self, stored: Tensor) -> Tensor:
        """View [..., *stored shape] as [..., *seen shape], without a copy."""
        if self.stack == 1:
            return stored
        return (
            stored.view(torch.uint8)
            .view(*stored.shape, MAX_STACK)[..., MAX_STACK - self.stack :]
            .movedim(-1, -3)
        )


@kernel
def _push_frames(
    out: NDArray[np.uint32], before: NDArray[np.uint32], frame: NDArray[np.uint8], first: NDArray[np.bool_]
) -> None:
    for r in range(out.shape[0]):
        if first[r]:
            for i in range(out.shape[1]):
                out[r, i] = np.uint32(frame[r, i]) << np.uint32(24)
        else:
            for i in range(out.shape[1]):
                out[r, i] = (before[r, i] >> np.uint32(8)) | (np.uint32(frame[r, i]) << np.uint32(24))


def push_frames(out: Tensor, before: Tensor, frame: NDArray[np.uint8], first: NDArray[np.bool_]) -> None:
    """Write into `out` the stack `before` with `frame` as its newest; rows that are `first` begin an empty stack.

    out, before: int32 [R, H, W] on the device; frame: [R, H, W] on the host; first: [R]. Frames from before an
    episode are black.
    """
    rows = out.shape[0]
    if out.device.type == "cpu":
        _push_frames(
            out.view(rows, -1).numpy().view(np.uint32),
            before.view(rows, -1).numpy().view(np.uint32),
            frame.reshape(rows, -1),
            first,
        )
        return
    on_device = [torch.from_numpy(x).to(out.device, non_blocking=True) for x in (frame, first)]
    push_frames_torch(out, before, *on_device)


def push_frames_torch(out: Tensor, before: Tensor, frame: Tensor, first: Tensor) -> None:
    """Compute the same as the kernel, for all rows at once."""
    newest = frame.to(torch.int32) << 24
    older = (before >> 8) & 0x00FFFFFF
    torch.bitwise_or(older * ~first[:, None, None], newest, out=out)
