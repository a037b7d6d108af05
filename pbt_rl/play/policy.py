"""A trained member as a function: `policy = load_policy("runs/demo")`, then `action, state = policy(obs, state)`.

A member acts as it did in training: it is put into a pack of one policy, frames are stacked by the same code, and its
own normalisers and recurrent core are used. Evaluation, games against others and Python users share this path. Of what
a run has saved only numbers are read; no code is run.

Axes: R rows (one environment each), A action components; the pack has one policy, P = 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.observations import ObsLayout, push_frames
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config, ModelConfig
from pbt_rl.envs.actions import action_decoder, rows_decoder
from pbt_rl.envs.base import EnvSpec, StepArrays
from pbt_rl.envs.registry import EnvOptions, evaluation_options, make_raw, probe
from pbt_rl.envs.spaces import Leaf, leaves_of, read_rows
from pbt_rl.errors import ConfigError, environment_code
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
from pbt_rl.record.saved import BEST, PLAY, SavedPolicy, Source, Trust, find_saved, read_config


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


@dataclass(frozen=True)
class _Array:
    """One array of an observation, as the environment gives it."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    read: Callable[[NDArray[Any], int], NDArray[Any]]
    """(array [R, *shape], R) -> array as the network gets it."""


@dataclass(frozen=True)
class Interface:
    """How an environment gives observations and takes actions."""

    arrays: tuple[_Array, ...]
    one_action: Callable[[NDArray[Any]], Any]
    """[A] -> action of one environment."""
    actions: Callable[[NDArray[Any]], Any]
    """[R, A] -> actions of R environments."""


class Policy:
    """One trained policy. `policy(obs, state)` is for Python users, `act` for the rows of a unit.

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
        interface: Interface | None = None,
    ) -> None:
        assert pack.num_policies == 1
        self.spec = spec
        self._pack, self._greedy = pack, greedy
        whole = unit_interface(spec) if interface is None else interface
        self._interface = replace(whole, arrays=tuple(a for a in whole.arrays if a.name not in spec.critic))
        layouts = obs_layouts(spec)
        self._layouts = {name: layout for name, layout in layouts.items() if name not in spec.critic}
        self._unseen = {name: layouts[name] for name in spec.critic}
        """Observations of the critic alone, which nobody reads here: zeros stand for them."""
        self._distribution = build_distribution(spec, model)
        self._generator = torch.Generator(pack.device).manual_seed(seed)

    def __call__(
        self, obs: Any, state: PolicyState | None = None, first: NDArray[np.bool_] | None = None
    ) -> tuple[Any, PolicyState]:
        """Return (action, state for the next call).

        obs: as the environment gives it, an array, dict or tuple (nested, or flat by the names of `spec.obs`), of one
        environment or with a leading axis of R rows; what only the critic sees (`spec.critic`) may be left out. The
        action is of the same kind. A mask that the environment
        gives in its info dict is passed as `{"obs": ..., "action_mask": ...}`. state: None when episodes begin.
        first: [R] rows whose episode begins with this observation although others go on. Raises ConfigError for an
        observation that does not fit.
        """
        arrays, rows = self._read(obs)
        count = 1 if rows is None else rows
        begins = np.full(count, state is None)
        if first is not None:
            begins |= np.asarray(first, np.bool_).reshape(count)
        action_RA, state = self.act(arrays, begins, state)
        if rows is None:
            return self._interface.one_action(action_RA[0]), state
        return self._interface.actions(action_RA), state

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

    def _read(self, obs: Any) -> tuple[dict[str, NDArray[Any]], int | None]:
        """Return the arrays by name, and the number of rows (None for one environment)."""
        given = {array.name: np.asarray(self._find(array, obs)) for array in self._interface.arrays}
        rows: int | None = None
        for array in self._interface.arrays:
            extra = given[array.name].ndim - len(array.shape)
            if extra not in (0, 1) or given[array.name].shape[extra:] != array.shape:
                batched = ", ".join(map(str, ("R", *array.shape)))
                raise ConfigError(
                    f"observation {array.name!r} of {self.spec.env_id} has shape {given[array.name].shape}: give "
                    f"{array.shape}, or ({batched}) for R rows"
                )
            rows = given[array.name].shape[0] if extra else None
        count = 1 if rows is None else rows
        try:
            return {
                array.name: array.read(given[array.name].reshape(count, *array.shape), count)
                for array in self._interface.arrays
            }, rows
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _find(self, array: _Array, obs: Any) -> Any:
        in_tuple = isinstance(obs, tuple) and array.path[:1] != () and array.path[0].isdecimal()
        if not isinstance(obs, Mapping) and not in_tuple and len(self._interface.arrays) == 1:
            return obs
        if isinstance(obs, Mapping) and array.name in obs:
            return obs[array.name]
        if isinstance(obs, Mapping) or in_tuple:
            value = obs
            for key in array.path or (array.name,):
                if isinstance(value, tuple | list) and key.isdecimal() and int(key) < len(value):
                    value = value[int(key)]
                elif isinstance(value, Mapping) and key in value:
                    value = value[key]
                else:
                    break
            else:
                return value
        names = ", ".join(one.name for one in self._interface.arrays)
        raise ConfigError(
            f"the observation of {self.spec.env_id} lacks {array.name!r}: give a dict with {names}, "
            f"got {type(obs).__name__}{sorted(map(str, obs)) if isinstance(obs, Mapping) else ''}"
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


def load_policy(
    run: Path | str,
    member: str | int = BEST,
    *,
    at: int | None = None,
    greedy: bool = False,
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """Load a trained member of a run to play with it, on the CPU.

    run: the run's folder. member: an id, or `best`. at: frames of the checkpoint; None for the newest whole one.
    greedy: take the most probable action instead of sampling with this seed. trust: import the modules that the run's
    config.json names, such as an environment of your own. Raises ConfigError for a folder that is no run, for a member
    or frames that were not saved, and for a run that names modules if it is not trusted.
    """
    folder = Path(run)
    config = read_config(folder)
    Trust(everything=trust).check(config, PLAY, folder)
    saved = find_saved(Source(folder, at, str(member)), say)
    with environment_code(config.env):
        options = evaluation_options(config.env, config.env_options)
        spec = probe(config.env, options)
        interface = gymnasium_interface(spec, options) or unit_interface(spec)
    pack = load_pack(config, spec, saved, seed)
    return Policy(pack, spec, config.model, seed, greedy=greedy, interface=interface)


def gymnasium_interface(spec: EnvSpec, options: EnvOptions) -> Interface | None:
    """Return the interface of an environment by its Gymnasium spaces; None if it has none."""

    def reader(leaf: Leaf) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        bare = replace(leaf, path=(), in_info=False)
        return lambda array, rows: read_rows(bare, array, rows, spec.env_id)

    env = make_raw(spec.env_id, options)
    if env is None:
        return None
    try:
        if isinstance(env, VectorEnv):
            spaces = env.single_observation_space, env.single_action_space
        elif isinstance(env, gymnasium.Env):
            spaces = env.observation_space, env.action_space
        else:
            return None
        leaves = leaves_of(spec.env_id, *spaces, env.metadata)
        added = {
            name: array for name, array in spec.obs.items() if name not in {leaf.name for leaf in leaves}
        }
        return Interface(
            (
                *(_Array(leaf.name, leaf.path, leaf.shape, reader(leaf)) for leaf in leaves),
                *unit_interface(replace(spec, obs=added)).arrays,
            ),
            action_decoder(spaces[1]),
            rows_decoder(spaces[1]),
        )
    finally:
        env.close()


def unit_interface(spec: EnvSpec) -> Interface:
    """Return the interface of a unit: observations by the names and shapes of the spec, actions by component."""

    def reader(dtype: str) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        return lambda array, _rows: array.astype(dtype, copy=False)

    return Interface(
        tuple(_Array(name, (name,), array.shape, reader(array.dtype)) for name, array in spec.obs.items()),
        lambda action_A: action_A,
        lambda action_RA: action_RA,
    )
