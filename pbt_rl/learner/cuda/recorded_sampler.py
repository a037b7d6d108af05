"""Inference batches as CUDA graphs: one replay for all ready vector envs.

All rollouts, frame stacks and recurrent states are in a few preallocated tensors. An inference batch uploads the steps
and one index tensor, replays a graph, and waits for the download of the actions. Graphs are captured for 1, 2, 4, 8,
16, 32 and 64 vector envs, up to the first size that holds all vector envs of the learner. Other batches are padded with
a dummy vector env: three vector envs use the graph for 4. The dummy has separate entries in all tensors. Batches of
more than 64 vector envs are split.

Axes: M vector envs of an inference batch, P policies, b rows per policy and vector env, R = P * b rows of a vector env,
B = M * b rows of a policy, A action components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pbt_rl.algos.observations import ObsLayout, push_frames_torch
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import OBS, Memory, Rollout
from pbt_rl.learner.cuda.host_memory import host_buffer
from pbt_rl.learner.cuda.recording import RUNS, Recording, Replays, recorder_of
from pbt_rl.learner.sampler import SampledVectorEnv, Sampler

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of vector envs for which inference batches are captured."""
MOST_VECTOR_ENVS = SIZES[-1]
INDICES = 5
"""Number of indices per step: vector env; rollout and time of the observation; rollout and time of the action."""
Step = tuple[SampledVectorEnv, Rollout | None]
"""(vector env, next rollout). If the newest observation does not end the current rollout, the next rollout is None."""


class _Bucket:
    """Fixed input and output buffers for inference batches of one size.

    vector_envs: size M of the batches. none: the INDICES indices of the dummy vector env.
    """

    def __init__(
        self, vector_envs: int, memory: Memory, layouts: Mapping[str, ObsLayout], none: Sequence[int]
    ) -> None:
        rows, device = memory.states.shape[1], memory.states.device
        self.inbox = {
            name: torch.zeros((vector_envs, rows, *layout.kept[1]), dtype=layout.kept[0], device=device)
            for name, layout in layouts.items()
        }
        size = vector_envs * (INDICES * 8 + rows)
        self.on_host = host_buffer((size,), torch.uint8, device)
        self.places = torch.zeros(size, dtype=torch.uint8, device=device)
        action = memory.rollouts["action"]
        self.action = torch.zeros((vector_envs, rows, action.shape[-1]), dtype=action.dtype, device=device)
        self.action_on_host = host_buffer(tuple(self.action.shape), action.dtype, device)
        self._none = list(none)

    def split(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """View the uploaded bytes as (indices [INDICES, M] int64, episode starts [M, R] bool)."""
        vector_envs, rows = self.action.shape[:2]
        end = INDICES * vector_envs * 8
        return places[:end].view(torch.int64).view(INDICES, vector_envs), places[end:].view(torch.bool).view(
            vector_envs, rows
        )

    def fill(self, steps: Sequence[Step]) -> None:
        """Start the upload of at most M steps, and pad them with the dummy vector env.

        Mailboxes do not change during the upload, because the actors wait for actions.
        """
        indices, first = (x.numpy() for x in self.split(self.on_host))
        indices[:, len(steps) :] = np.array(self._none)[:, None]
        for m, (vector_env, following) in enumerate(steps):
            answered = (
                (vector_env.rollout.number, vector_env.t) if following is None else (following.number, 0)
            )
            indices[:, m] = vector_env.number, vector_env.rollout.number, vector_env.t, *answered
            first[m] = vector_env.box.step.first
            for name, array in vector_env.box.step.obs.items():
                self.inbox[name][m].copy_(torch.from_numpy(array), non_blocking=True)
        self.places.copy_(self.on_host, non_blocking=True)


class RecordedSampler(Sampler):
    """Sampler that runs inference by CUDA graphs if possible.

    A dummy vector env pads inference batches to a captured size. Therefore `memory` has room for an additional vector
    env and an additional rollout.
    """

    SPARE = 1

    def __init__(self, pack: Pack, *arguments: Any, **more: Any) -> None:
        super().__init__(pack, *arguments, **more)
        self._buckets: dict[int, tuple[_Bucket, Recording]] = {}
        self.replays = Replays("inference batches", recorder_of(pack.device))

    def record_inference_batches(self) -> None:
        """Capture graphs of all needed sizes. Only dummy steps are run, so the training state stays unchanged.

        Call this before another thread uses the device, because the thread's first calls would break a capture.
        """
        chance, idle = self.generator.get_state(), self._pack.idle[:]
        self._pack.idle[:] = [False] * len(idle)
        most = min(len(self.vector_envs), MOST_VECTOR_ENVS)
        with self._pack.streams.acting():
            for vector_envs in SIZES[: 1 + next(i for i, n in enumerate(SIZES) if n >= most)]:
                for _ in range(RUNS):
                    bucket = self._batch([], vector_envs)
                    # Wait for the device, because the next upload overwrites the host buffer.
                    self._pack.streams.fetch(bucket.action, bucket.action_on_host)
        self._pack.idle[:] = idle
        self.generator.set_state(chance)
        self.replays.restart()

    def run_inference_batches(self, ready: list[SampledVectorEnv]) -> None:
        """Run inference by CUDA graphs, in batches of at most MOST_VECTOR_ENVS vector envs.

        If no graph can be used, run one inference batch eagerly.
        """
        # With packing `loop`, a graph depends on the set of idle slots.
        depends = self._pack.packing == "loop" and any(self._pack.idle)
        if self.replays.recorder is None or depends or not all(u.taken for u in ready):
            super().run_inference_batches(ready)
            if ready:
                self.replays.count(replayed=False)
            return
        for begin in range(0, len(ready), MOST_VECTOR_ENVS):
            vector_envs = ready[begin : begin + MOST_VECTOR_ENVS]
            for vector_env in vector_envs:
                self._arrive(vector_env)
            self._act_recorded(vector_envs)

    def _act_recorded(self, vector_envs: list[SampledVectorEnv]) -> None:
        """Store the observations of these vector envs, run inference by a CUDA graph, and send actions."""
        streams, version = self._pack.streams, self._shared.pack.weights_version.copy()
        for vector_env in vector_envs:
            if vector_env.t == self._steps:
                vector_env.rollout.last_state.copy_(vector_env.state)
        steps = [
            (vector_env, self._next_rollout(vector_env) if vector_env.t == self._steps else None)
            for vector_env in vector_envs
        ]
        bucket = self._batch(steps, next(n for n in SIZES if n >= len(steps)))
        streams.fetch(bucket.action, bucket.action_on_host)
        actions_MRA = bucket.action_on_host[: len(steps)].numpy()
        for (vector_env, following), action_RA in zip(steps, actions_MRA, strict=True):
            if following is not None:
                vector_env.rollout.ready = streams.mark()
                self._shared.full.append(vector_env.rollout)
                vector_env.rollouts += 1
                self._go_on_in(vector_env, following)
            vector_env.rollout.weights_version[vector_env.t] = version
            self._answer(vector_env, action_RA)

    def _batch(self, steps: Sequence[Step], vector_envs: int) -> _Bucket:
        if vector_envs not in self._buckets:
            last = self.memory.states.shape[0] - 1, self.memory.rollouts["action"].shape[0] - 1
            made = _Bucket(vector_envs, self.memory, self._layouts, (last[0], last[1], 0, last[1], 0))
            self._buckets[vector_envs] = made, Recording(partial(self._program, made), (self.generator,))
        bucket, recording = self._buckets[vector_envs]
        bucket.fill(steps)
        self._pack.take_published()
        self.replays.run(recording)
        return bucket

    @torch.no_grad()
    def _program(self, bucket: _Bucket) -> None:
        indices, first_MR = bucket.split(bucket.places)
        vector_env_M, rollout_M, t_M, answered_M, answered_t_M = indices
        obs = {name: self._take_in(name, bucket.inbox[name], indices, first_MR) for name in self._layouts}
        states = self.memory.states
        state = self._joined(states.index_select(0, vector_env_M))
        params, value, state = self._pack.infer(obs, state, self._joined(first_MR))
        action, log_prob = self.distribution.sample(params, self.generator)
        value_MR, action_MRA = self._parted(value), self._parted(action)
        self._put("value", rollout_M, t_M, value_MR)
        self._put("value", answered_M, answered_t_M, value_MR)
        self._put("action", answered_M, answered_t_M, action_MRA)
        self._put("log_prob", answered_M, answered_t_M, self._parted(log_prob))
        if states.shape[2]:
            states.index_copy_(0, vector_env_M, self._parted(state))
        bucket.action.copy_(action_MRA)

    def _take_in(self, name: str, new_MR: Tensor, indices: Tensor, first_MR: Tensor) -> Tensor:
        """Store an observation in the rollouts. Return the network's input, [P, B, ...]."""
        layout, (vector_env_M, rollout_M, t_M, *_) = self._layouts[name], indices
        self._put(OBS + name, rollout_M, t_M + layout.history, new_MR)
        if layout.stack == 1:
            return self._joined(new_MR)
        stacks = self.memory.stacks[name]
        stack = stacks.index_select(0, vector_env_M)
        rows = stack.flatten(0, 1)
        push_frames_torch(rows, new_MR.flatten(0, 1), first_MR.flatten())
        stacks.index_copy_(0, vector_env_M, stack)
        return layout.as_seen(self._joined(stack))

    def _put(self, name: str, rollout_M: Tensor, t_M: Tensor, values_M: Tensor) -> None:
        kept = self.memory.rollouts[name]
        kept.flatten(0, 1).index_copy_(0, rollout_M * kept.shape[1] + t_M, values_M)

    def _joined(self, x_MR: Tensor) -> Tensor:
        """Reshape [M, R, ...] to [P, B, ...]: R = P b rows of each of M vector envs, B = M b rows of each policy."""
        policies, (vector_envs, rows, *shape) = self._pack.num_policies, x_MR.shape
        envs = rows // policies
        x_MPb = x_MR.reshape(vector_envs, policies, envs, *shape)
        return x_MPb.transpose(0, 1).reshape(policies, vector_envs * envs, *shape)

    def _parted(self, x_PB: Tensor) -> Tensor:
        """Reshape [P, B, ...] to [M, R, ...]: the inverse of `_joined`."""
        rows, (policies, columns, *shape) = self.memory.states.shape[1], x_PB.shape
        envs = rows // policies
        x_PMb = x_PB.reshape(policies, columns // envs, envs, *shape)
        return x_PMb.transpose(0, 1).reshape(columns // envs, rows, *shape)
