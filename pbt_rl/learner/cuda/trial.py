"""A trial at the start: by which packing a device computes the policies of a pack fastest.

Which one that is depends on the device, its libraries, the network and the number of policies, so it is measured: an
optimiser step's forward and backward pass and a turn's forward pass, each as large as the run's. What counts is the
time of a batch, which takes as many of either as the plan says.
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
from pbt_rl.config import Config
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
from pbt_rl.learner.cuda.recording import RUNS, NotRecordedError, Recording, broken, recorder_of
from pbt_rl.learner.cuda.streams import streams_of
from pbt_rl.learner.cuda.turns import MOST_UNITS
from pbt_rl.plan import PackPlan

TRIES = 10
SECONDS = 0.5
"""Of a candidate, once it is warm: a slow one is not tried ten times."""
READY_AT_ONCE = 4
"""A turn is taken to serve one in so many of the units: the others' environments step meanwhile."""


class BrokenTrialError(Exception):
    """A recording of a candidate was refused in the midst, and this process can record nothing any more."""

    def __init__(self, packing: Packing) -> None:
        super().__init__(f"a recording was broken while {packing} was tried")
        self.packing = packing


def fastest_packing(
    config: Config,
    spec: EnvSpec,
    plan: PackPlan,
    values: Sequence[Values],
    without: Sequence[Packing] = (),
) -> tuple[Packing, str]:
    """Return the packing of a plan, and what to say about it; nothing where there is no choice.

    values: as for `build_pack`. without: packings that are not tried, as their recordings broke. Raises
    BrokenTrialError if one does.
    """
    candidates = packings_of(config, spec, plan)
    if len(candidates) == 1:
        return candidates[0], ""
    taken: dict[Packing, float] = {}
    figures: list[str] = [f"{packing} breaks what is recorded" for packing in without]
    net = build_net(spec, config.model, config.algorithm)
    for packing in candidates:
        if packing in without:
            continue
        streams = streams_of(torch.device(plan.device), threads=config.mode == "async")
        pack = build_pack(config, spec, plan, values, config.seed, packing=packing, net=net, streams=streams)
        pack.streams.wait_for_work()
        try:
            with pack.streams.learning():
                taken[packing] = _seconds_of_batch(pack, config, spec, plan)
            figures.append(f"{packing} {taken[packing] * 1e3:.1f} ms")
        except RuntimeError as error:  # too little memory, or a library that has nothing for these shapes
            figures.append(f"{packing} failed: {str(error).splitlines()[0]}")
        del pack
        gc.collect()  # its networks are circles, and the next candidate needs their memory
        if broken():
            raise BrokenTrialError(packing)
    if not taken:  # learning will fail, too, and says what to do
        return next((p for p in candidates if p not in without), candidates[-1]), ""
    best = min(taken, key=lambda packing: taken[packing])
    return best, f"policies are computed by {best} (a batch by {', '.join(figures)})"


def _seconds_of_batch(pack: Pack, config: Config, spec: EnvSpec, plan: PackPlan) -> float:
    """Return the time of the optimiser steps and the turns that a batch takes."""
    epochs, minibatches = passes(config)
    step = _seconds(_minibatch_of(pack, config, spec, plan), pack.device)
    units = min(MOST_UNITS, max(1, plan.units // READY_AT_ONCE))
    turn = _seconds(_turn_of(pack, spec, units * plan.envs_per_policy), pack.device)
    turns = plan.units_per_batch * config.learner.rollout / units
    return epochs * minibatches * step + turns * turn


def _turn_of(pack: Pack, spec: EnvSpec, rows: int) -> Callable[[], Tensor]:
    """Return the forward pass of a turn on made-up observations, likewise."""
    shape = (pack.num_policies, rows)
    obs = {name: _made_up(layout, shape, pack.device) for name, layout in obs_layouts(spec).items()}
    first = torch.zeros(shape, dtype=torch.bool, device=pack.device)
    state = torch.zeros((*shape, pack.state_size), device=pack.device)

    def compute() -> Tensor:
        params, value, _ = pack.serve(obs, state, first)
        return params.sum() + value.sum()

    return compute


def _minibatch_of(pack: Pack, config: Config, spec: EnvSpec, plan: PackPlan) -> Callable[[], Tensor]:
    """Return the forward and backward pass of a made-up minibatch, which gives a number that depends on all of it."""
    steps = config.learner.rollout if pack.state_size else 1
    rows = max(1, minibatch_steps(config, plan) // steps)
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
    """Return the least time of a few tries, with the wait for the device. It is recorded where learning is."""
    result = torch.zeros((), device=device)

    def program() -> None:
        result.copy_(compute())

    recorder, recording = recorder_of(device), Recording(program)
    for _ in range(RUNS):
        try:
            recording.run(recorder)
        except NotRecordedError:  # in learning it goes call by call, too
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
    """Replace this process by one that finds the message where `begin_child` expects its connection.

    After CUDA has refused a recording in the midst, a process can record nothing any more. A fresh one can. Its parent
    notices nothing: process, connection and descriptors stay.
    """
    message = os.memfd_create("learner", 0)
    said: Connection[Any, Any] = Connection(os.dup(message))
    said.send(replace(setup, connection_fd=connection_fd))
    said.close()
    os.lseek(message, 0, os.SEEK_SET)
    *command, _ = sys.orig_argv[1:]
    for fd in (connection_fd, message, *setup.fds):
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, str(message)])  # noqa: S606 - our own interpreter
