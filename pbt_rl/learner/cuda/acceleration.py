"""Acceleration of a learner: packing, CUDA graphs, page-locked memory. On a CPU, nothing is captured or locked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from mmap import mmap
from typing import Any

import torch

from pbt_rl.actors.messages import Replayed
from pbt_rl.algos.optim import ADAM, adam_on
from pbt_rl.algos.pack import Packing
from pbt_rl.algos.update import Stepping
from pbt_rl.controllers.hypers import Values
from pbt_rl.learner.build import LearnerSetup
from pbt_rl.learner.cuda.host_memory import PageLocks
from pbt_rl.learner.cuda.recorded_sampler import RecordedSampler
from pbt_rl.learner.cuda.recording import RECORDERS, Replays, recorder_of
from pbt_rl.learner.cuda.steps import RecordedStepping, record_steps
from pbt_rl.learner.cuda.trial import BrokenTrialError, begin_again, fastest_packing
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.simulators.simulator_sampler import AnySampler, SimulatorSampler
from pbt_rl.learner.trainer import Trainer


class Acceleration:
    """CUDA acceleration of one learner. Call `packing`, `prepare`, `sampler`, `stepping` and `record` in this order."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._locks: PageLocks | None = None
        self._replays: dict[str, Replays] = {}

    def packing(self, setup: LearnerSetup, values: Sequence[Values], connection: Any) -> tuple[Packing, str]:
        """Return (fastest packing for this device, log line).

        values: hyperparameters of each slot.
        connection: connection to the parent. If a failed CUDA graph capture breaks this process, the process restarts
        with the same connection.
        """
        try:
            return fastest_packing(setup, values)
        except BrokenTrialError as error:
            print(f"{error}: the learner restarts without this packing")
            begin_again(replace(setup, without=(*setup.without, error.packing)), connection.fileno())

    def prepare(self, device: torch.device, memories: Iterable[mmap]) -> None:
        """Page-lock the memory of mailboxes for copies to a device."""
        self._device = device
        self._locks = PageLocks(memories, device)

    def sampler(self, *, on_policy: bool) -> type[Sampler]:
        """Return the sampler class for mailboxes. on_policy: the mode is sync or serial."""
        return Sampler if on_policy or self._device.type not in RECORDERS else RecordedSampler

    def stepping(self) -> Stepping:
        """Return the factory of optimiser steps, with CUDA graphs if possible."""
        recorder = recorder_of(self._device)
        if recorder is None:
            return Stepping()
        made = RecordedStepping(recorder)
        self._replays["steps"] = made.replays
        return made

    def record(self, sampler: AnySampler, trainer: Trainer) -> str:
        """Capture inference batches and optimiser steps as CUDA graphs. Return a log line, or "".

        The training state stays unchanged. On a CPU, nothing is captured. Inference batches of vector envs are captured
        in async mode only. Inference batches of a device simulator are captured later, in their third run.

        Call `record` before other threads start, because the first CUDA calls of a thread would break a capture.
        """
        trainer.pack.streams.wait_for_work()
        if isinstance(sampler, RecordedSampler):
            sampler.record_inference_batches()
        batches = sampler.replays if isinstance(sampler, RecordedSampler | SimulatorSampler) else None
        self._replays = {"turns": batches, **self._replays} if batches else self._replays
        if "steps" in self._replays:
            rollouts = sampler.rollouts()[: trainer.vector_envs_per_batch]
            record_steps(trainer, [*rollouts], self._replays["steps"])
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # frees the memory of eager runs, because graphs use another memory pool
        names = {"turns": "inference batches", "steps": "optimiser steps"}
        failed = {names[name]: one.why_not for name, one in self._replays.items() if one.why_not}
        said = [adam_on(self._device)[1]] if trainer.pack.optimizer is ADAM else []
        said += [f"{what} run without CUDA graphs, which costs speed: {why}" for what, why in failed.items()]
        return "; ".join(filter(None, said))

    def report(self) -> dict[str, Replayed]:
        """Return the numbers of CUDA graph replays. Key "turns": inference batches. Key "steps": optimiser steps."""
        return {name: Replayed(one.replayed, one.runs, one.why_not) for name, one in self._replays.items()}

    def close(self) -> None:
        """Release the page locks, because they would outlive this object."""
        if self._locks is not None:
            self._locks.release()
