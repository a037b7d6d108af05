"""What families of resident environments share, and what plays foreign rows of tensors. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from ...extras import offered
from ..base import EnvSetupError, ShapingSource, Unit
from ..family import EnvOptions

ADAPTED = ("objective",)
"""Keywords of --env-option that are for what plays a foreign interface, if the factory itself does not take them."""


def adapted_resident(env_id: str, env: object, keywords: Mapping[str, Any]) -> Any:
    """Return what a factory gave as a `ResidentEnv`, if an extra knows its interface; else as it is.

    Its `RESIDENT_KINDS`: module -> whether an object is one of those that its `adapted(env_id, object, **keywords)` is
    for. keywords: some of ADAPTED. Raises EnvSetupError for one that nothing takes.
    """
    kinds = (kind for declared in offered("pbt_rl.envs", "RESIDENT_KINDS") for kind in declared.items())
    module = None if hasattr(env, "attach") else next((name for name, fits in kinds if fits(env)), None)
    adapted = None if module is None else import_module(module).adapted
    unknown = [name for name in keywords if adapted is None or name not in signature(adapted).parameters]
    if unknown:
        raise EnvSetupError(
            f"{env_id} has no option {unknown[0]} (--env-option): its factory does not take it, nor does "
            f"{type(env).__name__}, which it returned"
        )
    return env if adapted is None else adapted(env_id, env, **keywords)


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


def filmed(env: Any, shaping: ShapingSource) -> tuple[Unit, Any] | None:
    """Return rows on the CPU as a unit, and themselves, whose `render()` shows row 0; None if they have none."""
    from .rows import ResidentUnit  # noqa: PLC0415 - it imports torch

    if not hasattr(env, "render"):
        env.close()
        return None
    return ResidentUnit(env, shaping), env
