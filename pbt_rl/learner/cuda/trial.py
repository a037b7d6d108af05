"""Choice of the fastest packing, by timing at start.

The fastest packing depends on the device, its libraries, the network and the number of policies. Two computations are
timed for each packing, with the tensor sizes of the run: the forward and backward pass of an optimiser step, and the
forward pass of an inference batch. The packing with the shortest time per training batch is chosen.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor

from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.pack import Pack, Packing
from pbt_rl.controllers.hypers import Values
from pbt_rl.envs.base import EnvSpec
from pbt_rl.learner.build import (
    LearnerSetup,
    build_net,
    build_pack,
    minibatch_steps,
    obs_layouts,
    packings_of,
    passes,
)
from pbt_rl.learner.cuda.recorded_sampler import MOST_VECTOR_ENVS
from pbt_rl.learner.cuda.recording import RUNS, NotRecordedError, Recording, broken, recorder_of
from pbt_rl.learner.cuda.streams import streams_of

TRIES = 10
SECONDS = 0.5
"""Time limit of a measurement after warm-up, because TRIES tries of a slow packing would take too long."""
READY_AT_ONCE = 4
"""A timed inference batch has 1 / READY_AT_ONCE of the vector envs, because the others step meanwhile."""


class BrokenTrialError(Exception):
    """CUDA graph capture that could not be ended. The process cannot capture again."""

    def __init__(self, packing: Packing) -> None:
        super().__init__(f"CUDA graph capture failed while packing {packing} was timed")
        self.packing = packing


def fastest_packing(setup: LearnerSetup, values: Sequence[Values]) -> tuple[Packing, str]:
    """Return (fastest packing for a plan, log line). With a single candidate, or if all fail, the log line is empty.

    Raises BrokenTrialError if a capture could not be ended.

    values: values of each slot.
    """
    config, spec, plan, without = setup.config, setup.spec, setup.plan, setup.without
    candidates = packings_of(config, spec, plan)
    if len(candidates) == 1:
        return candidates[0], ""
    taken: dict[Packing, float] = {}
    figures: list[str] = [f"{packing} breaks CUDA graph capture" for packing in without]
    net = build_net(spec, config.model, config.algorithm)
    for packing in candidates:
        if packing in without:
            continue
        streams = streams_of(torch.device(plan.device), threads=config.mode == "async")
        pack = None
        try:
            pack = build_pack(
                config, spec, plan, values, config.seed, packing=packing, net=net, streams=streams
            )
            pack.streams.wait_for_work()
            with pack.streams.learning():
                taken[packing] = _seconds_of_batch(pack, setup)
            figures.append(f"{packing} {taken[packing] * 1e3:.1f} ms")
        except RuntimeError as error:  # out of memory, or no library kernel for these shapes
            figures.append(f"{packing} failed: {str(error).splitlines()[0]}")
        del pack
        gc.collect()  # frees networks, which are reference cycles: the next packing needs their memory
        if broken():
            raise BrokenTrialError(packing)
    if not taken:  # learning will fail too, with a message that contains the remedy
        return next((p for p in candidates if p not in without), candidates[-1]), ""
    best = min(taken, key=lambda packing: taken[packing])
    return best, f"policies are computed by {best} (time per batch: {', '.join(figures)})"


def _seconds_of_batch(pack: Pack, setup: LearnerSetup) -> float:
    """Return the seconds of all optimiser steps and inference batches for one training batch."""
    config, plan = setup.config, setup.plan
    epochs, minibatches = passes(config)
    step = _seconds(_minibatch_of(pack, setup), pack.device)
    vector_envs = min(MOST_VECTOR_ENVS, max(1, plan.vector_envs // READY_AT_ONCE))
    batch_seconds = _seconds(_batch_of(pack, setup.spec, vector_envs * plan.envs_per_policy), pack.device)
    batches = plan.vector_envs_per_batch * config.learner.rollout / vector_envs
    return epochs * minibatches * step + batches * batch_seconds


def _batch_of(pack: Pack, spec: EnvSpec, rows: int) -> Callable[[], Tensor]:
    """Return a function that runs an inference batch on synthetic observations. rows: rows of each policy."""
    shape = (pack.num_policies, rows)
    obs = {name: _made_up(layout, shape, pack.device) for name, layout in obs_layouts(spec).items()}
    first = torch.zeros(shape, dtype=torch.bool, device=pack.device)
    state = torch.zeros((*shape, pack.state_size), device=pack.device)

    def compute() -> Tensor:
        params, value, _ = pack.infer(obs, state, first)
        return params.sum() + value.sum()

    return compute


def _minibatch_of(pack: Pack, setup: LearnerSetup) -> Callable[[], Tensor]:
    """Return a function that runs forward and backward on a synthetic minibatch."""
    config, spec = setup.config, setup.spec
    steps = config.learner.rollout if pack.state_size else 1
    rows = max(1, minibatch_steps(config, setup.plan) // steps)
    shape = (pack.num_policies, steps, rows)
    obs = {name: _made_up(layout, shape, pack.device) for name, layout in obs_layouts(spec).items()}
    first = torch.zeros(shape, dtype=torch.bool, device=pack.device)
    state = torch.zeros((pack.num_policies, rows, pack.state_size), device=pack.device)

    def compute() -> Tensor:
        losses = []
        for group in pack.groups():
            inputs = {name: x[group.span] for name, x in obs.items()}
            params, value, _ = group.forward(inputs, state[group.span], first[group.span])
            loss = params.square().mean() + value.square().mean()
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    return compute


def _made_up(layout: ObsLayout, shape: tuple[int, ...], device: torch.device) -> Tensor:
    dtype, of_row = layout.stored
    return layout.as_seen(torch.ones((*shape, *of_row), dtype=dtype, device=device))


def _seconds(compute: Callable[[], Tensor], device: torch.device) -> float:
    """Return the seconds of the fastest of a few runs. Each run includes a synchronisation.

    CUDA graphs are used if possible, as in learning. compute: returns a scalar tensor on the device.
    """
    result = torch.zeros((), device=device)

    def program() -> None:
        result.copy_(compute())

    recorder, recording = recorder_of(device), Recording(program)
    for _ in range(RUNS):
        try:
            recording.run(recorder)
        except NotRecordedError:  # learning will run eagerly, too
            recorder = None
            program()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < TRIES and (not taken or time.perf_counter() < end):
        began = time.perf_counter()
        recording.run(recorder)
        result.item()
        taken.append(time.perf_counter() - began)
    return min(taken)


def begin_again(setup: LearnerSetup, connection_fd: int) -> NoReturn:
    """Replace this process by a new learner process (exec), because this process cannot capture again (`broken`).

    The new process has the same process id, connection to the parent and descriptors. `begin_child` reads the setup
    from a memory file.
    """
    message = os.memfd_create("learner", 0)
    said: Connection[Any, Any] = Connection(os.dup(message))
    said.send(replace(setup, connection_fd=connection_fd))
    said.close()
    os.lseek(message, 0, os.SEEK_SET)
    command, at = sys.orig_argv[1:], len(sys.orig_argv) - len(sys.argv)
    command[at] = str(message)  # instead of `connection_fd`, the first argument of the program
    for fd in (connection_fd, message, *setup.fds):
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606 - the same interpreter
