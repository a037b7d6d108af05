"""The sampler: serves ready units. It takes each one's step into a rollout and answers it with actions.

    consumes     steps from mailboxes, free rollout buffers
    produces     actions in mailboxes, full rollouts, finished episodes
    waits for    nothing: a unit that cannot go on (no free buffer) is left for later
    runs in      the learner's main thread; never during learning in sync mode, beside it in async mode

Axes: P policies, R = P * b rows of a unit, B rows of a policy over all units served together, T steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import Rollout, native
from pbt_rl.envs.base import EnvSpec, read_stats
from pbt_rl.learner.build import obs_layouts
from pbt_rl.learner.shared import BufferPool, PackState, SamplingCounts
from pbt_rl.wire.mailbox import OBSERVATIONS, Mailbox
from pbt_rl.wire.messages import Episode, Game


@dataclass(eq=False)
class ServedUnit:
    """A unit as the learner sees it: its mailbox and the rollout that it fills."""

    box: Mailbox
    wake_fd: int
    rollout: Rollout
    state: Tensor
    """[R, S] recurrent state before the newest observation."""
    t: int = 0
    """Index in the rollout of the observation that comes next."""
    taken: int = 0
    """Steps taken from the mailbox."""
    rollouts: int = 0
    """Rollouts filled: who has filled fewest is the first to get a free buffer."""

    @property
    def has_step(self) -> bool:
        """A step lies in the mailbox that was not taken."""
        return bool(self.box.header[OBSERVATIONS] > self.taken)


class Sampler:
    """Serves the units of one pack. `on_policy`: a full rollout's unit rests until `resume_finished` (sync modes).

    frames: [P] where to say how many frames the members on the rows have sampled, whenever an episode ends.
    members: ids of all that belong to the pack, of whom the first hold its rows at the start. While nobody holds a
    row no unit is served, and the actors sleep.
    """

    def __init__(
        self,
        pack: Pack,
        spec: EnvSpec,
        members: tuple[int, ...],
        boxes: list[tuple[Mailbox, int]],
        distribution: Distribution,
        rollout_steps: int,
        spare_buffers: int,
        seed: int,
        *,
        on_policy: bool,
        frames: NDArray[np.int64] | None = None,
    ) -> None:
        self._pack, self._spec, self._members = pack, spec, members
        self._distribution, self._steps, self._on_policy = distribution, rollout_steps, on_policy
        policies = pack.num_policies
        self.clock = PackState.new(policies)
        self.tally = SamplingCounts(np.zeros(len(members) + 1, np.int64))
        self.full: deque[Rollout] = deque()
        self._generator = torch.Generator(pack.device).manual_seed(seed)
        self._state_resets: deque[int] = deque()
        self._origin = self.clock.origin.copy()
        rows = boxes[0][0].rows
        action = (spec.action.components, getattr(torch, spec.action.dtype))
        layouts = obs_layouts(spec)
        buffers = [
            Rollout(layouts, rollout_steps, rows, policies, action, pack.state_size, pack.device)
            for _ in range(len(boxes) + spare_buffers)
        ]
        self.units = [
            ServedUnit(box, wake_fd, buffers.pop(), torch.zeros(rows, pack.state_size, device=pack.device))
            for box, wake_fd in boxes
        ]
        self.pool = BufferPool(buffers)
        self._envs = rows // policies
        self._low, self._high = (np.array(x, np.float32) for x in (spec.action.low, spec.action.high))
        self._resting: list[ServedUnit] = []
        self._frames = frames
        self.lock = threading.Lock()
        """Guards the episodes and games of `tally`."""

    def serve(self) -> bool:
        """Answer every unit that has a step and a place to put it; say whether there was one."""
        began = time.thread_time()
        self._take_resets()
        if not any(self.clock.occupants):
            return False
        ready: list[ServedUnit] = []
        for unit in sorted(self.units, key=lambda u: u.rollouts):
            if unit.has_step and unit.t <= self._steps:
                ends = unit.t == self._steps and not self._on_policy
                if ends and len(self.pool) <= sum(u.t == self._steps for u in ready):
                    continue
                self._arrive(unit)
                ready.append(unit)
        if ready:
            self._act(ready)
        self.tally.inference_seconds += time.thread_time() - began
        return bool(ready)

    def resume_finished(self) -> None:
        """On-policy modes, after learning: rested units begin their next rollout with the new weights."""
        began = time.thread_time()
        self._take_resets()
        units, self._resting = self._resting, []
        for unit in units:
            self._next_rollout(unit)
        if units:
            self._act(units)
        self.tally.inference_seconds += time.thread_time() - began

    def reset_state(self, policy: int) -> None:
        """Zero a policy's recurrent state everywhere, before it acts again. Any thread may call.

        Call it before `clock.origin` is raised: a rollout that begins under the new origin then begins with the
        zeroed state.
        """
        self._state_resets.append(policy)

    def _take_resets(self) -> None:
        """Do what `reset_state` was asked for; rollouts begin with zeroed state, or as outdated ones."""
        self._origin = self.clock.origin.copy()
        while self._state_resets:
            policy = self._state_resets.popleft()
            for unit in self.units:
                unit.state.view(self._pack.num_policies, self._envs, -1)[policy] = 0

    def _arrive(self, unit: ServedUnit) -> None:
        """Take the mailbox's step into the rollout: the outcome of action t-1 and the observation t."""
        step, t, rollout = unit.box.step, unit.t, unit.rollout
        if unit.taken:
            rollout.reward[t - 1] = step.reward
            rollout.terminated[t - 1] = step.terminated
            rollout.truncated[t - 1] = step.truncated
            counted_P = self._envs
            if step.first.any():
                counted_P = self._envs - step.first.reshape(-1, self._envs).sum(1)
            self.tally.steps[self.clock.member] += counted_P
            if step.episode_done.any():
                self._note_episodes(unit)
        else:
            rollout.origin[:] = self._origin
            rollout.state.copy_(unit.state)
        rollout.write_obs(t, step.obs, step.first)
        unit.taken += 1

    def _note_episodes(self, unit: ServedUnit) -> None:
        """Credit episodes to those who played them; one that its player did not begin is nobody's."""
        step = unit.box.step
        if self._frames is not None:
            self._frames[:] = self.tally.steps[self.clock.member] * self._spec.frame_skip
        rows = np.flatnonzero(step.episode_done).tolist()
        episodes: dict[int, Episode] = {}
        for row in rows:
            occupant = self.clock.occupants[row // self._envs]
            version = int(step.shaping_version[row])
            if occupant is None or version not in occupant.generation_of:
                continue
            episodes[row] = Episode(
                member=self._members[occupant.member],
                generation=occupant.generation_of[version],
                objective=float(step.objective[row]),
                raw_return=float(step.raw_return[row]),
                shaped_return=float(step.shaped_return[row]),
                length_steps=int(step.length[row]),
                extra=read_stats(step, row),
                task=0 if step.task is None else int(step.task[row]),
            )
        games = [] if step.seat is None else self._games(rows, step.seat, episodes)
        with self.lock:
            self.tally.episodes += episodes.values()
            self.tally.games += games

    def _games(self, rows: list[int], seat_R: NDArray[np.int64], episodes: dict[int, Episode]) -> list[Game]:
        """Put the episodes that ended together in one environment together; one that is nobody's spoils its game."""
        by_environment: dict[int, list[int]] = {}
        for row in sorted(rows, key=lambda row: int(seat_R[row])):
            by_environment.setdefault(int(seat_R[row]) // self._spec.seats, []).append(row)
        return [
            Game(
                members=tuple(episodes[row].member for row in seated),
                generations=tuple(episodes[row].generation for row in seated),
                objectives=tuple(episodes[row].objective for row in seated),
            )
            for seated in by_environment.values()
            if all(row in episodes for row in seated)
        ]

    def _act(self, units: list[ServedUnit]) -> None:
        """One packed forward for all these units, then actions for each."""
        pack, envs = self._pack, self._envs
        shape = (pack.num_policies, len(units) * envs)

        def packed(parts: list[Tensor]) -> Tensor:
            return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

        seen = [u.rollout.seen[u.t] for u in units]
        obs = {name: packed([one[name] for one in seen]) for name in seen[0]}
        first = [u.rollout.first[u.t].reshape(-1, envs) for u in units]
        first_PB = torch.from_numpy(np.concatenate(first, 1)).to(pack.device, non_blocking=True)
        state_PBS = torch.empty((*shape, 0), device=pack.device)
        if pack.state_size:
            state_PBS = packed([u.state.view(-1, envs, pack.state_size) for u in units])
        version = self.clock.version.copy()
        params_PBD, value_PB, state_PBS = pack.act(obs, state_PBS, first_PB)
        action_PBA, log_prob_PB = self._distribution.sample(params_PBD, self._generator)

        value, action, log_prob = native(value_PB), native(action_PBA), native(log_prob_PB)
        on_host = action_PBA.cpu().numpy()
        for i, unit in enumerate(units):
            mine = slice(i * envs, (i + 1) * envs)
            unit.rollout.value_T1PB[unit.t] = value[:, mine]
            if unit.t == self._steps:
                self.full.append(unit.rollout)
                unit.rollouts += 1
                if self._on_policy:
                    # It rests until `resume_finished`; its state stays the one before this observation.
                    unit.t += 1
                    self._resting.append(unit)
                    continue
                self._next_rollout(unit)
                unit.rollout.value_T1PB[0] = value[:, mine]
            unit.rollout.action_TPBA[unit.t] = action[:, mine]
            unit.rollout.log_prob_TPB[unit.t] = log_prob[:, mine]
            unit.rollout.version[unit.t] = version
            if pack.state_size:
                unit.state = state_PBS[:, mine].flatten(0, 1)
            self._answer(unit, on_host[:, mine])

    def _answer(self, unit: ServedUnit, action_PBA: NDArray[np.generic]) -> None:
        """Write a unit's actions into its mailbox and wake its actor."""
        action_RA = action_PBA.reshape(unit.box.action.shape)
        if self._low.size:
            np.clip(action_RA, self._low, self._high, out=unit.box.action)
        else:
            unit.box.action[:] = action_RA
        unit.t += 1
        unit.box.publish_action(unit.wake_fd)

    def _next_rollout(self, unit: ServedUnit) -> None:
        """Go on in a fresh buffer, which begins with the observation that ended the last one."""
        rollout = self.pool.take()
        assert rollout is not None, "a unit was served without a free buffer"
        rollout.follow(unit.rollout)
        rollout.state.copy_(unit.state)
        rollout.origin[:] = self._origin
        unit.rollout, unit.t = rollout, 0
