"""Declares what plays a Gymnasium vector environment that a user's factory returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base import EnvSpec, ShapingSource, Unit
from ..family import Kind


def _fits(env: object) -> bool:
    from gymnasium.vector import VectorEnv  # noqa: PLC0415 - lists of environments do without it

    return isinstance(env, VectorEnv)


def _describe(env_id: str, env: Any) -> EnvSpec:
    from .unit import describe_vector  # noqa: PLC0415 - an extra is imported when it is used

    return describe_vector(env_id, env)


def _make_unit(env_id: str, make: Callable[[], Any], _rows: int, seed: int, shaping: ShapingSource) -> Unit:
    from .unit import VectorUnit  # noqa: PLC0415 - as above

    return VectorUnit(env_id, make(), seed, shaping)


FAMILIES = ()
KINDS = (Kind("a gymnasium.vector.VectorEnv", _fits, _describe, _make_unit, all_rows=True),)
ASKED = ()
"""Command lines that ask for it: none without a factory of a user's."""
