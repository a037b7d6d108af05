"""Puts a member that a run has saved into a pack. Only numbers are read, no code is run."""

from __future__ import annotations

import sys
from math import prod

import torch

from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net, build_pack, net_names
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.plan import PackPlan
from pbt_rl.record.net_names import Saved, fit
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
    saved = Saved(checkpoint.file(member), *checkpoint.tensors(member))
    _check_size(config, spec, saved)
    values = {
        name: hyper.default for name, hyper in hyper_table(config.with_declared_hypers().hypers).items()
    }
    pack = build_pack(config, spec, plan, [values], seed)
    fresh = {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}
    fitted = fit(saved, net_names(pack), fresh, strict=True, optimizer=False)
    pack.import_member(0, {name: torch.from_numpy(array) for name, array in fitted.arrays.items()})
    return pack


def _check_size(config: Config, spec: EnvSpec, file: Saved) -> None:
    """Check that a config describes the saved network before it is built: a config may ask for any size.

    Raises ConfigError. A network of the user's own is as large as its author made it.
    """
    saved, model = file.shapes(), config.model
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
        raise ConfigError(f"{file.path} does not fit the network of the run's config.json")
