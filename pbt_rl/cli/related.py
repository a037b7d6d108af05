"""Which options belong to an environment, a controller or a rule: help shows them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES
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
SETTINGS = {"pbt.exploit": "pbt.exploit_option", "pbt.explore": "pbt.explore_option"}
"""Option that names a rule, of the user's own too -> option that sets fields of the rule."""
NAMING = ("env", *REGISTRIES)
"""Options whose value brings options of its own."""


ENVIRONMENT_GROUPS = frozenset(name for family in FAMILIES.values() for name in family.option_groups)
"""Groups of options that some families of environments read, and others do not."""


def read_groups(env: str, seats: int) -> frozenset[str]:
    """Return those of `ENVIRONMENT_GROUPS` that a run in this environment reads. seats: of one environment."""
    family = FAMILIES.get(_family(env))
    own = {*family.option_groups} if family is not None else set()
    return frozenset(own | {"matchup"} if seats > 1 else own - {"matchup"})


def related(chosen: Mapping[str, str | None]) -> frozenset[str]:
    """Return names of options, and of groups of them, that belong to the values of NAMING."""
    family = _family(chosen["env"] or "")
    names = set(FAMILIES[family].option_groups if family in FAMILIES else ())
    for option, registry in REGISTRIES.items():
        value = chosen[option]
        if value is not None:
            names |= {*(registry[value].options if value in registry else ()), SETTINGS.get(option, "")}
    return frozenset(names - {""})


def _family(env: str) -> str:
    return SHORT_NAMES.get(env, env).partition("/")[0]
