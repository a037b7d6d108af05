"""Declarations of an environment beside its spaces: reward shaping as flat numbers, and frames per step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from .base import EnvSetupError, RewardShapingInterface, TrainingInfoInterface


def flatten(nested: Mapping[str, Any]) -> dict[str, float]:
    """Turn `{"weapon": {"shotgun": 1}}` into `{"weapon.shotgun": 1.0}`.

    Raises EnvSetupError for a value that is not a finite number and for a name that looks like a path.
    """
    flat: dict[str, float] = {}
    for name, value in nested.items():
        if not isinstance(name, str) or not name or "." in name:
            raise EnvSetupError(
                f"reward shaping has the name {name!r}: use non-empty strings without a dot, "
                "and nested dicts where you want a path"
            )
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": number for inner, number in flatten(value).items()})
        else:
            flat[name] = _number(name, value)
    return flat


def unflatten(flat: Mapping[str, float]) -> dict[str, Any]:
    """Undo `flatten`: `{"weapon.shotgun": 1.0}` to `{"weapon": {"shotgun": 1.0}}`."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return nested


def find_interface(env: Any) -> RewardShapingInterface | None:
    """Return the outermost wrapper (or the environment itself) that implements the interface."""
    while env is not None:
        if isinstance(env, RewardShapingInterface):
            return env
        env = getattr(env, "env", None)
    return None


def find_training_info(env: Any) -> TrainingInfoInterface | None:
    """Return the outermost wrapper (or the environment itself) that takes the progress of training."""
    while env is not None:
        if isinstance(env, TrainingInfoInterface):
            return env
        env = getattr(env, "env", None)
    return None


def default_shaping(env: Any) -> dict[str, float]:
    """Return the flat default shaping of an environment; empty if it has none. Raises as `flatten` does."""
    interface = find_interface(env)
    return {} if interface is None else flatten(interface.get_default_reward_shaping())


def frames_per_step(env_id: str, env: Any) -> int:
    """Return `frames_per_step` of an environment or of one that it wraps; 1 if none has it.

    Not `frame_skip`: environments use that name for substeps of physics, which do not count as frames.
    """
    while env is not None:
        frames = getattr(env, "frames_per_step", None)
        if frames is not None:
            if not isinstance(frames, int) or isinstance(frames, bool) or frames < 1:
                raise EnvSetupError(
                    f"{env_id}: its frames_per_step is {frames!r}: give a whole number of 1 or more"
                )
            return frames
        env = getattr(env, "env", None)
    return 1


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise EnvSetupError(
            f"reward shaping {name!r} is {value!r}: give a finite number (a controller multiplies it)"
        )
    return float(value)
