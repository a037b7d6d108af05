"""What families of resident environments share, and what plays foreign rows of tensors. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...extras import offered
from ..base import ShapingSource, Unit
from ..family import EnvOptions


def adapted_resident(env_id: str, env: object) -> Any:
    """Return what a factory gave as a `ResidentEnv`, if an extra knows its interface; else as it is.

    Its `RESIDENT_KINDS`: module -> whether an object is one of those that its `adapted(env_id, object)` is for.
    """
    if hasattr(env, "attach"):
        return env
    kinds = (kind for declared in offered("pbt_rl.envs", "RESIDENT_KINDS") for kind in declared.items())
    module = next((module for module, fits in kinds if fits(env)), None)
    return env if module is None else import_module(module).adapted(env_id, env)


RESIDENT_RECIPE: dict[str, object] = {"mode": "sync"}
"""Defaults of every run on an environment that is resident: it is stepped by the thread that learns."""


def unit_of_resident(
    name: str,
    rows: int,
    seed: int,
    shaping: ShapingSource,
    options: EnvOptions,
    make: Callable[[str, int, int, str, EnvOptions], Any],
) -> Unit:
    """Make rows of a resident environment on the CPU as a unit, for evaluations."""
    from .rows import ResidentUnit  # noqa: PLC0415 - it imports torch

    return ResidentUnit(make(name, rows, seed, "cpu", options), shaping)
