"""What families of resident environments share, and what plays foreign rows of tensors. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from ..base import EnvSetupError, ShapingSource, Unit
from ..family import EnvOptions

ADAPTED = ("objective",)
"""Keywords of --env-option that are for what plays a foreign interface, if the factory itself does not take them."""


def adapted_resident(env_id: str, env: object, keywords: Mapping[str, Any]) -> Any:
    """Return what a factory gave as a `ResidentEnv`, if its interface is a known one; else as it is.

    keywords: some of ADAPTED. Raises EnvSetupError for one that nothing takes.
    """
    adapted = _adapter(env)
    unknown = [name for name in keywords if adapted is None or name not in signature(adapted).parameters]
    if unknown:
        raise EnvSetupError(
            f"{env_id} has no option {unknown[0]} (--env-option): its factory does not take it, nor does "
            f"{type(env).__name__}, which it returned"
        )
    return env if adapted is None else adapted(env_id, env, **keywords)


def _adapter(env: object) -> Callable[..., Any] | None:
    """Return what makes a `ResidentEnv` of (id, object, keywords); None if it is one, or of no known interface."""
    from gymnasium.vector import VectorEnv  # noqa: PLC0415 - lists of environments do without it

    if hasattr(env, "attach"):
        return None
    if isinstance(env, VectorEnv):
        from .batched import BatchedRows  # noqa: PLC0415 - it imports torch

        return BatchedRows
    if all(hasattr(env, name) for name in ("get_observations", "num_actions", "num_envs")):
        from ..rsl.vec_env import VecEnvRows  # noqa: PLC0415 - it imports torch

        return VecEnvRows
    return None


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
