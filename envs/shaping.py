"""Declarations of an environment beside its spaces: reward shaping as flat numbers, and frames per step."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any, cast

import numpy as np

from .base import EnvSetupError, RewardShapingInterface, TrainingInfoInterface
from .values import attribute, has_methods, wrapped


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


SHAPING_METHODS = ("get_default_reward_shaping", "set_reward_shaping")
INFO_METHODS = ("set_training_info",)
CLOSE = 0.9
"""Likeness of a method's name (of 1) from which it is a misspelt one of ours."""
NORMALIZING = ("NormalizeReward", "VecNormalize", "ClipReward")
"""Wrappers whose rewards are in a unit of their own."""
RECORDING = ("RecordEpisodeStatistics", "Monitor")
"""Wrappers that report the return of what they wrap in `info["episode"]["r"]`."""


def find_interface(env: Any) -> RewardShapingInterface | None:
    """Return the outermost wrapper (or the environment itself) that implements the interface."""
    return next((one for one in wrapped(env) if has_methods(one, SHAPING_METHODS)), None)


def find_training_info(env: Any) -> TrainingInfoInterface | None:
    """Return the outermost wrapper (or the environment itself) that takes the progress of training."""
    return next((one for one in wrapped(env) if has_methods(one, INFO_METHODS)), None)


def default_shaping(env_id: str, env: Any) -> dict[str, float]:
    """Return the flat default shaping of an environment; empty if it has none.

    Raises EnvSetupError as `flatten` does, and for an interface of which a method is missing or misspelt.
    """
    interface = find_interface(env)
    _check_names(env_id, env, INFO_METHODS if interface else SHAPING_METHODS + INFO_METHODS)
    if interface is None:
        return {}
    defaults = interface.get_default_reward_shaping()
    if not isinstance(defaults, Mapping):
        raise EnvSetupError(
            f"{env_id}: get_default_reward_shaping() returned {type(defaults).__name__}: return a dict of numbers"
        )
    return flatten(defaults)


def _check_names(env_id: str, env: Any, names: tuple[str, ...]) -> None:
    """Raise EnvSetupError for a method that is there without its other half, or under another spelling."""
    for one in wrapped(env):
        there = [name for name in SHAPING_METHODS if has_methods(one, (name,))]
        for name in names:
            if has_methods(one, (name,)):
                continue
            meant = _misspelt(cast("Hashable", type(one)), name)
            if not meant and (not there or name not in SHAPING_METHODS):
                continue
            why = f"it has {meant}: did you mean {name}?" if meant else f"it has {there[0]}, but no {name}"
            raise EnvSetupError(
                f"{env_id}: {why} Reward shaping needs both {' and '.join(SHAPING_METHODS)}"
                if name in SHAPING_METHODS
                else f"{env_id}: {why}"
            )


@lru_cache(maxsize=256)
def _misspelt(kind: Any, name: str) -> str:
    """Return a method of a class whose name is nearly this one, if there is one."""
    ours = {*SHAPING_METHODS, *INFO_METHODS}
    others = [other for other in dir(kind) if other not in ours and callable(getattr(kind, other, None))]
    return next(iter(difflib.get_close_matches(name, others, 1, CLOSE)), "")


def shaping_notes(shaping: Mapping[str, float]) -> tuple[str, ...]:
    """Return what to know of default values."""
    zeros = [name for name, value in shaping.items() if value == 0]
    return tuple(
        f"shaping {name} begins at 0 and stays there, as PBT multiplies values: give it a range to tune it, "
        f"--pbt.tune shaping.{name}=LOW:HIGH"
        for name in zeros
    )


def reward_notes(env: Any) -> tuple[str, ...]:
    """Return a note if a wrapper normalises or clips the rewards, and nobody inside it reports the true return."""
    kinds = [{base.__name__ for base in type(one).__mro__} for one in wrapped(env)]
    changing = [place for place, bases in enumerate(kinds) if not bases.isdisjoint(NORMALIZING)]
    if not changing or any(not bases.isdisjoint(RECORDING) for bases in kinds[changing[-1] :]):
        return ()
    name = next(name for name in NORMALIZING if name in kinds[changing[-1]])
    text = (
        f"rewards are changed by {name}, and members are compared by sums of them, each row's by "
        "statistics of its own: leave it out (returns are normalised by the learner), put RecordEpisodeStatistics "
        'inside it, or give info["true_objective"]'
    )
    return (text,)


def frames_per_step(env_id: str, env: Any) -> int:
    """Return `frames_per_step` of an environment or of one that it wraps; 1 if none has it.

    Not `frame_skip`: environments use that name for substeps of physics, which do not count as frames.
    """
    for one in wrapped(env):
        frames = attribute(one, "frames_per_step")
        if frames is None:
            continue
        number = isinstance(frames, Real) and not isinstance(frames, bool | np.bool_)
        if not number or not math.isfinite(frames) or frames != int(frames) or frames < 1:
            raise EnvSetupError(
                f"{env_id}: its frames_per_step is {frames!r}: give a whole number of 1 or more"
            )
        return int(frames)
    return 1


def _number(name: str, value: Any) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not math.isfinite(value):
        raise EnvSetupError(
            f"reward shaping {name!r} is {value!r}: give a finite number (a controller multiplies it)"
        )
    return float(value)
