"""Declares environments of several agents: their families, and those that a user's factory may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base import EnvSpec, ShapingSource, Unit
from ..family import Family, Kind
from ..values import attribute


def _fits(env: object) -> bool:
    return all(attribute(env, name) is not None for name in ("possible_agents", "step", "observation_space"))


def _describe(env_id: str, env: Any) -> EnvSpec:
    from .tables import table_of  # noqa: PLC0415 - an extra is imported when it is used

    return table_of(env_id, env).describe()


def _make_unit(env_id: str, make: Callable[[], Any], rows: int, seed: int, shaping: ShapingSource) -> Unit:
    from .multi_agent import MultiAgentUnit  # noqa: PLC0415 - as above
    from .tables import table_of  # noqa: PLC0415 - as above

    return MultiAgentUnit(lambda: table_of(env_id, make()), rows, seed, shaping)


FAMILIES = (
    Family(
        "dmlab2d",
        "DeepMind Lab2D levels",
        "dmlab2d/commons_harvest",
        ("dmlab2d",),
        "pip install 'pbt-rl[dmlab2d]'",
        ".agents.lab2d",
        takes_keywords=True,
        several_agents=True,
    ),
    Family(
        "pettingzoo",
        "PettingZoo: environments of several agents",
        "pettingzoo/classic/connect_four_v3",
        ("pettingzoo",),
        "pip install 'pbt-rl[pettingzoo]'",
        ".agents.pettingzoo",
        takes_keywords=True,
        several_agents=True,
    ),
)
KINDS = (Kind("a PettingZoo ParallelEnv or AECEnv (possible_agents)", _fits, _describe, _make_unit),)
ASKED = (
    "train --env pettingzoo/classic/connect_four_v3 --show",
    "train --env dmlab2d/clean_up --show",
)
"""Command lines that ask for it."""
