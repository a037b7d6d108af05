"""The user's own simulators on a device: `module:factory` with the parameters `rows`, `device` and optionally `seed`.

This module selects adapters for other interfaces of device simulators (batched.py, rsl_rows.py), and contains common
functions of the families of device simulators. The module imports torch when it makes an environment.
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
"""Keywords of --env-option that an adapter receives if they are not parameters of the factory."""


def adapted_simulator(env_id: str, env: object, keywords: Mapping[str, Any]) -> Any:
    """Wrap an environment as a `SimulatorEnv`.

    Without an adapter for its interface, return the environment unchanged.

    keywords: keywords of --env-option for the adapter. Raises EnvSetupError if the adapter does not support a keyword.
    """
    adapted = _adapter(env)
    unknown = [name for name in keywords if adapted is None or name not in signature(adapted).parameters]
    if unknown:
        raise EnvSetupError(
            f"{env_id} has no option {unknown[0]} (--env-option): neither the factory nor {type(env).__name__} "
            "supports it. Remove the option"
        )
    return env if adapted is None else adapted(env_id, env, **keywords)


def _adapter(env: object) -> Callable[..., Any] | None:
    """Return the adapter of an environment: (id, environment, keywords) -> `SimulatorEnv`.

    None if there is no adapter.
    """
    from gymnasium import vector  # noqa: PLC0415 - listing the families must not import it

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
    """Return the function `Backend.make_vector_env` of a family of device simulators, for evaluations on the CPU.

    make: `Backend.make_simulator` of the family.
    """

    def make_vector_env(
        name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
    ) -> VectorEnv:
        from .rows import SimulatorVectorEnv  # noqa: PLC0415 - it imports torch

        return SimulatorVectorEnv(make(name, rows, seed, "cpu", options), shaping)

    return make_vector_env


def filmed(env: Any, shaping: ShapingSource) -> tuple[VectorEnv, Any] | None:
    """Return (vector env, object with `render`) of a device simulator on the CPU.

    If the simulator lacks `render`, close it and return None.
    """
    from .rows import SimulatorVectorEnv  # noqa: PLC0415 - it imports torch

    if not hasattr(env, "render"):
        env.close()
        return None
    return SimulatorVectorEnv(env, shaping), env


def probe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Make one row on the CPU, close it and return its spec."""
    return described(env_id, lambda: make_simulator(env_id, 1, 0, "cpu", options))


def described(env_id: str, make: Callable[[], Any]) -> EnvSpec:
    """Make a device simulator, close it and return its spec.

    Raises EnvSetupError if this takes more than LONG_SECONDS.
    """
    for tell in time_limits.told_of_long:
        tell()
    with time_limit(time_limits.LONG_SECONDS, making(env_id, long=True)):
        simulator = make()
        simulator.close()
    spec: EnvSpec = simulator.spec
    return spec


def make_simulator(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make a device simulator (`SimulatorEnv`) of R rows by the user's factory.

    env_id: `module:factory`. device: name of a torch device, such as "cuda:0".
    Raises EnvSetupError if the factory rejects the keywords, or does not return a simulator of R rows.
    """
    from .rows import check_made  # noqa: PLC0415 - it imports torch

    factory = find_factory(env_id)
    given: Mapping[str, Any] = {**options.keywords, "rows": rows, "device": device}
    if takes(factory, "seed"):
        given = {"seed": seed, **given}
    later = {name: value for name, value in given.items() if name in ADAPTED and not takes(factory, name)}
    arguments = {name: value for name, value in given.items() if name not in later}
    check_keywords(env_id, factory, arguments)
    env: Any = adapted_simulator(env_id, factory(**arguments), later)
    check_made(env, env_id, rows)
    env.spec = replace(env.spec, env_id=env_id, simulator=True)
    return env


def _film(
    name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[VectorEnv, Any] | None:
    """Return (vector env, object with `render`). None if the simulator lacks `render`.

    The factory gets `render_mode="rgb_array"` if it has this parameter.
    """
    drawing = {"render_mode": "rgb_array"} if takes(find_factory(name), "render_mode") else {}
    keywords = {**drawing, **options.keywords}
    return filmed(make_simulator(name, rows, seed, "cpu", replace(options, keywords=keywords)), shaping)


BACKEND = Backend(
    names=tuple,
    probe=probe,
    make_vector_env=vector_envs_of(make_simulator),
    film=_film,
    make_simulator=make_simulator,
)
