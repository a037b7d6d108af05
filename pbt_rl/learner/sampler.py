"""Sampler: copies steps of vector envs to rollouts, runs inference and returns actions.

    consumes     steps from mailboxes, free rollout buffers
    produces     actions in mailboxes, full rollouts, finished episodes
    waits for    neither actors nor the trainer: a vector env without a free buffer is skipped
    runs in      the learner's main thread; concurrently with learning only in async mode

Axes: P policies (slots), b rows of a policy in a vector env, R = P * b rows of a vector env, B rows of a policy in an
inference batch, T steps, S recurrent state, A action components, D distribution parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.actors.mailbox import OBSERVATIONS, Mailbox
from pbt_rl.actors.messages import Episode, Game
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.kernels import uploaded
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import OUTCOMES, Memory, Rollout, native
from pbt_rl.envs.base import EnvSpec, read_stats
from pbt_rl.learner.build import rollout_shape
from pbt_rl.learner.shared import SharedState


@dataclass(eq=False)
class SampledVectorEnv:
    """Vector env as the learner sees it: the mailbox, the current rollout and the recurrent state."""

    number: int
    """Index within the pack."""
    box: Mailbox
    wake_fd: int
    """Eventfd that wakes the vector env's actor."""
    rollout: Rollout
    """Rollout that is being filled."""
    state: Tensor
    """[R, S], recurrent state before the newest observation."""
    stacks: dict[str, Tensor]
    """Newest frame stacks, name -> [R, H, W]."""
    outcomes: list[NDArray[Any]]
    """Mailbox arrays [R] of the fields in OUTCOMES (such as `reward`), in the order of OUTCOMES."""
    t: int = 0
    """Index of the next observation in the rollout."""
    taken: int = 0
    """Number of steps taken from the mailbox."""
    rollouts: int = 0
    """Number of full rollouts. The vector env with the fewest rollouts gets the next free buffer."""

    @property
    def has_step(self) -> bool:
        """True if the mailbox holds a new step."""
        return bool(self.box.header[OBSERVATIONS] > self.taken)


class Sampler:
    """Sampler of the vector envs of one pack. Does nothing while all slots are empty.

    boxes: for each vector env, the mailbox and the eventfd of its actor.
    spare_buffers: number of rollout buffers in addition to one per vector env.
    on_policy: after a full rollout, a vector env waits for `resume_finished` (modes sync and serial).
    frames: [P], written by the sampler when episodes end: total frames of each slot's member. None: not written.
    contended: returns True if threads compete for cores. Inference is then delayed until an actor waits for the actions
    of all its vector envs. This leaves cores to the actors. The inference batch also becomes larger and takes less time
    per row. With a single actor, `contended` is not used.
    """

    SPARE = 0
    """Number of additional vector envs, and of additional rollouts, in the memory."""

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        spec: EnvSpec,
        boxes: list[tuple[Mailbox, int]],
        distribution: Distribution,
        rollout_steps: int,
        spare_buffers: int,
        seed: int,
        *,
        on_policy: bool,
        frames: NDArray[np.int64] | None = None,
        contended: Callable[[], bool] | None = None,
    ) -> None:
        self._pack, self._shared, self._spec = pack, shared, spec
        several = len({wake_fd for _, wake_fd in boxes}) > 1
        self._contended = contended if several and contended is not None else lambda: False
        self.distribution, self._steps, self._on_policy = distribution, rollout_steps, on_policy
        self.generator = torch.Generator(pack.device).manual_seed(seed)
        self._lineage_version = shared.pack.lineage_version.copy()
        made = rollout_shape(pack, spec, rollout_steps, boxes[0][0].rows)
        self._layouts, self._envs = made.layouts, made.envs
        number = len(boxes) + spare_buffers
        self.memory = memory = Memory.make(made, number + self.SPARE, len(boxes) + self.SPARE)
        buffers = [Rollout(made, i, memory.rollouts) for i in range(number)]
        self.vector_envs = [
            SampledVectorEnv(
                number,
                box,
                wake_fd,
                buffers.pop(),
                memory.states[number],
                {name: stacks[number] for name, stacks in memory.stacks.items()},
                [getattr(box.step, name) for name in OUTCOMES],
            )
            for number, (box, wake_fd) in enumerate(boxes)
        ]
        shared.ended_versions.extend(np.full(made.rows, -1, np.int64) for _ in boxes)
        shared.free.extend(buffers)
        self._resting: list[SampledVectorEnv] = []
        self._frames = frames
        self.between_policies: Callable[[], object] = lambda: None
        """Callback before the forward pass of each group, and after the last forward pass of an inference batch. The
        callback may put other members into slots.

        The steps of the batch are already counted for the members that were in the slots before the callback. A rollout
        that starts in this batch keeps the lineage version from before the callback. If the callback loads other
        weights, the slot's part of this rollout is therefore outdated.
        """

    def run_inference(self) -> bool:
        """Run inference for all vector envs that have a new step and a rollout buffer. Return True if inference ran."""
        began = time.thread_time()
        with self._pack.streams.acting():
            self.take_resets()
            if not any(self._shared.pack.slot_members):
                return False
            ready: list[SampledVectorEnv] = []
            for vector_env in sorted(self.vector_envs, key=lambda u: u.rollouts):
                if vector_env.has_step and vector_env.t <= self._steps:
                    ends = vector_env.t == self._steps and not self._on_policy
                    if ends and len(self._shared.free) <= sum(u.t == self._steps for u in ready):
                        continue
                    ready.append(vector_env)
            if self._contended() and not self._actor_waits():
                return False
            self.run_inference_batches(ready)
        self._shared.sampling.inference_seconds += time.thread_time() - began
        return bool(ready)

    def _actor_waits(self) -> bool:
        """True if an actor waits for actions of all its vector envs. Vector envs without a first step do not count."""
        working = {u.wake_fd for u in self.vector_envs if u.taken and not u.has_step}
        return any(u.has_step and u.wake_fd not in working for u in self.vector_envs)

    @property
    def within_rollout(self) -> bool:
        """True after the first step of any vector env since the learner's start. False: no rollout is unfinished."""
        return self.has_stepped

    @property
    def has_stepped(self) -> bool:
        """True after the first step since the start of the learner."""
        return any(vector_env.taken for vector_env in self.vector_envs)

    def rollouts(self) -> list[Rollout]:
        """Return the current rollouts of the vector envs."""
        return [vector_env.rollout for vector_env in self.vector_envs]

    def close(self) -> None:
        """Do nothing, because the supervisor closes the mailboxes."""

    def run_inference_batches(self, ready: list[SampledVectorEnv]) -> None:
        """Store the steps of these vector envs, and send actions."""
        for vector_env in ready:
            self._arrive(vector_env)
            vector_env.rollout.write_obs(
                vector_env.t, vector_env.box.step.obs, vector_env.box.step.first, vector_env.stacks
            )
        if ready:
            self._act(ready)

    def resume_finished(self) -> None:
        """Start the next rollouts of all vector envs that wait after a full rollout (modes sync and serial)."""
        began = time.thread_time()
        self.take_resets()
        vector_envs, self._resting = self._resting, []
        for vector_env in vector_envs:
            self._go_on_in(vector_env, self._next_rollout(vector_env))
        if vector_envs:
            self._act(vector_envs)
        self._shared.sampling.inference_seconds += time.thread_time() - began

    def rest(self, vector_env: SampledVectorEnv) -> None:
        """Make a restored vector env wait for `resume_finished`, as after a full rollout. Free its buffer."""
        vector_env.t = self._steps + 1
        self._resting.append(vector_env)
        self._shared.free.append(vector_env.rollout)

    def take_resets(self) -> None:
        """Zero the recurrent state of slots whose weights were replaced.

        The lineage version (number of replacements of a slot's weights) is read before the resets. A rollout with the
        new version therefore always starts with a zero state.
        """
        self._lineage_version = self._shared.pack.lineage_version.copy()
        while self._shared.state_resets:
            slot = self._shared.state_resets.popleft()
            for vector_env in self.vector_envs:
                vector_env.state.view(self._pack.num_policies, self._envs, -1)[slot] = 0

    def _arrive(self, vector_env: SampledVectorEnv) -> None:
        """Store the outcome of the previous action and the episode starts in the rollout. Count the step."""
        step, t, rollout = vector_env.box.step, vector_env.t, vector_env.rollout
        if vector_env.taken:
            for column, outcome in zip(rollout.outcomes, vector_env.outcomes, strict=True):
                column[t - 1] = outcome
            counted_P = self._envs
            if step.first.any():
                counted_P = self._envs - step.first.reshape(-1, self._envs).sum(1)
            self._shared.sampling.steps[self._shared.pack.member] += counted_P
            if step.episode_done.any():
                self._note_episodes(vector_env)
        else:
            rollout.vector_env, rollout.lineage_version[:] = vector_env.number, self._lineage_version
            rollout.state.copy_(vector_env.state)
        rollout.first[t] = step.first
        vector_env.taken += 1

    def _note_episodes(self, vector_env: SampledVectorEnv) -> None:
        """Record the episodes that ended in this step. Update `frames`.

        Leave out episodes that started before the member entered the slot, and episodes that `spread_phases` truncates.
        """
        step, shared = vector_env.box.step, self._shared
        if self._frames is not None:
            self._frames[:] = shared.sampling.steps[shared.pack.member] * self._spec.frame_skip
        rows = np.flatnonzero(step.episode_done).tolist()
        shared.ended_versions[vector_env.number][rows] = step.shaping_version[rows]
        episodes: dict[int, Episode] = {}
        for row in rows:
            slot_member = shared.pack.slot_members[row // self._envs]
            version = int(step.shaping_version[row])
            if slot_member is None or version not in slot_member.generation_of:
                continue
            episodes[row] = Episode(
                member=shared.members[slot_member.member],
                generation=slot_member.generation_of[version],
                objective=float(step.objective[row]),
                raw_return=float(step.raw_return[row]),
                shaped_return=float(step.shaped_return[row]),
                length_steps=int(step.length[row]),
                extra=read_stats(step, row),
                task=0 if step.task is None else int(step.task[row]),
                environment=vector_env.number * self._envs + row % self._envs,
                evaluation=version in slot_member.evaluations,
            )
        games = [] if step.agent is None else self._games(rows, step.agent, episodes)
        shared.sampling.note(episodes.values(), games)

    def _games(self, rows: list[int], agent_R: NDArray[np.int64], episodes: dict[int, Episode]) -> list[Game]:
        """Group the episodes of several agents by environment. Leave out a group if a row has no recorded episode.

        rows: rows whose episode has finished. agent_R: environment index * number of agents + agent index, of each row.
        episodes: row -> recorded episode.
        """
        by_environment: dict[int, list[int]] = {}
        for row in sorted(rows, key=lambda row: int(agent_R[row])):
            by_environment.setdefault(int(agent_R[row]) // self._spec.agents, []).append(row)
        return [
            Game(
                members=tuple(episodes[row].member for row in together),
                generations=tuple(episodes[row].generation for row in together),
                objectives=tuple(episodes[row].objective for row in together),
            )
            for together in by_environment.values()
            if all(row in episodes for row in together)
        ]

    def _act(self, vector_envs: list[SampledVectorEnv]) -> None:
        """Run one inference batch for these vector envs, and send actions."""
        pack, envs, inputs = self._pack, self._envs, self._inputs(vector_envs)
        version = self._shared.pack.weights_version.copy()
        params_PBD, value_PB, state_PBS = pack.act(*inputs, self.between_policies)
        self.between_policies()
        action_PBA, log_prob_PB = self.distribution.sample(params_PBD, self.generator)

        value, action, log_prob = native(value_PB), native(action_PBA), native(log_prob_PB)
        on_host = action_PBA.cpu().numpy()
        for i, vector_env in enumerate(vector_envs):
            mine = slice(i * envs, (i + 1) * envs)
            vector_env.rollout.by_policy["value"][vector_env.t] = value[:, mine]
            if vector_env.t == self._steps:
                self._end_rollout(vector_env)
                if self._on_policy:
                    continue
                vector_env.rollout.by_policy["value"][0] = value[:, mine]
            vector_env.rollout.by_policy["action"][vector_env.t] = action[:, mine]
            vector_env.rollout.by_policy["log_prob"][vector_env.t] = log_prob[:, mine]
            vector_env.rollout.weights_version[vector_env.t] = version
            if pack.state_size:
                vector_env.state.copy_(state_PBS[:, mine].flatten(0, 1))
            self._answer(vector_env, on_host[:, mine])

    def _inputs(self, vector_envs: list[SampledVectorEnv]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the network's inputs for these vector envs, concatenated along B.

        The inputs are observations (name -> [P, B, ...]), recurrent states [P, B, S] and episode starts [P, B].
        """
        pack, envs = self._pack, self._envs

        def packed(parts: list[Tensor]) -> Tensor:
            return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

        stored = [
            u.rollout.unstacked[u.t] | {k: v.unflatten(0, (-1, envs)) for k, v in u.stacks.items()}
            for u in vector_envs
        ]
        obs = {  # concatenate before `as_seen`, because a concatenation of its views would not be channels-last
            name: layout.as_seen(packed([one[name] for one in stored]))
            for name, layout in self._layouts.items()
        }
        first = [u.rollout.first[u.t].reshape(-1, envs) for u in vector_envs]
        first_PB = uploaded(np.concatenate(first, 1), pack.device)
        if not pack.state_size:
            return obs, torch.empty((*first_PB.shape, 0), device=pack.device), first_PB
        return obs, packed([u.state.view(-1, envs, pack.state_size) for u in vector_envs]), first_PB

    def _end_rollout(self, vector_env: SampledVectorEnv) -> None:
        """Pass a full rollout to the trainer, and start the next rollout.

        If on-policy, the vector env waits for `resume_finished`, which starts the next rollout.
        """
        vector_env.rollout.last_state.copy_(vector_env.state)
        vector_env.rollout.ready = self._pack.streams.mark()
        self._shared.full.append(vector_env.rollout)
        vector_env.rollouts += 1
        if self._on_policy:  # `state` remains the recurrent state before this observation
            vector_env.t += 1
            self._resting.append(vector_env)
        else:
            self._go_on_in(vector_env, self._next_rollout(vector_env))

    def _answer(self, vector_env: SampledVectorEnv, action_PBA: NDArray[np.generic]) -> None:
        """Write actions [P, b, A] to a mailbox, and wake the actor."""
        box = vector_env.box
        box.action[:] = self.distribution.delivered(action_PBA.reshape(box.action.shape))
        vector_env.t += 1
        box.publish_action(vector_env.wake_fd)

    def _next_rollout(self, vector_env: SampledVectorEnv) -> Rollout:
        """Take a free buffer for a rollout that starts with the vector env's current recurrent state."""
        rollout = self._shared.free.popleft()
        self._pack.streams.after(rollout.ready)
        rollout.state.copy_(vector_env.state)
        rollout.vector_env, rollout.lineage_version[:] = vector_env.number, self._lineage_version
        return rollout

    def _go_on_in(self, vector_env: SampledVectorEnv, rollout: Rollout) -> None:
        """Continue in `rollout`, which starts with the last observation of the former rollout."""
        rollout.follow(vector_env.rollout, vector_env.stacks)
        vector_env.rollout, vector_env.t = rollout, 0
