"""Storage of observations on a pack's device, and frame stacking there.

An observation of a vector env is copied from host to device once, when it arrives. With frame stacking, a rollout
stores single frames, which takes a quarter of the memory. Observations usually take most of a learner's memory.

A stack has one int32 per pixel, with the newest frame in the highest byte. Viewed as bytes, a stack is a channels-last
image of 4 channels, without a copy. Acting pushes each new frame onto the stacks of its vector env. Learning builds the
stacks of a batch from the frames (`restack`).

The first stack of an episode repeats the first frame. Black frames are not used as padding, because after normalisation
black frames are far from all other inputs, and gradients at steps with black frames are ten times larger.

Axes: T steps, S stored frames of a row (more than T), R rows of a vector env, G policies, b rows per policy in a vector
env, B rows of a policy in a batch, N pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels import kernel

MAX_STACK = 4


@dataclass(frozen=True)
class ObsLayout:
    """Storage of one observation: numpy dtype name, shape of a row, number of stacked frames."""

    dtype: str
    shape: tuple[int, ...]
    stack: int = 1

    @property
    def stored(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and row shape in a batch, with stacked frames."""
        return (torch.int32 if self.stack > 1 else getattr(torch, self.dtype)), self.shape

    @property
    def kept(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and row shape in a rollout, which stores single frames."""
        return getattr(torch, self.dtype), self.shape

    @property
    def history(self) -> int:
        """Number of additional frames in a rollout, which come before the first step."""
        return MAX_STACK - 1 if self.stack > 1 else 0

    @property
    def seen(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype name of the network's input, with stacked frames as leading channels."""
        return ((self.stack, *self.shape) if self._grey else self.shape), self.dtype

    @property
    def _grey(self) -> bool:
        return self.dtype == "uint8" and len(self.shape) == 2

    def as_seen(self, stored: Tensor) -> Tensor:
        """View [..., *stored shape] as [..., *seen shape], without a copy."""
        if self.stack == 1:
            return stored.unsqueeze(-3) if self._grey else stored
        return (
            stored.view(torch.uint8)
            .view(*stored.shape, MAX_STACK)[..., MAX_STACK - self.stack :]
            .movedim(-1, -3)
        )


@kernel
def _push(stack_N: NDArray[np.uint32], frame_N: NDArray[np.uint8]) -> None:
    """Push a frame onto a stack in place.

    `_pushed` is a separate function, because numba does not vectorise `_pushed` if output and input are one array.
    """
    for i in range(stack_N.shape[0]):
        stack_N[i] = (stack_N[i] >> np.uint32(8)) | (np.uint32(frame_N[i]) << np.uint32(24))


@kernel
def _pushed(out_N: NDArray[np.uint32], before_N: NDArray[np.uint32], frame_N: NDArray[np.uint8]) -> None:
    """Push a frame onto the stack `before_N`; write the result to `out_N`."""
    for i in range(out_N.shape[0]):
        out_N[i] = (before_N[i] >> np.uint32(8)) | (np.uint32(frame_N[i]) << np.uint32(24))


@kernel
def _fill_stack(out_N: NDArray[np.uint32], frame_N: NDArray[np.uint8]) -> None:
    """Fill a stack with copies of one frame."""
    for i in range(out_N.shape[0]):
        out_N[i] = np.uint32(frame_N[i]) * np.uint32(0x01010101)


@kernel
def _push_frames(
    stack_RN: NDArray[np.uint32], frame_RN: NDArray[np.uint8], first_R: NDArray[np.bool_]
) -> None:
    for r in range(stack_RN.shape[0]):
        if first_R[r]:
            _fill_stack(stack_RN[r], frame_RN[r])
        else:
            _push(stack_RN[r], frame_RN[r])


@kernel
def _restack(
    out_TGBN: NDArray[np.uint32],
    frame_SRN: NDArray[np.uint8],
    first_TR: NDArray[np.bool_],
    row: int,
    column: int,
    envs: int,
) -> None:
    for t in range(out_TGBN.shape[0]):  # outermost, to write the stacks in memory order
        for g in range(out_TGBN.shape[1]):
            for b in range(envs):
                r, out_N = row + g * envs + b, out_TGBN[t, g, column + b]
                if t > 0 and first_TR[t, r]:
                    _fill_stack(out_N, frame_SRN[t + 3, r])
                elif t > 0:
                    _pushed(out_N, out_TGBN[t - 1, g, column + b], frame_SRN[t + 3, r])
                else:
                    for age in range(4):
                        _push(out_N, frame_SRN[age, r])


def restack(
    out_TGB: Tensor, frame_SR: Tensor, first_TR: NDArray[np.bool_], policy: int, column: int, envs: int
) -> None:
    """Build the stacks of a rollout's steps on the CPU.

    out_TGB: contiguous int32 [T, G, B, H, W]. Only the `envs` columns from `column` on are written.
    frame_SR: uint8 [T + 3 or more, R, H, W]. Frame t + 3 belongs to step t. If step 0 is one of the first 3 steps
    of an episode, `frame_SR` must contain copies of the episode's first frame in place of the frames before the
    episode.
    first_TR: [T or more, R] True at first steps of episodes.
    policy: index of the first policy.
    """
    steps, policies, rows = out_TGB.shape[:3]
    _restack(
        out_TGB.view(steps, policies, rows, -1).numpy().view(np.uint32),
        frame_SR.view(*frame_SR.shape[:2], -1).numpy(),
        first_TR,
        policy * envs,
        column,
        envs,
    )


def restack_torch(out_TGb: Tensor, frame_SGb: Tensor, first_TGb: Tensor) -> None:
    """Compute `restack` on any device. Frames and `first` contain only the policies and rows of `out_TGb`."""
    steps, newest = out_TGb.shape[0], MAX_STACK - 1
    frame = frame_SGb[newest : newest + steps].to(torch.int32)
    stacks = frame << (8 * newest)
    within_TGb = torch.ones_like(first_TGb)
    for age in range(1, MAX_STACK):
        # An older frame belongs to the episode of step t unless an episode started after the frame. Starts before
        # step 0 need no check, because copies have replaced the frames before such a start.
        began = first_TGb.roll(age - 1, 0)
        began[: age - 1] = False
        within_TGb = within_TGb & ~began
        older = frame_SGb[newest - age : newest - age + steps].to(torch.int32)
        frame = torch.where(within_TGb[..., None, None], older, frame)
        stacks |= frame << (8 * (newest - age))
    out_TGb.copy_(stacks)


def last_stack(frame_SGb: Tensor, first_TGb: Tensor) -> Tensor:
    """Return the stacks [G, b, H, W] of the observation after the last step of a rollout.

    frame_SGb: [T + 4, G, b, H, W], frames of the rollout, including three frames before step 0.
    first_TGb: [T + 1, G, b] True at first steps of episodes.
    """
    newest = min(first_TGb.shape[0], MAX_STACK)  # earlier steps do not affect the stack
    frames = frame_SGb[-(newest + MAX_STACK - 1) :]
    out_TGb = torch.empty((newest, *frames.shape[1:]), dtype=torch.int32, device=frames.device)
    restack_torch(out_TGb, frames, first_TGb[-newest:])
    return out_TGb[-1]


def bytes_of(stack: Tensor) -> Tensor:
    """View stacks int32 [R, H, W] as frames uint8 [MAX_STACK, R, H, W], oldest first."""
    return stack.view(torch.uint8).view(*stack.shape, MAX_STACK).movedim(-1, 0)


def push_frames(stack: Tensor, frame: Tensor, first: NDArray[np.bool_]) -> None:
    """Push frames onto stacks, in place. The stack of a row that is `first` is filled with copies of the row's frame.

    stack: int32 [R, H, W], four frames per number, with the newest frame in the highest byte.
    frame: uint8 [R, H, W], on the same device. first: [R], a NumPy array.
    """
    rows = stack.shape[0]
    if stack.device.type == "cpu":
        _push_frames(stack.view(rows, -1).numpy().view(np.uint32), frame.view(rows, -1).numpy(), first)
        return
    push_frames_torch(stack, frame, torch.from_numpy(first).to(stack.device, non_blocking=True))


def push_frames_torch(stack: Tensor, frame: Tensor, first: Tensor) -> None:
    """Compute `push_frames` on any device. All arguments are on this device."""
    newest = frame.to(torch.int32)
    older = torch.where(first[:, None, None], newest * 0x00010101, (stack >> 8) & 0x00FFFFFF)
    torch.bitwise_or(older, newest << 24, out=stack)
