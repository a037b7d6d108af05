"""Trainer: learns from full rollouts, and runs the supervisor's commands.

    consumes     full rollouts (from the sampler), commands (from the supervisor)
    produces     published weights, free buffers, statistics, acknowledgements
    waits for    enough rollouts for a batch, or a command
    runs in      a separate thread (async), or the main thread (sync, serial)

In the modes sync and serial, a command runs between two updates. In async mode, a command runs between two optimiser
steps, and therefore waits for at most one optimiser step, or for the preparation of a batch. In async mode with packing
`loop` on a CPU, commands also run during an optimiser step: in the main thread, or in a thread that learns another
policy. A command then waits only while a policy's state is written. The lock `Updater.changing` protects the state of
policies.

Axes: P policies (slots), K rollouts of a batch, T steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

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
from pbt_rl.algos.weights import Group
from pbt_rl.learner.gpu import Stopwatch
from pbt_rl.learner.pack_members import PackMembers
from pbt_rl.learner.shared import AnyRollout, SharedState


class Trainer:
    """Learning loop of one pack.

    vector_envs_per_batch: number of rollouts in a batch.
    max_policy_lag: a rollout that began more than this number of optimiser steps ago is discarded.
    members: members of the pack. The trainer holds the lock `Updater.changing` while it uses them.
    schedule: returns the factor of the learning rate: one number for all policies, or a tensor [P] on the device.
    beat: records a heartbeat. Its argument is True while the trainer works, and False when the work ends.
    replay: replay memory of the algorithm, if any.
    stepping: factory of the optimiser steps.
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
        """stopping: end after the current optimiser step. paused: run commands, but do not learn."""
        self.learning = False
        """True during an update."""
        self.learned = False
        """True from the end of an update until vector envs resume (modes sync and serial)."""
        self._rollouts: list[AnyRollout] = []
        """Rollouts of the current batch."""
        self._began = 0.0
        """`time.thread_time()` at the start of the current batch."""

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self, buffers_freed: Callable[[], None]) -> None:
        """Run in a thread until `stopping` is True. buffers_freed: called when sampling may continue."""
        while not self.stopping:
            with self.wake:
                self.wake.wait_for(self._has_work, timeout=1.0)
            freed = bool(self.commands)  # a command may fill an empty slot, which can then be sampled
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
        """Run all received commands. Call this only between two optimiser steps of the calling thread."""
        if self.commands:
            self._carry_out(lambda: self._beat(True))
            self._beat(self.learning)

    @property
    def editable_meanwhile(self) -> bool:
        """True if another thread may run commands during an optimiser step.

        False on a GPU, because a command would wait for the learning stream. False if a step updates all policies
        together, because the step then also updates the policy that a command changes.
        """
        return self.pack.device.type == "cpu" and self.pack.packing == "loop"

    def run_commands_meanwhile(self) -> None:
        """Run all received commands during an optimiser step, in a thread that does not learn.

        Call this only if `editable_meanwhile` is True. If a command replaces the weights that the optimiser step
        updates, the optimiser step is discarded.
        """
        assert self.editable_meanwhile, "commands must wait for the end of the step"
        self._carry_out(lambda: None)

    def _carry_out(self, before_each: Callable[[], None]) -> None:
        with self.updater.changing:
            self._note_steps()
            while self.commands:
                before_each()
                self.commands.popleft()()

    def learn(self) -> None:
        """Run one update on a batch of the oldest rollouts. Run commands between optimiser steps."""
        batch = self.take_batch()
        self.updater.begin_batch(batch, self._schedule())
        learned = [group for group in self.pack.groups() if self.updater.current.host[group.span].any()]
        for groups in self.pack.learned_at_once(learned):
            if self.pack.parts is None or len(groups) == 1:
                self._learn_group(batch, groups[0])
            else:
                self.pack.parts.run(partial(self._learn_group, batch), groups)
            if self.stopping:
                return
        self.end_batch(batch)

    def _learn_group(self, batch: Batch, group: Group) -> None:
        for slots in self.updater.steps(self.updater.targets(group, batch, self.generator)):
            self.publish(slots)
            self.run_commands()
            if self.stopping:
                return

    def take_batch(self) -> Batch:
        """Concatenate the oldest full rollouts into a batch. Call this only if `has_batch` is True.

        If there is a replay memory, add the rollouts to the memory, and draw the batch's replayed segments from it.
        """
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
        """Prepare one group of policies after another for a batch (`Updater.targets`). Yield each `GroupBatch`."""
        self.updater.begin_batch(batch, self._schedule())
        for group in self.pack.groups():
            yield self.updater.targets(group, batch, self.generator)

    def publish(self, slots: tuple[int, ...]) -> None:
        """Publish the new weights of these slots to the sampler."""
        self._beat(True)
        with self.updater.changing:
            self.pack.publish(slots)
            self._shared.pack.weights_version[list(slots)] += self.updater.current.host[list(slots)]

    def end_batch(self, batch: Batch) -> None:
        """Count the batch, and free the buffers of its rollouts."""
        self._stopwatch.end()
        # Block here, because a copy from the device would spin on a core while it waits.
        seconds = self._stopwatch.seconds()
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
        """Add the batch to the counts of the members that learned. steps_P: valid steps per slot."""
        shared, learned_P = self._shared, self.updater.current.host
        with shared.learning.lock:
            for p in np.flatnonzero(learned_P).tolist():
                index = shared.pack.member[p]
                shared.learning.updates[index] += 1
                shared.learning.steps[index] += steps_P[p]

    def batch_of(self, rollouts: Sequence[AnyRollout], usable_PK: NDArray[np.bool_]) -> Batch:
        """Concatenate rollouts of vector envs into a batch. A rollout of a device simulator already is a batch.

        usable_PK: [P, K], True if policy p learns from rollout k.
        """
        whole = rollouts[0]
        if not isinstance(whole, Rollout):
            return whole.batch(usable_PK[:, 0])
        of_vector_envs = [rollout for rollout in rollouts if isinstance(rollout, Rollout)]
        return make_batch(of_vector_envs, self.pack.num_policies, usable_PK, self.pack.device)

    def _usable(self, rollouts: Sequence[AnyRollout]) -> NDArray[np.bool_]:
        """Return a mask [P, K]: True if policy p learns from rollout k.

        Update the number of discarded rollouts, and the statistics of rollout age.

        Rollouts of replaced weights, and rollouts older than the maximum policy lag, are discarded. Rollouts of empty
        slots and of evaluated members are not used either, but do not count as discarded.
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
        """Count the optimiser steps since the last call for the members that are in the slots now.

        Call this at the end of a batch, and before commands that may change members.
        """
        for taken in self.updater.take_statistics():
            with self._shared.learning.lock:
                for i, p in enumerate(taken.slots):
                    stats = dict(zip(taken.names, taken.values_SGV[:, i].T, strict=True))
                    self._shared.learning.note_steps(self._shared.pack.member[p], stats)

    # -- changes --------------------------------------------------------------------------------------------

    def load(self, load: Load) -> Acknowledgement | None:
        """Load a state into a slot (see `PackMembers.load`).

        First reset the member's numbers of optimiser steps since the last report, because these steps belong to the
        former weights. The order matters, because another thread may send a report during the load.
        """
        if load.member is not None:
            self._forget_steps(load.member)
        return self.members.load(load)

    def set_values(self, change: SetValues) -> Acknowledgement:
        """Set a member's values, and set its counts of optimiser steps since the last report to 0, as `load` does."""
        self._forget_steps(change.member)
        return self.members.set_values(change)

    def _forget_steps(self, member: int) -> None:
        with self._shared.learning.lock:
            self._shared.learning.forget_steps(self._shared.members.index(member))
