"""Reads what a run has saved: its config, its members and their weights. Only numbers are read, no code is run."""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from torch import Tensor

from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net, build_pack
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoint import load_weights, shapes_of
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.reading import read_object

MOST_MEMBERS = 10**9


def find_member(run: Path, member: str) -> int:
    """Turn `best` or an id into the id of a member whose weights were saved. Raises ConfigError."""
    if member == "best":
        summary = read_object(
            RunFolder(run).summary,
            f"--member best: {run} has no summary.json: it has not ended; give an id, saved: {_saved(run)}",
        )
        best = summary.get("best_member")
        number = 0 if best is None else best  # no episode finished: the run saved member 0
        if type(number) is not int or not 0 <= number < MOST_MEMBERS:
            raise ConfigError(f"{RunFolder(run).summary}: best_member is not the id of a member")
    elif member.isascii() and member.isdigit() and len(member) < len(str(MOST_MEMBERS)):
        number = int(member)
    else:
        raise ConfigError(f"--member {member!r} cannot be used: write best or the id of a member")
    if not RunFolder(run).weights(number).is_file():
        raise ConfigError(
            f"--member {member}: weights of member {number} were not saved; saved: {_saved(run)}"
        )
    return number


def _saved(run: Path) -> str:
    return ", ".join(map(str, RunFolder(run).saved_members())) or "none"


def load_pack(config: Config, spec: EnvSpec, path: Path, seed: int) -> Pack:
    """Put saved weights and normalisers into a pack of one policy on the CPU. Raises ConfigError."""
    plan = PackPlan(
        "cpu", (0,), actors=1, units_per_actor=1, envs_per_policy=1, units_per_batch=1, threads=1, slots=1
    )
    _check_size(config, spec, path)
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    pack = build_pack(config, spec, plan, [values], seed)
    net = build_net(spec, config.model)
    statistics = load_weights(path, net)
    pack.set_fresh(0, net)
    wanted = pack.named_statistics(0)
    if _shapes(statistics) != _shapes(wanted):
        raise ConfigError(
            f"{path} does not fit the run's config.json: "
            f"it holds the normalisers {sorted(statistics)}, not {sorted(wanted)}"
        )
    pack.import_member(0, pack.export_member(0) | statistics)
    return pack


def _check_size(config: Config, spec: EnvSpec, path: Path) -> None:
    """Check that a config describes the saved network before it is built: a config may ask for any size.

    Raises ConfigError. A network of the user's own is as large as its author made it.
    """
    saved, model = shapes_of(path), config.model
    sizes = [model.core_size] if model.core != "none" else []
    if ":" in model.encoder:
        fits = True
    else:
        fits = model.layers <= len(saved)
        sizes.append(model.hidden)
    fits = fits and max(sizes, default=0) <= sum(map(prod, saved.values()))
    if fits and ":" not in model.encoder:
        with torch.device("meta"):  # shapes without memory
            fits = {name: t.shape for name, t in build_net(spec, model).state_dict().items()} == saved
    if not fits:
        raise ConfigError(f"{path} does not fit the network of the run's config.json")


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
