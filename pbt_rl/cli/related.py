"""Which options belong to an environment, a controller or a rule: help shows them together."""

from __future__ import annotations

from collections.abc import Mapping

from pbt_rl.envs.registry import SHORT_NAMES

FAMILY_GROUPS = {"atari": ("atari",), "envpool": ("atari",), "dmlab": ("dmlab",)}


def related(chosen: Mapping[str, str | None]) -> frozenset[str]:
    """Dotted names of options, and names of groups of them, that belong to the chosen environment and rules."""
    env = chosen["env"] or ""
    family = SHORT_NAMES.get(env, env).partition("/")[0]
    return frozenset(FAMILY_GROUPS.get(family, ()))
