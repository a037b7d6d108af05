"""Which options belong to an environment, a controller or a rule: help shows them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pbt_rl.envs.registry import SHORT_NAMES
from pbt_rl.pbt.exploit.registry import EXPLOIT_RULES
from pbt_rl.pbt.explore.registry import EXPLORE_RULES
from pbt_rl.pbt.ready.registry import READY_RULES
from pbt_rl.pbt.registry import CONTROLLERS


class _Entry(Protocol):
    @property
    def options(self) -> tuple[str, ...]: ...


REGISTRIES: dict[str, Mapping[str, _Entry]] = {
    "controller": CONTROLLERS,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
    "pbt.ready": READY_RULES,
}
"""By the option that names an entry."""
FAMILY_GROUPS = {"atari": ("atari",), "envpool": ("atari",), "dmlab": ("dmlab",)}


def related(chosen: Mapping[str, str | None]) -> frozenset[str]:
    """Dotted names of options, and names of groups of them, that belong to the chosen environment and rules."""
    env = chosen["env"] or ""
    family = SHORT_NAMES.get(env, env).partition("/")[0]
    names = set(FAMILY_GROUPS.get(family, ()))
    for option, registry in REGISTRIES.items():
        entry = registry.get(chosen[option] or "")
        names |= set(entry.options if entry else ())
    return frozenset(names)
