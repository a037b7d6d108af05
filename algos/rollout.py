"""Rollouts: T steps of one unit, kept on the device of its pack, and the batches that are cut from them.

An observation crosses from host to device once, when it arrives; where frames are stacked, the stack is built
then, as one 32-bit number a pixel (the newest frame in the highest byte), and serves acting and learning.
Seen as bytes it is a channels-last image of 4 channels without a copy.

Axes: T steps, R rows of a unit (R = P * b, policy-major), P policies, B rows of a policy in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import kernel

MAX_STACK = 4


@dataclass(frozen=True)
class ObsLayout:
    """How one observation array is kept: numpy dtype name, shape of one row, and how many frames are stacked."""

    dtype: str
    shape: tuple[int, ...]
    stack: int = 1

    @property
    def stored(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and row shape of the rollout's array."""
        return (torch.int32 if self.stack > 1 else getattr(torch, self.dtype)), self.shape

    @property
    def seen(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype name of what the network gets: stacked frames are channels in front."""
        return ((self.stack, *self.shape) if self.stack > 1 else self.shape), self.dtype

    def as_seen(self, stored: Tensor) -> Tensor:
        """[..., *stored shape] -> [..., *seen shape], without a copy."""
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
    """Write into `out` the stack `before` with `frame` as its newest; an empty stack where `first`.

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
    """Do the same as the kernel for all rows at once."""
    newest = frame.to(torch.int32) << 24
    older = (before >> 8) & 0x00FFFFFF
    torch.bitwise_or(older * ~first[:, None, None], newest, out=out)


def native(tensor: Tensor) -> Any:
    """Return the same memory as numpy sees it on a CPU, where small writes cost a tenth; elsewhere the tensor."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


class Rollout:
    """Buffers of T steps of a unit, made once and used again and again. Fresh memory is poisoned.

    On the device: obs [T+1, R, ...], action [T, R, A], log_prob [T, R], value [T+1, R], state [R, S] (before
    step 0). On the host, where rewards arrive: reward [T, R], terminated, truncated [T, R], first [T+1, R].
    version[t, p]: updates that the weights which acted at step t had seen.

    For acting the same memory policy by policy, and `native` where it is written: seen[t] name -> [P, b, *seen shape],
    action_TPBA, log_prob_TPB, value_T1PB (B = b).
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
    ) -> None:
        def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            if dtype.is_floating_point:
                return torch.full(shape, torch.nan, dtype=dtype, device=device)
            return torch.full(
                shape, 0xA5 if dtype == torch.uint8 else -0x5A5A5A5B, dtype=dtype, device=device
            )

        self.layouts, self.steps, self.rows = layouts, steps, rows
        self.obs = {
            name: poisoned((steps + 1, rows, *layout.stored[1]), layout.stored[0])
            for name, layout in layouts.items()
        }
        columns, dtype = action
        self.action = poisoned((steps, rows, columns), dtype)
        self.log_prob = poisoned((steps, rows), torch.float32)
        self.value = poisoned((steps + 1, rows), torch.float32)
        self.state = poisoned((rows, state_size), torch.float32)
        self.reward = np.full((steps, rows), np.nan, np.float32)
        self.terminated = np.ones((steps, rows), np.bool_)
        self.truncated = np.ones((steps, rows), np.bool_)
        # False: a step that was never written counts, so that its NaN reaches the loss.
        self.first = np.zeros((steps + 1, rows), np.bool_)
        self.version = np.full((steps, policies), -1, np.int64)
        self.origin = np.full(policies, -1, np.int64)
        """Which weights lineage each policy had when the rollout began: a replacement makes it outdated."""

        def by_policy(x: Tensor) -> Tensor:
            return x.view(x.shape[0], policies, rows // policies, *x.shape[2:])

        self.action_TPBA, self.log_prob_TPB, self.value_T1PB = (
            native(by_policy(x)) for x in (self.action, self.log_prob, self.value)
        )
        seen = {name: layouts[name].as_seen(by_policy(obs)) for name, obs in self.obs.items()}
        self.seen = [{name: obs[t] for name, obs in seen.items()} for t in range(steps + 1)]
        self._on_host = device.type == "cpu"
        self._obs = {name: native(obs) for name, obs in self.obs.items()}

    def write_obs(self, t: int, obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> None:
        """Take in the observation of step t from the host. t = 0 only for a unit's very first, where all is `first`."""
        self.first[t] = first
        for name, layout in self.layouts.items():
            if layout.stack > 1:
                push_frames(self.obs[name][t], self.obs[name][t - 1], obs[name], first)
            elif self._on_host:
                self._obs[name][t] = obs[name]
            else:
                self.obs[name][t].copy_(torch.from_numpy(obs[name]), non_blocking=True)

    def follow(self, before: Rollout) -> None:
        """Begin where `before` ended: its last observation is this one's first."""
        for name, obs in self._obs.items():
            obs[0] = before._obs[name][-1]
        self.first[0] = before.first[-1]


@dataclass(frozen=True)
class Batch:
    """Rollouts side by side, every policy alike: [P, T(+1), B, ...] (B = k * b). Observations stay in the rollouts.

    usable: [P, B] bool; False where a rollout is outdated for a policy (replaced since, or over the lag limit).
    """

    rollouts: Sequence[Rollout]
    envs: int
    action_PTBA: Tensor
    log_prob_PTB: Tensor
    value_PT1B: Tensor
    state_PBS: Tensor
    reward_PTB: Tensor
    terminated_PTB: Tensor
    truncated_PTB: Tensor
    first_PT1B: Tensor
    valid_PTB: Tensor

    @property
    def layouts(self) -> Mapping[str, ObsLayout]:
        """How the observations are kept."""
        return self.rollouts[0].layouts

    def obs(self, rows: slice) -> dict[str, Tensor]:
        """Observations of these policies, [G, T, B, ...], as they are stored."""
        result = {}
        for name in self.layouts:
            parts = []
            for r in self.rollouts:
                part = r.obs[name][:-1]
                part = part.view(part.shape[0], -1, self.envs, *part.shape[2:])[:, rows]
                parts.append(part)
            result[name] = torch.cat(parts, dim=2).transpose(0, 1)
        return result


def make_batch(
    rollouts: Sequence[Rollout], policies: int, usable_PK: NDArray[np.bool_], device: torch.device
) -> Batch:
    """Put k rollouts side by side. usable_PK: whether rollout k still counts for policy p."""
    envs = rollouts[0].rows // policies

    def device_side(parts: list[Tensor]) -> Tensor:
        split = [x.view(x.shape[0], policies, envs, *x.shape[2:]).transpose(0, 1) for x in parts]
        return torch.cat(split, dim=2)

    def host_side(parts: list[NDArray[Any]]) -> NDArray[Any]:
        split = [x.reshape(x.shape[0], policies, envs).swapaxes(0, 1) for x in parts]
        return np.concatenate(split, axis=2)

    def upload(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    first = host_side([r.first for r in rollouts])
    usable_P1B = np.repeat(usable_PK, envs, axis=1)[:, None]
    return Batch(
        rollouts=rollouts,
        envs=envs,
        action_PTBA=device_side([r.action for r in rollouts]),
        log_prob_PTB=device_side([r.log_prob for r in rollouts]),
        value_PT1B=device_side([r.value for r in rollouts]),
        state_PBS=torch.cat([r.state.view(policies, envs, -1) for r in rollouts], dim=1),
        reward_PTB=upload(host_side([r.reward for r in rollouts])),
        terminated_PTB=upload(host_side([r.terminated for r in rollouts])),
        truncated_PTB=upload(host_side([r.truncated for r in rollouts])),
        first_PT1B=upload(first),
        valid_PTB=upload(~first[:, 1:] & usable_P1B),
    )
