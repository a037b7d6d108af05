"""Observations that only the critic sees, such as what a simulator knows and a robot's sensors do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .base import ACTION_MASK, EnvSetupError, EnvSpec

CRITIC_ONLY = "critic_only"
"""Key of an environment's metadata: their names."""


def names_of(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def declared(env_id: str, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that an environment declares. Raises EnvSetupError if they are none."""
    given = metadata.get(CRITIC_ONLY, ())
    if isinstance(given, str):
        return names_of(given)
    if not isinstance(given, tuple | list | set | frozenset) or not all(isinstance(x, str) for x in given):
        raise EnvSetupError(
            f'{env_id}: metadata["{CRITIC_ONLY}"] is {given!r:.100}: give names of observations, such as '
            '("privileged",)'
        )
    return tuple(given)


def with_critic(spec: EnvSpec, names: Iterable[str]) -> EnvSpec:
    """Let only the critic see these observations, and those that the spec has already.

    A name is that of an array, or of a Dict whose parts they are: `sim` for `sim.mass` and `sim.friction`. Raises
    EnvSetupError for a name that there is not, and if the policy would see nothing.
    """
    found = set(spec.critic)
    for name in names:
        meant = {one for one in spec.obs if one == name or one.startswith(f"{name}.")}
        if not meant or name == ACTION_MASK:
            there = ", ".join(one for one in spec.obs if one != ACTION_MASK)
            raise EnvSetupError(
                f"{spec.env_id}: only the critic is to see {name!r}, which is none of its observations: name some of "
                f"{there}"
            )
        found |= meant
    if found and found >= spec.obs.keys() - {ACTION_MASK}:
        raise EnvSetupError(
            f"{spec.env_id}: only the critic is to see {', '.join(sorted(found))}: leave the policy an observation"
        )
    return replace(spec, critic=tuple(name for name in spec.obs if name in found)) if found else spec
