"""The trainer: learns from full rollouts and has changes to the population made, one thing at a time.

    consumes     full rollouts (from the sampler), commands (from the supervisor)
    produces     published weights, free buffers, statistics, proofs of application
    waits for    a batch's worth of rollouts or a command
    runs in      its own thread (async), or inline between samplings (sync, serial)

A command is handled between two optimiser steps, so it waits for one minibatch of one policy at most, and
nothing else ever writes a policy's state. What changes a member is in `residents`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import Rollout, make_batch
from pbt_rl.algos.update import StepStats, UpdateSettings, update
from pbt_rl.learner.members import PackMembers
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.shared import LearningCounts
from pbt_rl.wire.messages import Applied, Edit, SlotChange
from pbt_rl.wire.tables import ShapingTable


class Trainer:
    """Learns and edits. `exchange`: memory for one member's state between packs, as bytes.

    schedule: the factor of the learning rates, one for all or [P] on the device. weights_seed: of fresh weights.
    """

    def __init__(
        self,
        pack: Pack,
        sampler: Sampler,
        settings: UpdateSettings,
        members: tuple[int, ...],
        units_per_batch: int,
        max_policy_lag: int,
        shaping: ShapingTable,
        exchange: Tensor,
        seed: int,
        schedule: Callable[[], float | Tensor],
        weights_seed: int = 0,
    ) -> None:
        self._pack, self._sampler, self._settings = pack, sampler, settings
        self._members, self._units_per_batch, self._max_lag = members, units_per_batch, max_policy_lag
        self._schedule = schedule
        self.residents = PackMembers(pack, sampler, members, shaping, exchange, weights_seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.commands: deque[Callable[[], None]] = deque()
        self.wake = threading.Condition()
        self.lock = threading.Lock()
        """Guards `tallies` against the reporter."""
        self.tallies = LearningCounts.new(len(members))
        self.stopping = False
        self.learning = False
        """An update is in progress, perhaps in another thread."""

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self, buffers_freed: Callable[[], None]) -> None:
        """Run as a thread: learn and edit until `stopping`. `buffers_freed` is called when rollouts were given back."""
        while not self.stopping:
            with self.wake:
                self.wake.wait_for(lambda: self.stopping or self.commands or self.has_batch, timeout=1.0)
            freed = bool(self.commands)  # a row that was nobody's may have to be served again
            self.run_commands()
            if self.has_batch and not self.stopping:
                self.learn()
                freed = True
            if freed:
                buffers_freed()

    @property
    def has_batch(self) -> bool:
        """Enough full rollouts for an update."""
        return len(self._sampler.full) >= self._units_per_batch

    def run_commands(self) -> None:
        """Do what the supervisor asked for."""
        while self.commands:
            self.commands.popleft()()

    def learn(self) -> None:
        """Learn from the oldest rollouts; give their buffers back."""
        self.learning = True
        rollouts = [self._sampler.full.popleft() for _ in range(self._units_per_batch)]
        began = time.thread_time()
        usable_PK = self._usable(rollouts)
        batch = make_batch(rollouts, self._pack.num_policies, usable_PK, self._pack.device)
        current_P = self.residents.current_P
        current_P.fill_(True)
        current_P[torch.from_numpy(~usable_PK.any(1))] = False
        steps = update(
            self._pack,
            batch,
            self._settings,
            generator=self._generator,
            learning_rate_factor=self._schedule(),
            current_P=current_P,
        )
        for stats in steps:
            self._pack.publish(stats.members)
            self._note(stats)
            if self.commands:
                self.run_commands()
        learned = current_P.cpu().numpy()
        self._sampler.clock.version += learned
        valid_P = batch.valid_PTB.sum((1, 2)).cpu().numpy()
        with self.lock:
            for p in np.flatnonzero(learned).tolist():
                index = self._sampler.clock.member[p]
                self.tallies.updates[index] += 1
                self.tallies.steps[index] += int(valid_P[p])
            self.tallies.learning_seconds += time.thread_time() - began
        for rollout in rollouts:
            self._sampler.pool.give(rollout)
        self.learning = False

    def _usable(self, rollouts: list[Rollout]) -> NDArray[np.bool_]:
        """Which rollouts count for which policy, [P, K], none for nobody; notes lag and discards."""
        clock = self._sampler.clock
        origin_PK = np.stack([r.origin for r in rollouts], axis=1)
        version_PKT = np.stack([r.version.T for r in rollouts], axis=1)
        lag_PKT = clock.version[:, None, None] - version_PKT
        same_PK = origin_PK == clock.origin[:, None]
        held_P = clock.member < len(self._members)
        usable_PK: NDArray[np.bool_] = same_PK & (lag_PKT[:, :, 0] <= self._max_lag) & held_P[:, None]
        with self.lock:
            self.tallies.discarded += int((~usable_PK[held_P]).sum())
            if usable_PK.any():
                self.tallies.lag_max = max(self.tallies.lag_max, int(lag_PKT[usable_PK].max()))
            for p in np.flatnonzero(usable_PK.any(1)).tolist():
                self._add(clock.member[p], "lag", torch.tensor(float(lag_PKT[p][usable_PK[p]].mean())), 1)
        return usable_PK

    def _note(self, stats: StepStats) -> None:
        with self.lock:
            for i, p in enumerate(stats.members):
                index = self._sampler.clock.member[p]
                if not bool(torch.isfinite(stats.values["grad_norm"][i])):
                    self.tallies.steps_left_out[index] += 1
                    continue
                for name, value_G in stats.values.items():
                    self._add(index, name, value_G[i].detach(), 1)
                self.tallies.steps_done[index] += 1

    def _add(self, index: int, name: str, value: Tensor, count: int) -> None:
        sums = self.tallies.sums[index]
        sums[name] = sums.get(name, torch.zeros_like(value)) + value
        sums[f"{name}#"] = sums.get(f"{name}#", torch.zeros(())) + count

    def take_broken(self, index: int) -> bool | None:
        """Whether all optimiser steps since the last call were left out; None without any. The caller holds `lock`."""
        t = self.tallies
        done, left_out = t.steps_done[index], t.steps_left_out[index]
        t.steps_done[index] = t.steps_left_out[index] = 0
        return None if done + left_out == 0 else done == 0

    def take_means(self, index: int) -> dict[str, float]:
        """Mean of every statistic since the last call. The caller holds `lock`."""
        sums, self.tallies.sums[index] = self.tallies.sums[index], {}
        return {k: float(v) / float(sums[f"{k}#"]) for k, v in sums.items() if not k.endswith("#")}

    # -- changes --------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> Applied:
        """Change a member; what its gradients were before says nothing about it any more."""
        applied = self.residents.apply(edit)
        self._forget_steps(edit.member)
        return applied

    def change_slot(self, change: SlotChange) -> Applied | None:
        """Let a row change hands."""
        proof = self.residents.change_slot(change)
        if change.enters is not None:
            self._forget_steps(change.enters)
        return proof

    def _forget_steps(self, member: int) -> None:
        index = self._members.index(member)
        with self.lock:
            self.tallies.steps_done[index] = self.tallies.steps_left_out[index] = 0
