"""Weights on disk: safetensors and JSON. Reading them executes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
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

    Raises ConfigError if the file is missing or damaged, does not fit the network, or holds NaN or infinities.
    """
    tensors = _load(path)
    try:
        net.load_state_dict(_named(WEIGHTS, tensors))
    except RuntimeError as error:
        raise ConfigError(f"{path} does not fit the network of the run's config.json: {error}") from error
    with torch.no_grad():
        return _named(NORMALISERS, tensors)


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each saved weight, by its name in the network; no number is read. Raises ConfigError."""
    with _reading(path), safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict
    return {name.removeprefix(WEIGHTS): shape for name, shape in shapes.items() if name.startswith(WEIGHTS)}


def _load(path: Path) -> dict[str, Tensor]:
    with _reading(path):
        tensors: dict[str, Tensor] = load_file(path)
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ConfigError(
            f"{path} holds numbers that are not finite (in {', '.join(broken)[:200]}): the member is broken and cannot "
            "play; choose another one with --member"
        )
    return tensors


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ConfigError for a file of weights that is missing or cannot be read."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the run saved no weights of this member")
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
