"""Warm start (`--init-from`): members begin with saved arrays of another run.

An array that does not fit is an error. With `--no-init-strict`, the array is skipped if other weights fit.

Only arrays are loaded. Hyperparameters and shaping come from this run. Frames, steps, updates and the learning rate
schedule start at 0. Modules in the config of the other run are not imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.state_pool import MemberSnapshot, SavedStates, SnapshotHeader
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import Values
from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.learner.build import build_pack, net_names
from pbt_rl.options.values import path_given
from pbt_rl.record.checkpoints import (
    ALL,
    NORMALISERS,
    OPTIMIZER,
    WEIGHTS,
    Arrays,
    Misfit,
    NetNames,
    check_finite,
    header_from_metadata,
    misfit_text,
    misfits,
    shortened,
    to_tensors,
    unpack,
)
from pbt_rl.record.saved import Source, find_saved
from pbt_rl.run.resolved import ResolvedRun

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Fitted:
    """Result of `fit`. arrays: a member's arrays, with the copied tensors."""

    arrays: dict[str, NDArray[Any]]
    loaded: tuple[str, ...]
    """Names of the copied tensors."""
    misfits: tuple[Misfit, ...]
    """Differences of the requested tensors: missing in the file or in the network, or with another shape or dtype."""
    skipped: tuple[str, ...]
    """Reason for each requested tensor that was not copied: this tensor or another one of its group does not fit."""


def fit(path: Path, tensors: Arrays, names: NetNames, onto: Arrays, parts: str = "all") -> Fitted:
    """Copy the tensors of a file into copies of a member's arrays.

    path: the file, for error messages. tensors: tensors of the file. onto: the member's arrays.
    names: positions of the parameters in the member's flat vector. parts: parts to copy (`--init-parts`).

    A tensor fits if name, shape and dtype are equal. The state of the optimiser is loaded completely or not at all,
    because moments and step counts must have one origin. For the same reason, the statistics of each observation are
    loaded completely or not at all.

    Raises ConfigError if a loaded tensor is not finite.
    """
    arrays = {name: array.copy() for name, array in onto.items()}
    targets = to_tensors(arrays, names)
    asked = {"all": ALL, "weights": (WEIGHTS,)}.get(parts, (WEIGHTS, NORMALISERS))
    found = misfits(tensors, targets, asked)
    spoilt = {_group(misfit.name) for misfit in found}
    fitting = {name for name in targets if name.startswith(asked)} & tensors.keys()
    loaded = sorted(name for name in fitting if _group(name) not in spoilt)
    check_finite(path, {name: tensors[name] for name in loaded})
    for name in loaded:
        np.copyto(targets[name], tensors[name])
    reasons = {name: f"{name}: others of {_group(name)} do not fit" for name in fitting - set(loaded)}
    reasons |= {misfit.name: str(misfit) for misfit in found}
    return Fitted(arrays, tuple(loaded), tuple(found), tuple(reasons[name] for name in sorted(reasons)))


def read_saved(path: Path) -> Arrays:
    """Read the tensors of a file. Raises ConfigError if the file cannot be read or is damaged."""
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for an invalid path
        raise ConfigError(f"{path} is not a file: give a safetensors file of a member")
    try:
        tensors, metadata = unpack(path.read_bytes())
        header_from_metadata(metadata)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointBroken(f"{path} cannot be used: {error}") from error
    return tensors


def _group(name: str) -> str:
    """Return the group of tensors that are loaded together: the optimiser, or the statistics of an observation."""
    if name.startswith(OPTIMIZER):
        return f"{OPTIMIZER}*"
    if name.startswith(NORMALISERS) and name.count(".") > 1:
        return f"{NORMALISERS}*.{name.split('.', 2)[2]}"
    return name


@dataclass(frozen=True)
class Origin:
    """Source of a warm start.

    text: value of --init-from. found: description of the member. path: file of the member.
    """

    text: str
    found: str
    path: Path
    tensors: Arrays


@dataclass(frozen=True)
class WarmStart:
    """Warm start of all members. origins: assigned to members round-robin."""

    resolved: ResolvedRun
    origins: tuple[Origin, ...]
    skipped: tuple[tuple[str, ...], ...]
    """For each origin: the reasons for skipped tensors."""

    @classmethod
    def find(cls, resolved: ResolvedRun, note: Callable[[str], None]) -> WarmStart | None:
        """Read and check the sources of --init-from. None without --init-from.

        note: called with a line about each skipped checkpoint.
        Raises ConfigError if a member does not exist, or if its file is damaged or does not fit.
        """
        origins = tuple(_origin(text, note) for text in resolved.config.init_from)
        if not origins:
            return None
        names, fresh = _fresh(resolved, 0)
        return cls(resolved, origins, tuple(_checked(one, names, fresh, resolved.config) for one in origins))

    def origin(self, member: int) -> Origin:
        """Return the saved member from which a member starts."""
        return self.origins[member % len(self.origins)]

    def states(self, values: Sequence[Values], names: NetNames) -> SavedStates:
        """Return (member, None) -> function that builds the member's initial state.

        values: values of each member. names: positions of the parameters in a member's flat vector.
        """
        return {(m, None): partial(self._snapshot, m, own, names) for m, own in enumerate(values)}

    def _snapshot(self, member: int, values: Values, names: NetNames) -> MemberSnapshot:
        _, fresh = _fresh(self.resolved, member)
        origin = self.origin(member)
        fitted = fit(origin.path, origin.tensors, names, fresh, self.resolved.config.init_parts)
        # The learning rate factor in the file belongs to the schedule of the other run.
        arrays = fitted.arrays | {"lr_factor": fresh["lr_factor"]}
        header = SnapshotHeader(member, 0, values, frames=0, steps=0, updates=0, fresh_frames=0)
        return MemberSnapshot(header, arrays)

    def described(self) -> list[str]:
        """Format each origin with the first member that starts from it, and the reasons for skipped tensors."""
        lines = []
        for number, (origin, skipped) in enumerate(zip(self.origins, self.skipped, strict=True)):
            who = "all members begin" if len(self.origins) == 1 else f"member {number} begins"
            lines.append(f"{who} from {origin.found} ({self.resolved.config.init_parts})")
            lines += [f"  not loaded: {reason}" for reason in shortened(skipped)]
        return lines

    def record(self) -> dict[str, Any]:
        """Return the fields of the journal event: loaded parts, and the origin of each member in order of id."""
        members = [self.origin(member).found for member in range(self.resolved.config.members)]
        return {"parts": self.resolved.config.init_parts, "members": members}


def _origin(text: str, note: Callable[[str], None]) -> Origin:
    source = Source.of(text)
    if source is not None:
        policy = find_saved(source, note)
        checkpoint, member = policy.checkpoint, policy.member
        return Origin(text, str(policy), checkpoint.file(member), checkpoint.tensors(member)[0])
    if text.endswith(SUFFIX):
        path = path_given("--init-from", text)
        return Origin(text, text, path, read_saved(path))
    raise ConfigError(
        f"--init-from {text} cannot be used: write a member of a run as RUN[@FRAMES][:MEMBER], with its folder, "
        f"or a file of a member that ends in {SUFFIX}"
    )


def _fresh(resolved: ResolvedRun, member: int) -> tuple[NetNames, Arrays]:
    """Return the positions of the parameters in a member's flat vector, and the member's initialised arrays."""
    plan = replace(resolved.plan.packs[0], members=(member,), slots=1, device="cpu")
    values = {name: spec.default for name, spec in resolved.table.items()}
    pack = build_pack(resolved.config, resolved.spec, plan, [values], resolved.config.seed)
    return net_names(pack), {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}


def _checked(origin: Origin, names: NetNames, fresh: Arrays, config: Config) -> tuple[str, ...]:
    """Return reasons for skipped tensors. Raises ConfigError for misfits with --init-strict, or if no weight fits."""
    fitted = fit(origin.path, origin.tensors, names, fresh, config.init_parts)
    if fitted.misfits and config.init_strict:
        raise ConfigError(
            f"--init-from {origin.text} cannot be used: {misfit_text(origin.path, fitted.misfits)}\n"
            "Give the options of that run (--model..., --learner.normalize-observations, --learner.normalize-images), "
            "leave parts out (--init-parts weights), or load what fits (--init-strict no)"
        )
    # Ignore biases, because every network has a bias that fits.
    if not any(name.startswith(WEIGHTS) and origin.tensors[name].ndim > 1 for name in fitted.loaded):
        raise ConfigError(
            f"--init-from {origin.text} cannot be used: none of its weights fits this network. "
            "Give the options of that run (--model...)"
        )
    return fitted.skipped
