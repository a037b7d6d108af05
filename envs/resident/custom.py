"""The user's own simulators: `module:factory` with the parameters `rows` and `device`, optionally `seed`.

It also selects adapters for foreign rows of tensors, and has the helpers that families of resident environments
share. torch is imported when an environment is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from pbt_rl.errors import EnvSetupError

from .. import time_limits
from ..base import EnvSpec, ShapingSource, VectorEnv
from ..custom import check_keywords, find_factory, takes
from ..family import Backend, EnvOptions
from ..time_limits import making, time_limit

ADAPTED = ("objective",)
"""Keywords of --env-option for the adapter of a foreign interface, unless the factory itself has them."""


def adapted_resident(env_id: str, env: object, keywords: Mapping[str, Any]) -> Any:
    """Wrap an environment as a `ResidentEnv` if its interface is a known one; else return it unchanged.

    keywords: some of ADAPTED. Raises EnvSetupError for an unsupported one.
    """
    adapted = _adapter(env)
    unknown = [name for name in keywords if adapted is None or name not in signature(adapted).parameters]
    if unknown:
        raise EnvSetupError(
            f"{env_id} has no option {unknown[0]} (--env-option): neither its factory nor the "
            f"returned {type(env).__name__} supports it"
        )
    return env if adapted is None else adapted(env_id, env, **keywords)


def _adapter(env: object) -> Callable[..., Any] | None:
    """Return the adapter (id, object, keywords) -> `ResidentEnv`; None if not needed or of no known interface."""
    from gymnasium import vector  # noqa: PLC0415 - lists of environments do without it

    if hasattr(env, "attach"):
        return None
    if isinstance(env, vector.VectorEnv):
        from .batched import BatchedRows  # noqa: PLC0415 - it imports torch

        return BatchedRows
    if all(hasattr(env, name) for name in ("get_observations", "num_actions", "num_envs")):
        from .rsl_rows import VecEnvRows  # noqa: PLC0415 - it imports torch

        return VecEnvRows
    return None


def vector_envs_of(
    make: Callable[[str, int, int, str, EnvOptions], Any],
) -> Callable[[str, int, int, EnvOptions, ShapingSource], VectorEnv]:
    """Return the `make_vector_env` of a family of resident environments: rows on the CPU as a vector env, for
    evaluations.
    """

    def make_vector_env(
        name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
    ) -> VectorEnv:
        from .rows import ResidentVectorEnv  # noqa: PLC0415 - it imports torch

        return ResidentVectorEnv(make(name, rows, seed, "cpu", options), shaping)

    return make_vector_env


def filmed(env: Any, shaping: ShapingSource) -> tuple[VectorEnv, Any] | None:
    """Return rows on the CPU as a vector env, and the object whose `render()` shows row 0; None without `render`."""
    from .rows import ResidentVectorEnv  # noqa: PLC0415 - it imports torch

    if not hasattr(env, "render"):
        env.close()
        return None
    return ResidentVectorEnv(env, shaping), env


def probe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Make one row on the CPU, describe it and close it."""
    return described(env_id, lambda: make_resident(env_id, 1, 0, "cpu", options))


def described(env_id: str, make: Callable[[], Any]) -> EnvSpec:
    """Make a simulator, which may take minutes, close it and return its spec."""
    for tell in time_limits.told_of_long:
        tell()
    with time_limit(time_limits.LONG_SECONDS, making(env_id, long=True)):
        simulator = make()
        simulator.close()
    spec: EnvSpec = simulator.spec
    return spec


def make_resident(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Call the factory of a `ResidentEnv`."""
    from .rows import check_made  # noqa: PLC0415 - it imports torch

    factory = find_factory(env_id)
    given: Mapping[str, Any] = {**options.keywords, "rows": rows, "device": device}
    if takes(factory, "seed"):
        given = {"seed": seed, **given}
    later = {name: value for name, value in given.items() if name in ADAPTED and not takes(factory, name)}
    arguments = {name: value for name, value in given.items() if name not in later}
    check_keywords(env_id, factory, arguments)
    env: Any = adapted_resident(env_id, factory(**arguments), later)
    check_made(env, env_id, rows)
    env.spec = replace(env.spec, env_id=env_id, resident=True)
    return env


def _film(
    name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[VectorEnv, Any] | None:
    """Make rows for filming; the factory gets `render_mode` if it has that parameter."""
    drawing = {"render_mode": "rgb_array"} if takes(find_factory(name), "render_mode") else {}
    keywords = {**drawing, **options.keywords}
    return filmed(make_resident(name, rows, seed, "cpu", replace(options, keywords=keywords)), shaping)


BACKEND = Backend(
    names=tuple,
    probe=probe,
    make_vector_env=vector_envs_of(make_resident),
    film=_film,
    make_resident=make_resident,
)
