"""A trial at the start: by which packing a device computes the policies of a pack fastest.

Which one that is depends on the device, its libraries, the network and the number of policies, so it is measured: the
forward and backward pass of one minibatch, as large as the run's, for each candidate.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.pack import Pack, Packing
from pbt_rl.algos.recording import NotRecordedError, Recording, recorder_of
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.learner.build import build_pack, obs_layouts, packings
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import PackPlan

WARM_UPS = 3
"""The third is recorded (algos/recording.py)."""
TRIES = 10
SECONDS = 0.5
"""Of a candidate, once it is warm: a slow one is not tried ten times."""


def fastest_packing(
    config: Config, spec: EnvSpec, plan: PackPlan, values: Sequence[Values]
) -> tuple[Packing, str]:
    """Return the packing of a plan, and what to say about it; nothing where there is no choice.

    values: as for `build_pack`.
    """
    candidates = packings(config, torch.device(plan.device), spec, plan.slots)
    if len(candidates) == 1:
        return candidates[0], ""
    taken: dict[Packing, float] = {}
    figures: list[str] = []
    for packing in candidates:
        pack = build_pack(config, spec, plan, values, config.seed, packing=packing)
        pack.streams.begin()
        try:
            with pack.streams.learning():
                taken[packing] = _seconds(_minibatch_of(pack, config, spec, plan), pack.device)
            figures.append(f"{packing} {taken[packing] * 1e3:.2f} ms")
        except RuntimeError as error:  # too little memory, or a library that has nothing for these shapes
            figures.append(f"{packing} failed: {str(error).splitlines()[0]}")
        del pack
        gc.collect()  # its networks are circles, and the next candidate needs their memory
    if not taken:  # learning will fail, too, and says what to do
        return candidates[0], ""
    best = min(taken, key=lambda packing: taken[packing])
    return best, f"policies are computed by {best} (a minibatch by {', '.join(figures)})"


def _minibatch_of(pack: Pack, config: Config, spec: EnvSpec, plan: PackPlan) -> Callable[[], Tensor]:
    """Return the forward and backward pass of a made-up minibatch, which gives a number that depends on all of it."""
    steps = config.learner.rollout if pack.state_size else 1
    parts = 1 if config.algorithm.learns_per_unit else config.learner.minibatches
    rows = max(1, plan.batch_rows * config.learner.rollout // parts // steps)
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
    for _ in range(WARM_UPS):
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
