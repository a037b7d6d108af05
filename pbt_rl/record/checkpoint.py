"""Weights on disk: safetensors and JSON. Reading them executes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Values

WEIGHTS, NORMALISERS = "net.", "stats."
"""Prefixes of the names in the file."""


def save_member(
    path: Path, weights: Mapping[str, Tensor], normalisers: Mapping[str, Tensor], member: int, values: Values
) -> None:
    """Write the weights and normalisers of one member in one piece, and its id and values as `.json` beside them.

    weights: by the names of the network's `state_dict`. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"{WEIGHTS}{name}": tensor.contiguous() for name, tensor in weights.items()}
    tensors |= {f"{NORMALISERS}{name}": tensor for name, tensor in normalisers.items()}
    partial = path.with_suffix(".partial")
    try:
        save_file(tensors, partial)
    except SafetensorError as error:  # a full disk, for one
        partial.unlink(missing_ok=True)
        raise OSError(str(error)) from error
    partial.replace(path)
    path.with_suffix(".json").write_text(json.dumps({"member": member, "values": values}, indent=2) + "\n")


def load_weights(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """Load saved weights into a network; return the normalisers.

    Raises ConfigError if the file is missing or does not fit the network.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the run saved no weights of this member")
    tensors = load_file(path)
    try:
        net.load_state_dict(_named(WEIGHTS, tensors))
    except RuntimeError as error:
        raise ConfigError(f"{path} does not fit the network of the run's config.json: {error}") from error
    with torch.no_grad():
        return _named(NORMALISERS, tensors)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
