"""Lays the arrays of a file over those of a member, as far as they fit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.store import SnapshotHeader
from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.checkpoints import (
    NORMALISERS,
    OPTIMIZER,
    WEIGHTS,
    Arrays,
    NetNames,
    check_finite,
    header_from_metadata,
    misfit_text,
    misfits,
    to_tensors,
    unpack,
)


@dataclass(frozen=True)
class Fitted:
    """A member's arrays with those of a file laid over them."""

    arrays: dict[str, NDArray[Any]]
    loaded: tuple[str, ...]
    """Names in the file."""
    skipped: tuple[str, ...]
    """Names that were asked for and not loaded, each with the reason."""


@dataclass(frozen=True)
class Saved:
    """What a file of a member, or one of weights alone, holds. path: for messages."""

    path: Path
    tensors: Arrays
    header: SnapshotHeader | None


def fit(
    saved: Saved,
    names: NetNames,
    onto: Arrays,
    *,
    strict: bool,
    optimizer: bool = True,
    normalisers: bool = True,
) -> Fitted:
    """Lay what was saved over copies of a member's arrays (fresh ones, say).

    strict: all that is asked for must be there and fit. Otherwise whatever fits by name, shape and dtype is loaded. The
    optimiser's state is loaded as a whole or not at all, as moments and step counts of two origins would be wrong for
    each other; so are the statistics of one observation.

    Raises ConfigError with the layers if it (strict) does not fit, and for what is loaded and not finite.
    """
    tensors = saved.tensors
    arrays = {name: array.copy() for name, array in onto.items()}
    targets = to_tensors(arrays, names)
    asked = (WEIGHTS, *([OPTIMIZER] if optimizer else []), *([NORMALISERS] if normalisers else []))
    found = misfits(tensors, targets, asked)
    if strict and found:
        raise ConfigError(misfit_text(saved.path, found))
    spoilt = {_group(misfit.name) for misfit in found}
    fitting = {name for name in targets if name.startswith(asked)} & tensors.keys()
    loaded = sorted(name for name in fitting if _group(name) not in spoilt)
    check_finite(saved.path, {name: tensors[name] for name in loaded})
    for name in loaded:
        np.copyto(targets[name], tensors[name])
    reasons = {name: f"{name}: others of {_group(name)} do not fit" for name in fitting - set(loaded)}
    reasons |= {misfit.name: str(misfit) for misfit in found}
    return Fitted(arrays, tuple(loaded), tuple(reasons[name] for name in sorted(reasons)))


def read_saved(path: Path) -> Saved:
    """Read a file. Raises ConfigError if it cannot be read or is damaged."""
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a path that no file can have
        raise ConfigError(f"{path} is not a file: give a safetensors file of a member")
    try:
        tensors, metadata = unpack(path.read_bytes())
        return Saved(path, tensors, header_from_metadata(metadata))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointBroken(f"{path} cannot be used: {error}") from error


def _group(name: str) -> str:
    """Return what is loaded together with this name: the whole optimiser, the statistics of one observation."""
    if name.startswith(OPTIMIZER):
        return f"{OPTIMIZER}*"
    if name.startswith(NORMALISERS) and name.count(".") > 1:
        return f"{NORMALISERS}*.{name.split('.', 2)[2]}"
    return name
