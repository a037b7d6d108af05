"""Weights on disk: safetensors and JSON, nothing that is executed when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.pack import Pack
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Values


def weights_path(run: Path, member: int, at_frames: int | None = None) -> Path:
    """Where a member's weights lie: those of the run's end, or those kept after so many frames of each member."""
    folder = run / "checkpoints"
    return (folder if at_frames is None else folder / f"at_{at_frames}") / f"policy_{member:02d}.safetensors"


def save_member(path: Path, pack: Pack, state: Mapping[str, Tensor], member: int, values: Values) -> None:
    """Write one member: named weights, its normalisers, and what it is in `.json` beside them.

    state: what the pack's `export_member` gave.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"net.{k}": v.contiguous() for k, v in pack.weights_of(state).items()}
    tensors |= {f"stats.{k}": v for k, v in pack.statistics_of(state).items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)
    path.with_suffix(".json").write_text(json.dumps({"member": member, "values": values}, indent=2) + "\n")


def load_weights(path: Path, net: PolicyNet) -> dict[str, Tensor]:
    """Put saved weights into a network; return the normalisers. Raises ConfigError if they do not fit."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there: the run saved no weights for this member")
    tensors = load_file(path)
    weights = {k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")}
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(f"{path} does not fit the network of the run's config.json: {error}") from error
    with torch.no_grad():
        return {k.removeprefix("stats."): v for k, v in tensors.items() if k.startswith("stats.")}
