"""Trainer: learns from full rollouts and applies edits, one at a time.

    consumes     full rollouts (from the sampler), commands (from the supervisor)
    produces     published weights, free buffers, statistics, acknowledgements
    waits for    enough rollouts for a batch, or a command
    runs in      its own thread (async), or inline between sampling (sync, serial)

A command runs between two optimiser steps, so it waits for at most one minibatch of one policy. Where policies are
computed one by one on a CPU, edits run in the main thread. They then wait only for the short end of a step, where
weights are written. Whoever writes a policy's state holds `Updater.changing`. Changes of members are in `PackMembers`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.actors.messages import Acknowledgement, Load, SetValues
from pbt_rl.algos.algorithm import UpdateSettings
from pbt_rl.algos.batch import Batch, make_batch
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.replay import Replay
from pbt_rl.algos.rollout import Rollout
from pbt_rl.algos.update import GroupBatch, Stepping, Updater
from pbt_rl.learner.gpu import Stopwatch
from pbt_rl.learner.members import PackMembers
from pbt_rl.learner.shared import AnyRollout, SharedState


class Trainer:
    """Learning loop and edits of one pack.

    members: accessed under `Updater.changing`. schedule: returns the learning rate factor, one for all or [P] on the
    device. beat: heartbeat, with True while there is work and False when it ends. replay: replay memory of the
    algorithm. stepping: runs the optimiser steps.
    """

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        settings: UpdateSettings,
        vector_envs_per_batch: int,
        max_policy_lag: int,
        members: PackMembers,
        seed: int,
        schedule: Callable[[], float | Tensor],
        beat: Callable[[bool], None] = lambda _: None,
        replay: Replay | None = None,
        stepping: Stepping | None = None,
    ) -> None:
        self.pack, self._shared, self._settings = pack, shared, settings
        self._max_lag, self._schedule = max_policy_lag, schedule
        self.members, self._beat, self.replay = members, beat, replay
        self.vector_envs_per_batch = vector_envs_per_batch
        self.updater = Updater(pack, settings, members.current, stepping)
        self._stopwatch = Stopwatch(pack.device)
        self.generator = torch.Generator().manual_seed(seed)
        self.commands: deque[Callable[[], None]] = deque()
        self.wake = threading.Condition()
        self.stopping = self.paused = False
        """`stopping` ends the thread after the current optimiser step. While `paused`, only commands run."""
        self.learning = False
        """True during an update, perhaps in another thread."""
        self.learned = False
        """A batch was learned, and its on-policy vector envs have not been answered yet."""
        self._rollouts: list[AnyRollout] = []
        """Of the present batch."""
        self._began = 0.0
        """`time.thread_time()` at the start of the present batch."""

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self, buffers_freed: Callable[[], None]) -> None:
        """Run as a thread until `stopping`. Calls `buffers_freed` when sampling may continue."""
        while not self.stopping:
            with self.wake:
                self.wake.wait_for(self._has_work, timeout=1.0)
            freed = bool(self.commands)  # a command may fill an empty slot, which restarts sampling
            self.run_commands()
            if self.has_batch and not self.stopping and not self.paused:
                self.learn()
                freed = True
            if freed:
                buffers_freed()

    def _has_work(self) -> bool:
        return self.stopping or bool(self.commands) or (self.has_batch and not self.paused)

    @property
    def has_batch(self) -> bool:
        """True if there are enough full rollouts for an update."""
        return len(self._shared.full) >= self.vector_envs_per_batch

    def run_commands(self) -> None:
        """Run the supervisor's commands between two optimiser steps."""
        if self.commands:
            self._carry_out(lambda: self._beat(True))
            self._beat(self.learning)

    @property
    def editable_meanwhile(self) -> bool:
        """True if another thread may run commands during an optimiser step.

        False on a GPU, where they would wait for the learning stream. False for a step of all policies at once,
        because it includes the edited one.
        """
        return self.pack.device.type == "cpu" and self.pack.packing == "loop"

    def run_commands_meanwhile(self) -> None:
        """Run the supervisor's commands in a thread other than the trainer's.

        They wait only for the end of a step, where weights are written. If the edit replaces the weights of the slot
        that is being trained, that step is discarded.
        """
        assert self.editable_meanwhile, "edits must wait for the step"
        self._carry_out(lambda: None)

    def _carry_out(self, before_each: Callable[[], None]) -> None:
        with self.updater.changing:
            self._note_steps()
            while self.commands:
                before_each()
                self.commands.popleft()()

    def learn(self) -> None:
        """Learn from a batch of the oldest rollouts, and run commands between two optimiser steps."""
        batch = self.take_batch()
        for group in self.targets(batch):
            for slots in self.updater.steps(group):
                self.publish(slots)
                self.run_commands()
                if self.stopping:
                    return
        self.end_batch(batch)

    def take_batch(self) -> Batch:
        """Join the oldest full rollouts into a batch, with samples drawn from the replay memory if there is one."""
        self.learning = True
        self._beat(True)
        shared, updater = self._shared, self.updater
        self._rollouts = [shared.full.popleft() for _ in range(self.vector_envs_per_batch)]
        self._began = time.thread_time()
        self._stopwatch.start()
        with updater.changing:
            usable_PK = self._usable(self._rollouts)
            updater.current.begin_batch(np.any(usable_PK, axis=1))
            lineage_version = shared.pack.lineage_version.copy()
        for rollout in self._rollouts:
            self.pack.streams.after(rollout.ready)
        batch = self.batch_of(self._rollouts, usable_PK)
        if self.replay is not None:
            self.replay.add([r for r in self._rollouts if isinstance(r, Rollout)], lineage_version)
            batch = replace(batch, replayed=self.replay.draw(batch, self.generator))
        return batch

    def targets(self, batch: Batch) -> Iterator[GroupBatch]:
        """Compute the targets of one group of policies after another; see `Updater.targets`."""
        factor = self._schedule()
        return self.updater.targets(batch, generator=self.generator, learning_rate_factor=factor)

    def publish(self, slots: tuple[int, ...]) -> None:
        """Let the sampler act with the new weights of these slots."""
        self._beat(True)
        with self.updater.changing:
            self.pack.publish(slots)
            self._shared.pack.weights_version[list(slots)] += self.updater.current.host[list(slots)]

    def end_batch(self, batch: Batch) -> None:
        """Count the batch for its members, and free the buffers of its rollouts."""
        self._stopwatch.end()
        seconds = self._stopwatch.seconds()  # blocks; a copy from the device would spin on a core instead
        with self.updater.changing:
            self._note_steps()
            self._count(batch.valid.sum((1, 2)).cpu().tolist())
        learning = self._shared.learning
        of_parts = 0.0 if self.pack.parts is None else self.pack.parts.take_seconds()
        learning.learning_seconds += time.thread_time() - self._began + of_parts
        if seconds is not None:
            learning.gpu_seconds = (learning.gpu_seconds or 0.0) + seconds
        read = self.pack.streams.mark()
        for rollout in self._rollouts:
            rollout.ready = read
            if isinstance(rollout, Rollout):
                self._shared.free.append(rollout)
        self._rollouts = []
        self.learning, self.learned = False, True
        self._beat(False)

    def _count(self, steps_P: list[int]) -> None:
        """Add the batch to the counts of members that learned. steps_P: steps per slot."""
        shared, learned_P = self._shared, self.updater.current.host
        with shared.learning.lock:
            for p in np.flatnonzero(learned_P).tolist():
                index = shared.pack.member[p]
                shared.learning.updates[index] += 1
                shared.learning.steps[index] += steps_P[p]

    def batch_of(self, rollouts: Sequence[AnyRollout], usable_PK: NDArray[np.bool_]) -> Batch:
        """Join the rollouts of vector envs into a batch. A device simulator's rollout already is one."""
        whole = rollouts[0]
        if not isinstance(whole, Rollout):
            return whole.batch(usable_PK[:, 0])
        of_vector_envs = [rollout for rollout in rollouts if isinstance(rollout, Rollout)]
        return make_batch(of_vector_envs, self.pack.num_policies, usable_PK, self.pack.device)

    def _usable(self, rollouts: Sequence[AnyRollout]) -> NDArray[np.bool_]:
        """Select the rollouts that count for each policy, [P, K]. Update the lag and discard counts.

        Rollouts of an empty slot or of an evaluated member do not count.
        """
        state, counts = self._shared.pack, self._shared.learning
        lineage_PK = np.stack([r.lineage_version for r in rollouts], axis=1)
        acting_PKT = np.stack([r.weights_version.T for r in rollouts], axis=1)
        lag_PKT = state.weights_version[:, None, None] - acting_PKT
        same_PK = lineage_PK == state.lineage_version[:, None]
        held_P = (state.member < len(self._shared.members)) & ~state.evaluated
        usable_PK: NDArray[np.bool_] = same_PK & (lag_PKT[:, :, 0] <= self._max_lag) & held_P[:, None]
        with counts.lock:
            counts.discarded += int((~usable_PK[held_P]).sum())
            if usable_PK.any():
                counts.lag_max = max(counts.lag_max, int(lag_PKT[usable_PK].max()))
            for p in np.flatnonzero(usable_PK.any(1)).tolist():
                counts.add(state.member[p], "lag", [lag_PKT[p][usable_PK[p]].mean()])
        return usable_PK

    def _note_steps(self) -> None:
        """Credit optimiser steps to their members before a slot is reassigned."""
        for taken in self.updater.take_statistics():
            with self._shared.learning.lock:
                for i, p in enumerate(taken.slots):
                    stats = dict(zip(taken.names, taken.values_SGV[:, i].T, strict=True))
                    self._shared.learning.note_steps(self._shared.pack.member[p], stats)

    # -- changes --------------------------------------------------------------------------------------------

    def load(self, load: Load) -> Acknowledgement | None:
        """Load a state into a slot. Reset the member's step count, which belongs to its former weights."""
        ack = self.members.load(load)
        if load.member is not None:
            self._forget_steps(load.member)
        return ack

    def set_values(self, change: SetValues) -> Acknowledgement:
        """Set other values for a member. Reset its step count, which belongs to the former values."""
        ack = self.members.set_values(change)
        self._forget_steps(change.member)
        return ack

    def _forget_steps(self, member: int) -> None:
        with self._shared.learning.lock:
            self._shared.learning.forget_steps(self._shared.members.index(member))
