"""Optional declarations of an environment: reward shaping, frames per step, critic-only observations.

An example of a critic-only observation is a simulator state that a robot's sensors cannot measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from pbt_rl.errors import EnvSetupError

from .base import ACTION_MASK, EnvSpec, RewardShapingInterface, TrainingInfoInterface
from .user_values import attribute, briefly, has_methods, number_of, wrapped

LARGEST_WEIGHT = 1e30
"""Maximum absolute value of a shaping weight. It equals `LARGEST_VALUE` of the controllers."""


def flatten(nested: Mapping[str, Any]) -> dict[str, float]:
    """Convert `{"weapon": {"shotgun": 1}}` to `{"weapon.shotgun": 1.0}`.

    Raises EnvSetupError for a value that is not a number up to `LARGEST_WEIGHT`, and for a name that is not a
    string, is empty or has a dot.
    """
    flat: dict[str, float] = {}
    for name, value in nested.items():
        if not isinstance(name, str) or not name or "." in name:
            raise EnvSetupError(
                f"reward shaping has the name {name!r}. Use non-empty strings without a dot, and "
                "nested dicts for a path"
            )
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": number for inner, number in flatten(value).items()})
            continue
        try:
            flat[name] = math.nan if isinstance(value, bool | np.bool_) else number_of(value)
        except (TypeError, ValueError):
            flat[name] = math.nan
        if not abs(flat[name]) <= LARGEST_WEIGHT:
            raise EnvSetupError(
                f"reward shaping {name!r} is {briefly(value)}. Use a number of at most "
                f"{LARGEST_WEIGHT:g} (a controller multiplies it)"
            )
    return flat


def unflatten(flat: Mapping[str, float]) -> dict[str, Any]:
    """Invert `flatten`: `{"weapon.shotgun": 1.0}` to `{"weapon": {"shotgun": 1.0}}`."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return nested


SHAPING_METHODS = ("get_default_reward_shaping", "set_reward_shaping")


def find_interface(env: Any) -> RewardShapingInterface | None:
    """Return the outermost wrapper (or the environment) with the methods for reward shaping. None if there is none."""
    return next((one for one in wrapped(env) if has_methods(one, SHAPING_METHODS)), None)


def find_training_info(env: Any) -> TrainingInfoInterface | None:
    """Return the outermost wrapper (or the environment) with `set_training_info`. None if there is none."""
    return next((one for one in wrapped(env) if has_methods(one, ("set_training_info",))), None)


def default_shaping(env_id: str, env: Any) -> dict[str, float]:
    """Return the flattened default shaping of an environment, or {} if it has no shaping.

    Raises EnvSetupError if the defaults are not a dict, or contain unsuitable names or values (see `flatten`).
    """
    interface = find_interface(env)
    if interface is None:
        return {}
    defaults = interface.get_default_reward_shaping()
    if not isinstance(defaults, Mapping):
        raise EnvSetupError(
            f"{env_id}: get_default_reward_shaping() returned {type(defaults).__name__}. Return a "
            "dict of numbers"
        )
    return flatten(defaults)


def frames_per_step(env_id: str, env: Any) -> int:
    """Return the attribute `frames_per_step` of the outermost wrapper (or environment) that has it. 1 if undefined.

    The attribute `frame_skip` is ignored because it often means physics substeps, which do not count as frames.
    Raises EnvSetupError if `frames_per_step` is not a whole number of 1 or more.
    """
    for one in wrapped(env):
        frames = attribute(one, "frames_per_step")
        if frames is None:
            continue
        number = float(frames) if isinstance(frames, Real) and not isinstance(frames, bool) else 0.0
        if number.is_integer() and number >= 1:
            return int(number)
        raise EnvSetupError(f"{env_id}: its frames_per_step is {frames!r}. Use a whole number of 1 or more")
    return 1


CRITIC_ONLY = "critic_only"
"""Key in an environment's metadata: names of critic-only observations."""


def names_of(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def declared(env_id: str, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the critic-only names in an environment's metadata. Raises EnvSetupError if the names are not strings."""
    given = metadata.get(CRITIC_ONLY, ())
    if isinstance(given, str):
        return names_of(given)
    if not isinstance(given, tuple | list | set | frozenset) or not all(isinstance(x, str) for x in given):
        raise EnvSetupError(
            f'{env_id}: metadata["{CRITIC_ONLY}"] is {given!r:.100}. Use names of observations, such '
            'as ("privileged",)'
        )
    return tuple(given)


def with_critic(spec: EnvSpec, names: Iterable[str]) -> EnvSpec:
    """Return the spec with the observations `names` added to the critic-only observations.

    names: names of arrays, or of Dicts with all their parts, such as `sim` for `sim.mass` and `sim.friction`.
    Raises EnvSetupError for an unknown name, or if the policy has no observation left.
    """
    found = set(spec.critic)
    for name in names:
        meant = {one for one in spec.obs if one == name or one.startswith(f"{name}.")}
        if not meant or name == ACTION_MASK:
            there = ", ".join(one for one in spec.obs if one != ACTION_MASK)
            raise EnvSetupError(
                f"{spec.env_id}: critic-only observation {name!r} does not exist. Use some of {there}"
            )
        found |= meant
    if found and found >= spec.obs.keys() - {ACTION_MASK}:
        raise EnvSetupError(
            f"{spec.env_id}: {', '.join(sorted(found))} cannot all be critic-only. Leave at least one "
            "observation for the policy"
        )
    return replace(spec, critic=tuple(name for name in spec.obs if name in found)) if found else spec
