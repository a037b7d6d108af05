"""All that makes one learner faster on its GPU; on a CPU every call is made when its turn comes."""

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
from pbt_rl.learner.cuda.memory import PageLocks
from pbt_rl.learner.cuda.recording import RECORDERS, Replays, recorder_of
from pbt_rl.learner.cuda.steps import RecordedStepping, record_steps
from pbt_rl.learner.cuda.trial import BrokenTrialError, begin_again, fastest_packing
from pbt_rl.learner.cuda.turns import RecordedSampler
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.simulators.sampler import AnySampler, ResidentSampler
from pbt_rl.learner.trainer import Trainer


class Acceleration:
    """Of one learner."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._locks: PageLocks | None = None
        self._replays: dict[str, Replays] = {}

    def packing(
        self, setup: LearnerSetup, values: Sequence[Values], connection: Any
    ) -> tuple[Packing | None, str]:
        """Return by which packing a device is fastest, and what to say of it; None: the usual one.

        values: of each slot. connection: to the parent, to go on with if this process has to begin again.
        """
        try:
            return fastest_packing(setup.config, setup.spec, setup.plan, values, setup.without)
        except BrokenTrialError as error:
            print(f"{error}: the learner begins again without it")
            begin_again(replace(setup, without=(*setup.without, error.packing)), connection.fileno())

    def prepare(self, device: torch.device, memories: Iterable[mmap]) -> None:
        """Prepare the memory of mailboxes for copies to a device."""
        self._device = device
        self._locks = PageLocks(memories, device)

    def sampler(self, *, on_policy: bool) -> type[Sampler]:
        """Return what samples mailboxes."""
        return Sampler if on_policy or self._device.type not in RECORDERS else RecordedSampler

    def stepping(self) -> Stepping:
        """Return how optimiser steps are carried out."""
        recorder = recorder_of(self._device)
        if recorder is None:
            return Stepping()
        made = RecordedStepping(recorder)
        self._replays["steps"] = made.replays
        return made

    def record(self, sampler: AnySampler, trainer: Trainer) -> str:
        """Prepare turns and steps while there is one thread; what a run reads stays. Return it in words.

        Another thread's first calls would break a recording. Afterwards nothing is recorded any more, so how much
        memory there is to be, and what is refused, is known before an actor runs.
        """
        trainer.pack.streams.wait_for_work()
        if isinstance(sampler, RecordedSampler):
            sampler.record_turns()
        turns = sampler.replays if isinstance(sampler, RecordedSampler | ResidentSampler) else None
        self._replays = {"turns": turns, **self._replays} if turns else self._replays
        if "steps" in self._replays:
            rollouts = sampler.rollouts()[: trainer.units_per_batch]
            record_steps(trainer, [*rollouts], self._replays["steps"])
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # what calls one by one needed; recordings have memory of their own
        names = {"turns": "turns", "steps": "optimiser steps"}
        failed = {names[name]: one.why_not for name, one in self._replays.items() if one.why_not}
        said = [adam_on(self._device)[1]] if trainer.pack.optimizer is ADAM else []
        said += [f"{what} are not replayed, which costs speed: {why}" for what, why in failed.items()]
        return "; ".join(filter(None, said))

    def report(self) -> dict[str, Replayed]:
        """Return how often `turns` of the sampler and optimiser `steps` were replayed, in total."""
        return {name: Replayed(one.replayed, one.runs, one.why_not) for name, one in self._replays.items()}

    def close(self) -> None:
        """Release what would outlast the learner."""
        if self._locks is not None:
            self._locks.release()
