"""Sampler: copies the steps of ready vector envs into rollouts, runs inference and returns actions.

    consumes     steps from mailboxes, free rollout buffers
    produces     actions in mailboxes, full rollouts, finished episodes
    waits for    nothing: a vector env without a free buffer is skipped until later
    runs in      the learner's main thread; never during learning in sync mode, concurrently in async mode

Axes: P policies (slots), R = P * b rows of a vector env, B rows of a policy in an inference batch, T steps.
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
from pbt_rl.algos.device import for_upload
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import OUTCOMES, Memory, Rollout, native
from pbt_rl.envs.base import EnvSpec, read_stats
from pbt_rl.learner.build import rollout_shape
from pbt_rl.learner.shared import SharedState


@dataclass(eq=False)
class ServedUnit:
    """Learner's side of a vector env: its mailbox and its current rollout."""

    number: int
    """Index within the pack."""
    box: Mailbox
    wake_fd: int
    rollout: Rollout
    state: Tensor
    """[R, S] recurrent state before the newest observation."""
    stacks: dict[str, Tensor]
    """Latest frame stacks, see `Rollout`."""
    outcomes: list[NDArray[Any]]
    """The mailbox's arrays of OUTCOMES, in the same order."""
    t: int = 0
    """Index of the next observation in the rollout."""
    taken: int = 0
    """Number of steps taken from the mailbox."""
    rollouts: int = 0
    """Number of full rollouts. The vector env with the fewest gets the next free buffer."""

    @property
    def has_step(self) -> bool:
        """True if the mailbox holds a new step."""
        return bool(self.box.header[OBSERVATIONS] > self.taken)


class Sampler:
    """Runs inference for the vector envs of one pack. Idle while all slots are empty.

    on_policy: after a full rollout, a vector env waits for `resume_finished` (sync modes).
    frames: [P] frames sampled so far by the members in the slots, written whenever an episode ends.
    contended: True if threads compete for cores. Inference then waits until an actor has no step left to do and
    leaves its core free. The larger batch is also cheaper per row. With one actor inference never waits, because
    nothing else would be sampled meanwhile.
    """

    SPARE = 0
    """Number of dummy vector envs and rollouts in the memory."""

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
        self.units = [
            ServedUnit(
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
        self._resting: list[ServedUnit] = []
        self._frames = frames
        self.between_policies: Callable[[], object] = lambda: None
        """Called within an inference batch, between the forward passes of two policies. It may edit members.

        Steps are already counted for the former members. Rollouts that start in this batch keep the lineage versions
        from its start.
        """

    def serve(self) -> bool:
        """Run inference for all vector envs with a step and a buffer. True if there was one."""
        began = time.thread_time()
        with self._pack.streams.acting():
            self.take_resets()
            if not any(self._shared.pack.holders):
                return False
            ready: list[ServedUnit] = []
            for unit in sorted(self.units, key=lambda u: u.rollouts):
                if unit.has_step and unit.t <= self._steps:
                    ends = unit.t == self._steps and not self._on_policy
                    if ends and len(self._shared.free) <= sum(u.t == self._steps for u in ready):
                        continue
                    ready.append(unit)
            if self._contended() and not self._actor_waits():
                return False
            self.take_turns(ready)
        self._shared.sampling.inference_seconds += time.thread_time() - began
        return bool(ready)

    def _actor_waits(self) -> bool:
        """Check whether an actor has no step left to do. Vector envs under construction do not count."""
        working = {unit.wake_fd for unit in self.units if unit.taken and not unit.has_step}
        return any(unit.has_step and unit.wake_fd not in working for unit in self.units)

    @property
    def begun(self) -> bool:
        """True once a step was taken."""
        return any(unit.taken for unit in self.units)

    def rollouts(self) -> list[Rollout]:
        """Return the current rollouts of the vector envs."""
        return [unit.rollout for unit in self.units]

    def close(self) -> None:
        """Do nothing, because the fleet owns the mailboxes."""

    def take_turns(self, ready: list[ServedUnit]) -> None:
        """Store the steps of these vector envs and answer them."""
        for unit in ready:
            self._arrive(unit)
            unit.rollout.write_obs(unit.t, unit.box.step.obs, unit.box.step.first, unit.stacks)
        if ready:
            self._act(ready)

    def resume_finished(self) -> None:
        """Start the next rollouts after learning, with new weights (on-policy modes)."""
        began = time.thread_time()
        self.take_resets()
        units, self._resting = self._resting, []
        for unit in units:
            self._go_on_in(unit, self._next_rollout(unit))
        if units:
            self._act(units)
        self._shared.sampling.inference_seconds += time.thread_time() - began

    def rest(self, unit: ServedUnit) -> None:
        """Make a vector env wait for `resume_finished` after its rollout."""
        unit.t = self._steps + 1
        self._resting.append(unit)
        self._shared.free.append(unit.rollout)

    def take_resets(self) -> None:
        """Zero the recurrent state of slots whose weights were replaced.

        The lineage version is read first, so a rollout starts with zeroed state or is marked as outdated.
        """
        self._lineage_version = self._shared.pack.lineage_version.copy()
        while self._shared.state_resets:
            slot = self._shared.state_resets.popleft()
            for unit in self.units:
                unit.state.view(self._pack.num_policies, self._envs, -1)[slot] = 0

    def _arrive(self, unit: ServedUnit) -> None:
        """Store the host part of a step: the outcome of action t-1, and episode starts."""
        step, t, rollout = unit.box.step, unit.t, unit.rollout
        if unit.taken:
            for column, outcome in zip(rollout.outcomes, unit.outcomes, strict=True):
                column[t - 1] = outcome
            counted_P = self._envs
            if step.first.any():
                counted_P = self._envs - step.first.reshape(-1, self._envs).sum(1)
            self._shared.sampling.steps[self._shared.pack.member] += counted_P
            if step.episode_done.any():
                self._note_episodes(unit)
        else:
            rollout.unit, rollout.lineage_version[:] = unit.number, self._lineage_version
            rollout.state.copy_(unit.state)
        rollout.first[t] = step.first
        unit.taken += 1

    def _note_episodes(self, unit: ServedUnit) -> None:
        """Credit episodes to members. An episode that started before the member entered its slot does not count."""
        step, shared = unit.box.step, self._shared
        if self._frames is not None:
            self._frames[:] = shared.sampling.steps[shared.pack.member] * self._spec.frame_skip
        rows = np.flatnonzero(step.episode_done).tolist()
        shared.ended_versions[unit.number][rows] = step.shaping_version[rows]
        episodes: dict[int, Episode] = {}
        for row in rows:
            holder = shared.pack.holders[row // self._envs]
            version = int(step.shaping_version[row])
            if holder is None or version not in holder.generation_of:
                continue
            episodes[row] = Episode(
                member=shared.members[holder.member],
                generation=holder.generation_of[version],
                objective=float(step.objective[row]),
                raw_return=float(step.raw_return[row]),
                shaped_return=float(step.shaped_return[row]),
                length_steps=int(step.length[row]),
                extra=read_stats(step, row),
                task=0 if step.task is None else int(step.task[row]),
                environment=unit.number * self._envs + row % self._envs,
                evaluation=version in holder.evaluations,
            )
        games = [] if step.seat is None else self._games(rows, step.seat, episodes)
        shared.sampling.note(episodes.values(), games)

    def _games(self, rows: list[int], seat_R: NDArray[np.int64], episodes: dict[int, Episode]) -> list[Game]:
        """Group the agents' episodes by environment. A group counts only if all its episodes do."""
        by_environment: dict[int, list[int]] = {}
        for row in sorted(rows, key=lambda row: int(seat_R[row])):
            by_environment.setdefault(int(seat_R[row]) // self._spec.seats, []).append(row)
        return [
            Game(
                members=tuple(episodes[row].member for row in together),
                generations=tuple(episodes[row].generation for row in together),
                objectives=tuple(episodes[row].objective for row in together),
            )
            for together in by_environment.values()
            if all(row in episodes for row in together)
        ]

    def _act(self, units: list[ServedUnit]) -> None:
        """Run one packed forward pass for these vector envs, then answer each."""
        pack, envs, inputs = self._pack, self._envs, self._inputs(units)
        version = self._shared.pack.weights_version.copy()
        params_PBD, value_PB, state_PBS = pack.act(*inputs, self.between_policies)
        self.between_policies()
        action_PBA, log_prob_PB = self.distribution.sample(params_PBD, self.generator)

        value, action, log_prob = native(value_PB), native(action_PBA), native(log_prob_PB)
        on_host = action_PBA.cpu().numpy()
        for i, unit in enumerate(units):
            mine = slice(i * envs, (i + 1) * envs)
            unit.rollout.by_policy["value"][unit.t] = value[:, mine]
            if unit.t == self._steps:
                self._end_rollout(unit)
                if self._on_policy:
                    continue
                unit.rollout.by_policy["value"][0] = value[:, mine]
            unit.rollout.by_policy["action"][unit.t] = action[:, mine]
            unit.rollout.by_policy["log_prob"][unit.t] = log_prob[:, mine]
            unit.rollout.weights_version[unit.t] = version
            if pack.state_size:
                unit.state.copy_(state_PBS[:, mine].flatten(0, 1))
            self._answer(unit, on_host[:, mine])

    def _inputs(self, units: list[ServedUnit]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the observations [P, B, ...], states and episode starts of these vector envs, side by side."""
        pack, envs = self._pack, self._envs

        def packed(parts: list[Tensor]) -> Tensor:
            return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

        stored = [
            u.rollout.unstacked[u.t] | {k: v.unflatten(0, (-1, envs)) for k, v in u.stacks.items()}
            for u in units
        ]
        obs = {  # concatenate first, because concatenating views would lose the layout that the network computes in
            name: layout.as_seen(packed([one[name] for one in stored]))
            for name, layout in self._layouts.items()
        }
        first = [u.rollout.first[u.t].reshape(-1, envs) for u in units]
        first_here = for_upload(torch.from_numpy(np.concatenate(first, 1)), pack.device)
        first_PB = first_here.to(pack.device, non_blocking=True)
        if not pack.state_size:
            return obs, torch.empty((*first_PB.shape, 0), device=pack.device), first_PB
        return obs, packed([u.state.view(-1, envs, pack.state_size) for u in units]), first_PB

    def _end_rollout(self, unit: ServedUnit) -> None:
        """Hand a full rollout to the trainer. Start the next one; on-policy, wait for `resume_finished`."""
        unit.rollout.last_state.copy_(unit.state)
        unit.rollout.ready = self._pack.streams.mark()
        self._shared.full.append(unit.rollout)
        unit.rollouts += 1
        if self._on_policy:  # the state stays the one before this observation
            unit.t += 1
            self._resting.append(unit)
        else:
            self._go_on_in(unit, self._next_rollout(unit))

    def _answer(self, unit: ServedUnit, action_PBA: NDArray[np.generic]) -> None:
        """Write actions into a mailbox and wake its actor."""
        unit.box.action[:] = self.distribution.delivered(action_PBA.reshape(unit.box.action.shape))
        unit.t += 1
        unit.box.publish_action(unit.wake_fd)

    def _next_rollout(self, unit: ServedUnit) -> Rollout:
        """Take a free buffer. It starts with the vector env's current recurrent state."""
        rollout = self._shared.free.popleft()
        self._pack.streams.after(rollout.ready)
        rollout.state.copy_(unit.state)
        rollout.unit, rollout.lineage_version[:] = unit.number, self._lineage_version
        return rollout

    def _go_on_in(self, unit: ServedUnit, rollout: Rollout) -> None:
        """Start a rollout with the observation that ended the last one."""
        rollout.follow(unit.rollout, unit.stacks)
        unit.rollout, unit.t = rollout, 0
