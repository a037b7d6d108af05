"""What gpu_stages.py and gpu_runs.py measure with: a learner without processes, and timing."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from typing import Any

import numpy as np
import torch

from pbt_rl.actors.mailbox import OBSERVATIONS, Mailbox
from pbt_rl.algos.rollout import Rollout
from pbt_rl.cli.train import parse_train
from pbt_rl.learner.learner import Learner
from pbt_rl.learner.sampler import Sampler
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.plan import Machine
from pbt_rl.run.resolved import ResolvedRun

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """What is checked. limit: steps/s of the stage `limit`, 0 before it. keep: folder for what runs print, or empty."""

    device: str
    env: str
    seconds: float
    policies: tuple[int, ...]
    limit: float
    stage: str = ""
    keep: str = ""

    @property
    def torch_device(self) -> torch.device:
        """As torch names it."""
        return torch.device(self.device)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.torch_device.type == "cuda"

    def machine(self) -> dict[str, Any]:
        """Return what figures depend on."""
        card = {"card": torch.cuda.get_device_name(self.torch_device)} if self.on_gpu else {}
        return {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))} | card


# -- a learner without processes ------------------------------------------------------------------------------


class Stand:
    """A learner of one pack, with mailboxes that `advance` fills. words: options of `pbt-rl train`."""

    def __init__(self, device: torch.device, env: str, policies: int, *words: str, actors: int = 2) -> None:
        options = [f"--env={env}", f"--num-policies={policies}", f"--actors={actors}", "--units-per-actor=1"]
        config, _ = parse_train([*options, "--devices=cpu", "--seed=3", *words])
        resolved = ResolvedRun.resolve(config, Machine(cpus=16, gpus=0))
        (pack,) = resolved.plan.packs
        self.plan = replace(pack, device=str(device), threads=1)
        resolved = replace(resolved, plan=replace(resolved.plan, packs=(self.plan,)))
        self.values = resolved.controller().initial(policies)[0]
        self._memory = Memory(resolved, Start.fresh(resolved.plan, resolved.controller().initial(policies)))
        self.pool = self._memory.pool
        self._ours, theirs = Pipe()
        self.learner = Learner(self._memory.learners[0], theirs)
        self.said = self._ours.recv().note
        """By the learner at its start: the trial of packings, what is not replayed, how Adam steps."""
        assert isinstance(self.learner.sampler, Sampler)
        self.sampler, self.trainer = self.learner.sampler, self.learner.trainer
        self.pack, self.shared = self.learner.pack, self.learner.shared
        self.boxes = [box for record in self._memory.actors for box in record.boxes]
        self._rng = np.random.default_rng(0)

    def advance(self, *, still: bool = False) -> None:
        """Write a made-up step into every mailbox that waits for one. still: always the same, in one episode."""
        for box in self.boxes:
            if not box.learner_has_turn:
                self._step(box)
                if still:
                    for array in box.step.obs.values():
                        array[:] = 1
                    box.step.first[:] = box.step.terminated[:] = False

    def give_back(self) -> None:
        """Let full rollouts be filled again, instead of learning from them."""
        while self.shared.full:
            rollout = self.shared.full.popleft()
            assert isinstance(rollout, Rollout), "of mailboxes"
            self.shared.free.give(rollout)

    def repeat_steps(self) -> None:
        """Replay each group's optimiser step once more, in which no slot learns; nothing where nothing is recorded."""
        if "steps" not in self.learner.acceleration.report():
            return
        updater = self.trainer.updater
        updater.current.begin_batch(np.zeros(self.pack.num_policies, np.bool_))
        with self.pack.streams.learning():
            for steps in updater._steps:  # noqa: SLF001 - a run has no use for this
                steps._step_1.zero_()  # type: ignore[attr-defined] # noqa: SLF001
                steps.run(0)

    def _step(self, box: Mailbox) -> None:
        step, rng = box.step, self._rng
        for array in step.obs.values():
            pixels = array.dtype == np.uint8
            array[:] = rng.integers(0, 256, array.shape) if pixels else rng.normal(size=array.shape)
        step.reward[:] = rng.normal(size=box.rows)
        step.terminated[:] = rng.random(box.rows) < 0.02
        step.truncated[:] = step.episode_done[:] = False
        step.first[:] = (rng.random(box.rows) < 0.02) | (box.header[OBSERVATIONS] == 0)
        box.header[OBSERVATIONS] += 1

    def fill(self) -> list[Any]:
        """Act until there is a batch; return all actions."""
        actions = []
        while not self.trainer.has_batch:
            self.advance()
            self.sampler.serve()
            actions.append(np.concatenate([box.action.ravel() for box in self.boxes]))
        return actions

    def learn(self) -> None:
        """Learn from a batch as the trainer's thread does."""
        with self.pack.streams.learning():
            self.trainer.learn()

    def state(self) -> dict[str, torch.Tensor]:
        """State of all policies, on the CPU."""
        self.finish()
        return {name: x.cpu().clone() for name, x in self.pack.state.items()}

    def finish(self) -> None:
        """Wait for the device."""
        if self.pack.device.type == "cuda":
            torch.cuda.synchronize(self.pack.device)

    def close(self) -> None:
        """Release the memory."""
        self.learner.close()
        self._memory.close()


@contextmanager
def stand(
    job: Job, policies: int, *words: str, device: torch.device | None = None, actors: int = 2
) -> Iterator[Stand]:
    """Make a stand and release it."""
    made = Stand(job.torch_device if device is None else device, job.env, policies, *words, actors=actors)
    try:
        yield made
    finally:
        made.close()


def timed(work: Callable[[], object], finish: Callable[[], None], tries: int) -> tuple[float, float]:
    """Return (milliseconds until the device is done, CPU-milliseconds of this thread) of a call, medians."""
    for _ in range(3):
        work()
    finish()
    taken = [timed_once(work, finish) for _ in range(tries)]
    return statistics.median(whole for whole, _ in taken), statistics.median(cpu for _, cpu in taken)


def timed_once(work: Callable[[], object], finish: Callable[[], None]) -> tuple[float, float]:
    """Return (milliseconds until the device is done, CPU-milliseconds of this thread) of one call."""
    began, used = time.perf_counter(), time.thread_time()
    work()
    cpu = time.thread_time() - used
    finish()
    return (time.perf_counter() - began) * 1e3, cpu * 1e3


def device_calls(job: Job, work: Callable[[], object]) -> dict[str, float]:
    """Return kernels, copies and syncs of a call, and how long the device was busy; nothing without a GPU.

    The profiler itself waits for the device at its end: what it counts of nothing is taken off.
    """
    if not job.on_gpu:
        return {}
    nothing, found = _profiled(lambda: None), _profiled(work)
    return {name: max(0.0, value - nothing[name]) for name, value in found.items()}


def _profiled(work: Callable[[], object]) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
    return counted(profiled.events())


def counted(events: Iterable[Any]) -> dict[str, float]:
    """Count what a profile says. A wait, such as `Context Sync`, is on the device's line, too: it is no kernel."""
    events = list(events)
    on_device = [e for e in events if e.device_type.name == "CUDA" and not e.name.endswith(" Sync")]
    copies = [e for e in on_device if "Memcpy" in e.name or "Memset" in e.name]
    waits = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    return {
        "kernels": float(len(on_device) - len(copies)),
        "copies": float(len(copies)),
        "syncs": float(sum(e.name in waits for e in events)),
        "device ms": sum(e.device_time for e in on_device) / 1e3,
    }
