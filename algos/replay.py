"""Replay memory: the last steps of some rows of every policy, from which an algorithm draws segments.

A stream is one row of a vector env. Observations and actions are on the pack's device; all other fields are on the
host. Segments are chosen on the host, because choosing them on the device would need a synchronisation. With frame
stacking, single frames are stored, and stacks are rebuilt for the drawn segments.

The replay of a slot is cleared if the weights in the slot are replaced. A resumed run starts with an empty replay.

Axes: U vector envs, P policies, K streams per vector env and policy, C steps kept per stream, L steps of a segment, S
segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Batch, Segments
from .kernels import uploaded
from .observations import ObsLayout
from .rollout import Rollout, RolloutShape


@dataclass(frozen=True)
class Draw:
    """Specification of one kind of segment. times: segments to draw per `ReplaySpec.per_steps` steps of a batch."""

    steps: int
    """L, steps of a segment."""
    times: int = 1
    rewarded_half: bool = False
    """True: draw only segments that lie within an episode. If the replay has segments with and without a nonzero reward
    at the last step, each of the two kinds is drawn with probability 0.5."""


@dataclass(frozen=True)
class ReplaySpec:
    """Size of a replay memory and the segments to draw."""

    draws: tuple[Draw, ...]
    steps: int = 2000
    """Steps kept per stream, or the steps of a rollout if these are more. A stream is one row of a vector env."""
    streams: int = 16
    """Target number of streams (rows of vector envs) per policy, divided evenly over the vector envs and rounded down.
    A vector env has at least one stream of a policy, and at most one per row."""
    per_steps: int = 20
    """For each `per_steps` steps of a batch, `Draw.times` segments are drawn; at least `Draw.times` per batch."""

    def streams_per_vector_env(self, vector_envs: int, rows: int) -> int:
        """Return K, the number of stored rows per vector env and policy. rows: rows of a policy in one vector env."""
        return min(rows, max(1, self.streams // vector_envs))

    def pieces(self, draw: Draw, steps: int) -> int:
        """Return S, the number of segments for a batch of `steps` steps per policy."""
        return draw.times * max(1, steps // self.per_steps)

    def capacity(self, rollout_steps: int) -> int:
        """Return the number of steps that a stream holds: at least one rollout of `rollout_steps` steps."""
        return max(self.steps, rollout_steps)

    def device_bytes(
        self,
        layouts: Mapping[str, ObsLayout],
        vector_envs: int,
        policies: int,
        rows: int,
        columns: int,
        rollout_steps: int,
    ) -> int:
        """Return the bytes of observations and actions on the device.

        rows: rows of a policy in one vector env.
        columns: number of action components.
        """
        streams = vector_envs * policies * self.streams_per_vector_env(vector_envs, rows)
        kept = [layout.kept for layout in layouts.values()]
        step_bytes = 4 * columns + sum(dtype.itemsize * math.prod(s) for dtype, s in kept)
        return streams * self.capacity(rollout_steps) * step_bytes

    def drawn_steps(self, steps: int) -> int:
        """Return the number of observations per policy that are drawn for a batch of `steps` steps."""
        return sum(self.pieces(draw, steps) * (draw.steps + 1) for draw in self.draws)


class Replay:
    """Replay memory of a pack, used only by the learning thread.

    of: shape of the rollouts that `add` receives.
    vector_envs: U, number of vector envs.
    """

    def __init__(self, spec: ReplaySpec, of: RolloutShape, vector_envs: int) -> None:
        self._spec, self._layouts, self._rows, self._device = spec, of.layouts, of.envs, of.device
        self._capacity, policies = spec.capacity(of.steps), of.policies
        self._shape = (
            vector_envs,
            policies,
            spec.streams_per_vector_env(vector_envs, of.envs),
            self._capacity,
        )
        self._obs = {name: self._ring(layout.kept[0], *layout.kept[1]) for name, layout in of.layouts.items()}
        self._action = self._ring(of.action[1], of.action[0])
        self._reward = np.zeros(self._shape, np.float32)
        self._terminated, self._truncated, self._first, self._real = np.zeros((4, *self._shape), np.bool_)
        """`_real`: True if the transition is not a reset."""
        self._written = np.zeros(vector_envs, np.int64)
        """[U], total steps stored from each vector env."""
        self._begin = np.zeros((policies, vector_envs), np.int64)
        """[P, U], number of the first step that was sampled under the slot's current lineage version."""
        self._lineage_version = np.zeros(policies, np.int64)

    def _ring(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros((*self._shape, *shape), dtype=dtype, device=self._device)

    # -- writing --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, rollouts: Iterable[Rollout], lineage_version: NDArray[np.int64]) -> None:
        """Store full rollouts, oldest first.

        lineage_version: [P], current lineage version of each slot, a counter of loads of other weights into the slot.
        Steps of older versions are never drawn.
        """
        self._begin[lineage_version != self._lineage_version] = self._written
        self._lineage_version[:] = lineage_version
        for rollout in rollouts:
            self._add(rollout)
            outdated = rollout.lineage_version != lineage_version
            self._begin[outdated, rollout.vector_env] = self._written[rollout.vector_env]

    def _add(self, rollout: Rollout) -> None:
        vector_env, steps = rollout.vector_env, rollout.steps
        policies, streams = self._shape[1:3]

        def ours(x: Any) -> Any:
            """Select the streams: [T, R, ...] -> [T, P, K, ...]."""
            return x.reshape(x.shape[0], policies, self._rows, *x.shape[2:])[:, :, :streams]

        for there, here in self._pieces(int(self._written[vector_env]), steps):
            for name, ring in self._obs.items():
                frames = rollout.obs[name][self._layouts[name].history :]
                ring[vector_env, :, :, there] = ours(frames[here]).movedim(0, 2)
            self._action[vector_env, :, :, there] = ours(rollout.action[here]).movedim(0, 2)
            fields = (
                (self._reward, rollout.reward[here]),
                (self._terminated, rollout.terminated[here]),
                (self._truncated, rollout.truncated[here]),
                (self._first, rollout.first[:-1][here]),
                (self._real, ~rollout.first[1:][here]),
            )
            for kept, array in fields:
                kept[vector_env, :, :, there] = np.moveaxis(ours(array), 0, 2)
        self._written[vector_env] += steps

    def _pieces(self, start: int, steps: int) -> Iterator[tuple[slice, slice]]:
        """Yield pairs of slices: positions in the ring buffer, and the new steps stored there.

        start: position of the first new step. steps: number of new steps.
        """
        at, done = start % self._capacity, 0
        while done < steps:
            size = min(steps - done, self._capacity - at)
            yield slice(at, at + size), slice(done, done + size)
            at, done = 0, done + size

    # -- drawing --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def draw(self, batch: Batch, generator: torch.Generator) -> tuple[Segments, ...]:
        """Draw the segments for a batch: one `Segments` per entry of `ReplaySpec.draws`.

        If the replay of a policy has no segment for an entry, all segments of the policy in this result are invalid.
        A segment is missing if the replay has too few steps, or (`Draw.rewarded_half`) only short episodes.
        generator: on the CPU.
        """
        _, steps, rows = batch.valid.shape
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        return tuple(
            self._segments(draw.steps, *self._chosen(draw, self._spec.pieces(draw, steps * rows), rng))
            for draw in self._spec.draws
        )

    def _chosen(
        self, draw: Draw, pieces: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the start positions [P, S] in the flattened ring buffer, and a mask [P] of policies with a segment.

        pieces: S, number of segments per policy.
        """
        policies = self._shape[1]
        start_PS, any_P = np.zeros((policies, pieces), np.int64), np.zeros(policies, np.bool_)
        for p in range(policies):
            can_begin = self._can_begin(p, draw)
            found = np.flatnonzero(can_begin)
            any_P[p] = len(found) > 0
            if not any_P[p]:
                continue
            picked = found[rng.integers(len(found), size=pieces)]
            if draw.rewarded_half:
                paid = (np.roll(self._reward[:, p], 1 - draw.steps, -1) != 0).reshape(-1)[found]
                with_reward, without = found[paid], found[~paid]
                if len(with_reward) and len(without):
                    picked = np.where(
                        rng.random(pieces) < 0.5,
                        with_reward[rng.integers(len(with_reward), size=pieces)],
                        without[rng.integers(len(without), size=pieces)],
                    )
            vector_env, rest = np.divmod(picked, self._shape[2] * self._capacity)
            start_PS[p] = (vector_env * policies + p) * self._shape[2] * self._capacity + rest
        return start_PS, any_P

    def _can_begin(self, policy: int, draw: Draw) -> NDArray[np.bool_]:
        """Return a mask of the positions where a policy's segments may start: [vector envs, streams, kept steps]."""
        written_U1 = self._written[:, None]
        newest = written_U1 - 1
        # Number of the step at each position.
        step_UC = newest - (newest - np.arange(self._capacity)) % self._capacity
        oldest = np.maximum(self._begin[policy][:, None], written_U1 - self._capacity)
        stack = max(layout.stack for layout in self._layouts.values())
        inside_UC = (step_UC >= oldest + stack - 1) & (step_UC + draw.steps < written_U1)
        real_UKC = self._real[:, policy]
        whole = real_UKC.copy()
        for ahead in range(1, draw.steps if draw.rewarded_half else 1):
            whole &= np.roll(real_UKC, -ahead, -1)
        result: NDArray[np.bool_] = whole & inside_UC[:, None]
        return result

    def _segments(self, steps: int, start_PS: NDArray[np.int64], any_P: NDArray[np.bool_]) -> Segments:
        """Gather the segments of `steps` steps that start at `start_PS`. Policies without `any_P` get invalid ones."""

        def places(first: int, last: int) -> NDArray[np.int64]:
            """Return the positions of the steps first..last of each segment, [P, last - first + 1, S] int64.

            Step 0 is the start of a segment. S: number of segments.
            """
            stream, at = np.divmod(start_PS, self._capacity)
            at_PLS = (at[:, None] + np.arange(first, last + 1)[:, None]) % self._capacity
            result: NDArray[np.int64] = stream[:, None] * self._capacity + at_PLS
            return result

        def on_host(ring: NDArray[Any], of: NDArray[np.int64]) -> NDArray[Any]:
            return ring.reshape(-1)[of]

        real = on_host(self._real, places(0, steps - 1))
        valid = np.logical_and.accumulate(real, axis=1) & any_P[:, None, None]
        return Segments(
            obs={name: self._observed(name, places, steps) for name in self._layouts},
            action=self._gathered(self._action, places(0, steps - 1)),
            reward=self._uploaded(on_host(self._reward, places(0, steps - 1))),
            terminated=self._uploaded(on_host(self._terminated, places(0, steps - 1))),
            truncated=self._uploaded(on_host(self._truncated, places(0, steps - 1))),
            first=self._uploaded(on_host(self._first, places(0, steps))),
            valid=self._uploaded(valid),
        )

    def _observed(self, name: str, places: Any, steps: int) -> Tensor:
        """Return observations of segments, [P, L+1, S, ...], as stored in a batch."""
        stack = self._layouts[name].stack
        frames = self._gathered(self._obs[name], places(1 - stack, steps))
        if stack == 1:
            return frames
        begins = self._first.reshape(-1)[places(1 - stack, steps)]
        return _restacked(frames, self._uploaded(begins), stack)

    def _gathered(self, ring: Tensor, places_PLS: NDArray[np.int64]) -> Tensor:
        flat = ring.view(-1, *ring.shape[4:])
        return flat[self._uploaded(places_PLS)]

    def _uploaded(self, array: NDArray[Any]) -> Tensor:
        return uploaded(array, self._device)


def _restacked(frames: Tensor, begins: Tensor, stack: int) -> Tensor:
    """Stack the `stack` newest frames of each step, in the format of `push_frames`.

    frames: uint8 [P, stack - 1 + steps, S, H, W]. Result: int32 [P, steps, S, H, W]. S: segments.
    begins: [P, stack - 1 + steps, S] True for the first frame of an episode. Copies of this frame replace the frames
    before the episode.
    """
    steps = frames.shape[1] - stack + 1
    frame = frames[:, stack - 1 :].to(torch.int32)
    result = frame << 24
    within = ~begins[:, stack - 1 :]
    for age in range(1, stack):
        older = frames[:, stack - 1 - age :][:, :steps].to(torch.int32)
        frame = torch.where(within[..., None, None], older, frame)
        result |= frame << (24 - 8 * age)
        within &= ~begins[:, stack - 1 - age :][:, :steps]
    return result
