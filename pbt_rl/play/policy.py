"""A trained member that acts.

A member acts as it did in training: it is put into a pack of one policy, frames are stacked by the same code, and its
own normalisers and recurrent core are used. Evaluation, games against others and Python users share this path. Of what
a run has saved only numbers are read; no code is run.

Axes: R rows (one environment each), A action components; the pack has one policy, P = 1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.observations import ObsLayout, push_frames
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config, ModelConfig
from pbt_rl.envs.base import EnvSpec, StepArrays
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import (
    build_distribution,
    build_net,
    build_pack,
    net_names,
    network_errors,
    obs_layouts,
)
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.plan import PackPlan
from pbt_rl.record.net_names import (
    NORMALISERS,
    WEIGHTS,
    Arrays,
    check_finite,
    from_tensors,
    misfit_text,
    misfits,
    to_tensors,
)
from pbt_rl.record.saved import SavedPolicy


def say(text: str) -> None:
    """Say what is not an error, such as a checkpoint that is passed over."""
    print(f"pbt-rl: {text}", file=sys.stderr)


def load_pack(config: Config, spec: EnvSpec, policy: SavedPolicy, seed: int) -> Pack:
    """Put saved weights and normalisers into a pack of one policy on the CPU.

    Raises ConfigError for weights that are not those of the run's config.json, or not finite; CheckpointBroken.
    """
    plan = PackPlan(
        "cpu", (0,), actors=1, units_per_actor=1, envs_per_policy=1, units_per_batch=1, threads=1, slots=1
    )
    checkpoint, member = policy.checkpoint, policy.member
    path, (tensors, _) = checkpoint.file(member), checkpoint.tensors(member)
    _check_size(config, spec, path, tensors)
    values = {
        name: hyper.default for name, hyper in hyper_table(config.with_declared_hypers().hypers).items()
    }
    pack = build_pack(config, spec, plan, [values], seed)
    fresh, names = {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}, net_names(pack)
    if found := misfits(tensors, to_tensors(fresh, names), (WEIGHTS, NORMALISERS)):
        raise ConfigError(misfit_text(path, found))
    check_finite(path, {n: array for n, array in tensors.items() if n.startswith((WEIGHTS, NORMALISERS))})
    saved = from_tensors(path, tensors, names)
    arrays = {name: saved.get(name, array) for name, array in fresh.items()}
    pack.import_member(0, {name: torch.from_numpy(array) for name, array in arrays.items()})
    return pack


def _check_size(config: Config, spec: EnvSpec, path: Path, tensors: Arrays) -> None:
    """Check that a config describes the saved network before it is built: a config may ask for any size.

    Raises ConfigError. A network of the user's own is as large as its author made it.
    """
    saved = {
        name.removeprefix(WEIGHTS): array.shape for name, array in tensors.items() if name.startswith(WEIGHTS)
    }
    model = config.model
    built_in = [model.core_size] if model.core in ("gru", "lstm") else []
    fits = model.core_layers <= len(saved) or not built_in
    if ":" not in model.encoder:
        fits = fits and model.layers <= len(saved)
        built_in.append(model.hidden)
    fits = fits and max(built_in, default=0) <= sum(map(prod, saved.values()))
    if fits and not model.own_parts:
        with torch.device("meta"):  # shapes without memory
            net = build_net(spec, model, config.algorithm)
        fits = {name: tuple(t.shape) for name, t in net.state_dict().items()} == saved
    if not fits:
        raise ConfigError(f"{path} does not fit the network of the run's config.json")


@dataclass(frozen=True)
class PolicyState:
    """The memory of R running episodes: recurrent state and stacked frames. It is never changed, only replaced."""

    recurrent_PRS: Tensor
    frames: Mapping[str, Tensor]
    """Name -> stack [R, H, W], one 32-bit number per pixel."""


class Policy:
    """One trained policy, which acts for the rows of a unit.

    model: the network's options, of the run. seed: of the sampled actions. greedy: take the most probable action
    instead.
    """

    def __init__(
        self,
        pack: Pack,
        spec: EnvSpec,
        model: ModelConfig,
        seed: int,
        *,
        greedy: bool,
    ) -> None:
        assert pack.num_policies == 1
        self.spec = spec
        self._pack, self._greedy = pack, greedy
        layouts = obs_layouts(spec)
        self._layouts = {name: layout for name, layout in layouts.items() if name not in spec.critic}
        self._unseen = {name: layouts[name] for name in spec.critic}
        """Observations of the critic alone, which nobody reads here: zeros stand for them."""
        self._distribution = build_distribution(spec, model)
        self._generator = torch.Generator(pack.device).manual_seed(seed)

    def act(
        self, obs: Mapping[str, NDArray[Any]], first_R: NDArray[np.bool_], state: PolicyState | None
    ) -> tuple[NDArray[Any], PolicyState]:
        """Return actions [R, A] and the next state. obs: arrays of a unit, name -> [R, ...]."""
        device, rows = self._pack.device, len(first_R)
        before = self._blank(rows) if state is None else state
        seen: dict[str, Tensor] = {}
        frames: dict[str, Tensor] = {}
        for name, layout in self._layouts.items():
            if layout.stack > 1:
                stored = before.frames[name].clone()
                frame = torch.from_numpy(np.array(obs[name])).to(device)
                push_frames(stored, frame, first_R)
                frames[name] = stored
            else:
                stored = torch.from_numpy(np.array(obs[name])).to(device)
            seen[name] = layout.as_seen(stored.unsqueeze(0))
        for name, layout in self._unseen.items():
            dtype, shape = layout.stored
            seen[name] = layout.as_seen(torch.zeros((1, rows, *shape), dtype=dtype, device=device))
        first_PR = torch.from_numpy(first_R.copy()).to(device).unsqueeze(0)
        with network_errors():
            params_PRD, _, recurrent_PRS = self._pack.act(seen, before.recurrent_PRS, first_PR)
        actions: NDArray[Any]
        if self._greedy:
            actions = self._distribution.greedy(params_PRD[0]).cpu().numpy()
        else:
            drawn_RA = self._distribution.sample(params_PRD, self._generator)[0][0]
            actions = self._distribution.delivered(drawn_RA.cpu().numpy())
        return actions, PolicyState(recurrent_PRS, frames)

    def _blank(self, rows: int) -> PolicyState:
        device = self._pack.device

        def stack(layout: ObsLayout) -> Tensor:
            dtype, shape = layout.stored
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        return PolicyState(
            torch.zeros((1, rows, self._pack.state_size), device=device),
            {name: stack(layout) for name, layout in self._layouts.items() if layout.stack > 1},
        )


class Player:
    """A policy that answers the steps of one unit, and keeps its state."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._state: PolicyState | None = None

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Answer a step with actions [R, A]."""
        actions, self._state = self._policy.act(step.obs, step.first, self._state)
        return actions
