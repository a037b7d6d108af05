"""Reads what a run has saved: its config, its members and their weights. Only numbers are read, no code is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net, build_pack
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoint import load_weights
from pbt_rl.record.folder import RunFolder, config_from_json


def read_config(run: Path) -> Config:
    """Read the config of a run. Raises ConfigError where there is none."""
    data = _read_json(RunFolder(run).config, f"{run} is not a run: it has no config.json")
    try:
        return config_from_json(data)
    except TypeError as error:
        raise ConfigError(f"{RunFolder(run).config} is not the config of a run: {error}") from error


def find_member(run: Path, member: str) -> int:
    """Turn `best` or an id into the id of a member whose weights were saved. Raises ConfigError."""
    if member == "best":
        summary = _read_json(
            RunFolder(run).summary,
            f"--member best: {run} has no summary.json: it has not ended; give an id, saved: {_saved(run)}",
        )
        best = summary.get("best_member")
        number = 0 if best is None else best  # no episode finished: the run saved member 0
        if not isinstance(number, int):
            raise ConfigError(f"{RunFolder(run).summary}: best_member is {best!r}, not the id of a member")
    elif member.isascii() and member.isdigit():
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


def _read_json(path: Path, if_missing: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(if_missing) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} cannot be read: it holds no JSON object")
    return data


def load_pack(config: Config, spec: EnvSpec, path: Path, seed: int) -> Pack:
    """Put saved weights and normalisers into a pack of one policy on the CPU. Raises ConfigError."""
    plan = PackPlan(
        "cpu", (0,), actors=1, units_per_actor=1, envs_per_policy=1, units_per_batch=1, threads=1, slots=1
    )
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    pack = build_pack(config, spec, plan, [values], seed)
    net = build_net(spec, config.model)
    try:
        statistics = load_weights(path, net)
    except SafetensorError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    pack.set_fresh(0, net)
    wanted = pack.named_statistics(0)
    if _shapes(statistics) != _shapes(wanted):
        raise ConfigError(
            f"{path} does not fit the run's config.json: "
            f"it holds the normalisers {sorted(statistics)}, not {sorted(wanted)}"
        )
    pack.import_member(0, pack.export_member(0) | statistics)
    return pack


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
