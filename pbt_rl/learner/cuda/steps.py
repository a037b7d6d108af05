"""Optimiser steps captured as CUDA graphs.

A replay of a CUDA graph repeats calls on fixed memory. Therefore, samples and the order of samples are copied to fixed
buffers. Changes of hyperparameters, weights or members need no new capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbt_rl.algos.batch import Samples
from pbt_rl.algos.kernels import for_upload
from pbt_rl.algos.rollout import FIELDS, FieldSpec, Rollout, poison
from pbt_rl.algos.update import Orders, Program, StepLog, Stepping, Steps
from pbt_rl.learner.cuda.recording import RUNS, Recorder, Recording, Replays
from pbt_rl.learner.shared import AnyRollout
from pbt_rl.learner.trainer import Trainer


class RecordedStepping(Stepping):
    """Factory of the optimiser steps of all groups in a pack.

    All batches and groups share the sample buffers, because groups learn one after another.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.replays = Replays("optimiser steps", recorder)
        self.obs = {}
        self.samples: Samples | None = None

    def steps(self, span: slice, program: Program, log: StepLog, number: int) -> Steps:
        return RecordedSteps(span, program, log, number, self)

    def stage(self, samples: Samples) -> Samples:
        """Copy samples to the fixed buffers, and return the buffers.

        Observations are not copied, because their memory is already fixed. All calls need the same shapes.
        """
        if self.samples is None:
            tensors = {name: torch.empty_like(x) for name, x in samples.tensors()}
            replayed = tuple(segments.each(torch.empty_like) for segments in samples.replayed)
            self.samples = Samples(obs=dict(samples.obs), replayed=replayed, **tensors)
        for (name, mine), (_, theirs) in zip(self.samples.tensors(), samples.tensors(), strict=True):
            assert mine.shape == theirs.shape, f"{name}: {mine.shape} and {theirs.shape}"
            mine.copy_(theirs)
        for ours, others in zip(self.samples.replayed, samples.replayed, strict=True):
            for mine, theirs in zip(ours.tensors(), others.tensors(), strict=True):
                mine.copy_(theirs)
        return self.samples


class RecordedSteps(Steps):
    """Optimiser steps of a group, with one CUDA graph per minibatch size. number: optimiser steps per batch."""

    def __init__(
        self, span: slice, program: Program, log: StepLog, number: int, stepping: RecordedStepping
    ) -> None:
        super().__init__(span, program, log)
        self._number, self._stepping = number, stepping
        self._order_SN = self._step_1 = torch.empty(0)
        self._sizes: list[int] = []
        self._recordings: dict[int, Recording] = {}

    def load_batch(self, samples: Samples, orders: Orders) -> None:
        device = self._stepping.stage(samples).valid.device
        columns = samples.valid.shape[2]
        self._sizes = [columns if order is None else len(order) for order in orders]
        if not self._step_1.numel():
            self._step_1 = torch.zeros(1, dtype=torch.int64, device=device)
            self._order_SN = torch.zeros((self._number, columns), dtype=torch.int64, device=device)
        self._step_1.zero_()
        if columns not in self._sizes:
            packed = torch.zeros(self._order_SN.shape, dtype=torch.int64)
            for row, order in zip(packed, orders, strict=False):
                assert order is not None
                row[: len(order)] = order
            self._order_SN.copy_(for_upload(packed, device), non_blocking=True)

    def run(self, step: int) -> None:
        size = self._sizes[step]
        recording = self._recordings.setdefault(size, Recording(lambda: self._one(size)))
        self._stepping.replays.run(recording)

    def end(self) -> None:
        """Do nothing. The samples are kept, because replays of the CUDA graphs read the same buffers."""

    def _one(self, size: int) -> None:
        """Run the optimiser step whose number is in `_step_1`, and increment this number. size: rows per policy."""
        samples = self._stepping.samples
        assert samples is not None, "load_batch must be called first"
        if size < samples.valid.shape[2]:
            samples = samples.columns(self._order_SN.index_select(0, self._step_1)[0, :size])
        self._log.write(self._step_1, self._span, self._program(samples))
        self._step_1 += 1


def record_steps(trainer: Trainer, rollouts: list[AnyRollout], replays: Replays) -> None:
    """Capture the optimiser steps of every minibatch size, without changing the training state.

    Call this before another thread starts, because the thread's first library call would break a capture.

    rollouts: unused rollouts of one batch. They contain poison afterwards.
    """
    current = trainer.members.current
    chance, before = trainer.generator.get_state(), current.host.copy()
    with trainer.pack.streams.learning():
        for rollout in rollouts:
            _clear(rollout)
        current.begin_batch(np.zeros_like(before))
        batch = trainer.batch_of(rollouts, np.zeros((len(before), len(rollouts)), np.bool_))
        if trainer.replay is not None:
            batch = replace(batch, replayed=trainer.replay.draw(batch, trainer.generator))
        trainer.updater.rehearse(batch, trainer.generator, RUNS)
        current.begin_batch(before)
        for rollout in rollouts:
            _poison(rollout)
    trainer.generator.set_state(chance)
    replays.restart()


def _clear(rollout: AnyRollout) -> None:
    """Fill a rollout with zeros, which are valid input for the capture."""
    for array, _ in _on_host(rollout):
        array[:] = 0
    for memory in rollout.on_device:
        memory.zero_()


def _poison(rollout: AnyRollout) -> None:
    """Fill a rollout with the poison that marks unwritten memory (NaN for floats)."""
    for array, spec in _on_host(rollout):
        array[:] = spec.on_host(array.shape)
    for memory in rollout.on_device:
        memory.fill_(poison(memory.dtype))


def _on_host(rollout: AnyRollout) -> Iterator[tuple[NDArray[Any], FieldSpec]]:
    for name, spec in FIELDS.items() if isinstance(rollout, Rollout) else ():
        if spec.source == "environment":
            yield getattr(rollout, name), spec
