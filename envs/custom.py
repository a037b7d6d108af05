"""The user's own environments: `module:factory`, or an entry point in the group `pbt_rl.envs`.

The factory is called with the keywords of --env-option, and with further keywords that it has as parameters (see
`make`). The factory returns a Gymnasium environment (one row), a PettingZoo environment, or a Gymnasium vector
environment. A factory with the parameters `rows` and `device` returns a device simulator. An entry point `NAME` can be
used as `NAME/LEVEL`; LEVEL is then the first argument of the factory.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any, cast

import gymnasium

from pbt_rl.errors import EnvSetupError

from . import time_limits
from .agents.tables import KIND as SEVERAL_AGENTS
from .base import EnvSpec, ShapingSource, VectorEnv
from .episode_book import all_at_once, heartbeat_of
from .family import Backend, EnvOptions, Kind, keywords_backend, load_backend
from .gym import GymVectorEnv, describe, recipe
from .lookup import plugins
from .old_gym import remedy
from .time_limits import closing, making, time_limit
from .user_values import check_has
from .vectors import KIND as VECTOR

CustomEnv = gymnasium.Env[Any, Any]
"""Type of a factory's result. At run time, the result may have one of the interfaces in KINDS instead."""
KINDS = (SEVERAL_AGENTS, VECTOR)
"""Supported interfaces besides `gymnasium.Env`."""


def make(env_id: str, rows: int, keywords: Mapping[str, Any], index: int = 0) -> CustomEnv:
    """Call the user's factory once, for one environment or for a vector environment of all R rows.

    The factory's parameters `num_envs` and `env_index` get R and `index`, unless `keywords` has them.
    index: unique among the training environments of a run. An environment that is made again gets its previous index.
    Raises EnvSetupError if the keywords or the result of the factory are unsuitable, and the exceptions of the factory.
    """
    factory = find_factory(env_id)
    arguments = dict(keywords)
    if takes(factory, "num_envs"):
        arguments.setdefault("num_envs", rows)
    if takes(factory, "env_index"):
        arguments.setdefault("env_index", index)
    check_keywords(env_id, factory, arguments)
    env = factory(**arguments)
    kind = kind_of(env)
    if kind is None and not isinstance(env, gymnasium.Env):
        raise EnvSetupError(_not_usable(env_id, env))
    made: Any = env
    if kind is not None and kind.all_rows:
        check_has(env_id, made, ("num_envs",))
        if made.num_envs != rows:
            made.close()
            raise EnvSetupError(
                f"{env_id} returned a vector environment of {made.num_envs} rows, but {rows} are needed. "
                "Add the parameter num_envs to the factory, and do not set it by --env-option"
            )
    return cast("CustomEnv", made)


def probe(env_id: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Make an environment, close it and return its spec.

    Raises EnvSetupError if the environment is unsuitable or the factory hangs, and the exceptions of the factory.
    """
    with time_limit(time_limits.PROBE_SECONDS, making(env_id)):
        other = simulator_backend(env_id)
        if other is None:
            env = make(env_id, 1, keywords)
    if other is not None:
        return other.probe(env_id, EnvOptions(keywords=keywords))
    with closing(env):
        kind = kind_of(env)
        return describe(env_id, env) if kind is None else kind.describe(env_id, env)


def make_vector_env(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> VectorEnv:
    """Make a vector env of R rows. The factory's environments have one row, one row per agent, or all rows."""
    other = simulator_backend(env_id)
    if other is not None:
        return other.make_vector_env(env_id, rows, seed, EnvOptions(keywords=options.keywords), shaping)
    with all_at_once(heartbeat_of(shaping), rows):
        env = make(env_id, rows, options.keywords, options.first_row)
    return vector_env_of(env, env_id, rows, seed, shaping, options)


def simulator_backend(env_id: str) -> Backend | None:
    """Return the backend of device simulators if the factory has the parameters rows and device, else None."""
    factory = find_factory(env_id)
    return (
        load_backend(".simulators.custom_simulators")
        if takes(factory, "rows") and takes(factory, "device")
        else None
    )


def make_simulator(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make a device simulator with R rows. `simulator_backend` must have returned a backend for this id.

    device: name of a torch device.
    """
    other = simulator_backend(env_id)
    assert other is not None
    assert other.make_simulator is not None
    return other.make_simulator(env_id, rows, seed, device, options)


def vector_env_of(
    env: CustomEnv, env_id: str, rows: int, seed: int, shaping: ShapingSource, options: EnvOptions
) -> VectorEnv:
    """Make a vector env of R rows. env: the first environment. Further environments are made if needed."""
    kind = kind_of(env)
    if kind is not None:
        places = count(options.first_row + 1)
        given = chain([env], (make(env_id, 1, options.keywords, place) for place in places))
        return kind.make_vector_env(env_id, lambda: next(given), rows, seed, shaping)
    return GymVectorEnv(env_id, one_by_one(env_id, env, options), rows, seed, shaping)


def kind_of(env: object) -> Kind | None:
    """Return the entry of KINDS for an environment. None for a `gymnasium.Env` and for unknown interfaces."""
    if isinstance(env, gymnasium.Env):
        return None
    return next((kind for kind in KINDS if kind.fits(env)), None)


def one_by_one(
    env_id: str, first: gymnasium.Env[Any, Any], options: EnvOptions
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a function that returns `first` in its first call, and a new environment in each further call.

    The function raises EnvSetupError if the new environment is not a `gymnasium.Env`.
    """
    places = count(options.first_row + 1)

    def again() -> gymnasium.Env[Any, Any]:
        env = make(env_id, 1, options.keywords, next(places))
        if not isinstance(env, gymnasium.Env):
            raise EnvSetupError(f"{env_id} returned {type(env).__name__} after {type(first).__name__}")
        return env

    given = chain([first], iter(again, None))
    return lambda: next(given)


def find_factory(env_id: str) -> Callable[..., object]:
    """Import the factory of an id. For `NAME/LEVEL`, the first argument of the result is set to LEVEL.

    Raises EnvSetupError for a missing factory, and the exceptions of the imported module.
    """
    if ":" in env_id:
        module_name, _, path = env_id.partition(":")
        factory = _attribute(env_id, _import(env_id, module_name), path)
        level = ""
    else:
        name, _, level = env_id.partition("/")
        factory = plugins()[name].load()
    if not callable(factory):
        raise EnvSetupError(
            f"{env_id} is {type(factory).__name__}, not a function. Use a function or class that "
            "returns an environment"
        )
    return functools.partial(factory, level) if level else factory


def _import(env_id: str, module_name: str) -> Any:
    if module_name.endswith(".py") or "/" in module_name or module_name[:1] in ("", "."):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".") or "module"
        raise EnvSetupError(f"{env_id} cannot be found. Write module:factory, such as {dotted}:make_env")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module imports a missing module
        raise EnvSetupError(
            f"{env_id} cannot be found: module {error.name!r} is neither in the working directory "
            f"{os.getcwd()} nor installed. Change to the folder of the module, or install the module"  # noqa: PTH109
        ) from error


def _attribute(env_id: str, module: Any, path: str) -> Any:
    place = module
    for name in path.split("."):
        if not hasattr(place, name):
            close = difflib.get_close_matches(name, vars(place), 1)
            file = str(getattr(module, "__file__", None) or "of Python")
            elsewhere = "" if file.startswith(os.getcwd()) else f" ({file})"  # noqa: PTH109
            hint = f"; did you mean {close[0]}?" if close else elsewhere
            raise EnvSetupError(f"{env_id} cannot be found: {module.__name__} has no {path!r}{hint}")
        place = getattr(place, name)
    return place


def _signature(factory: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(factory)
    except ValueError:  # some C functions have no signature
        return None


def takes(factory: Callable[..., object], name: str) -> bool:
    """Check whether a factory has a parameter of this name."""
    signature = _signature(factory)
    return signature is not None and name in signature.parameters


def check_keywords(env_id: str, factory: Callable[..., object], keywords: Mapping[str, Any]) -> None:
    """Raise EnvSetupError if the factory cannot be called with these keywords."""
    signature = _signature(factory)
    if signature is None:
        return
    try:
        signature.bind(**keywords)
    except TypeError as error:
        taken = ", ".join(str(parameter) for parameter in signature.parameters.values()) or "none"
        raise EnvSetupError(
            f"{env_id} cannot be called: {error}. Its options are: {taken} (--env-option key=value)"
        ) from None


def _not_usable(env_id: str, env: object) -> str:
    if isinstance(env, type):
        return (
            f"{env_id} returned the class {env.__qualname__}, not an environment. Return {env.__qualname__}()"
        )
    given = f"{type(env).__module__}.{type(env).__qualname__}"
    if text := remedy(env):
        return f"{env_id} returned {given}, {text}"
    usable = ", or ".join(["a gymnasium.Env", *(kind.title for kind in KINDS)])
    return f"{env_id} returned {given}, not an environment. Return {usable}"


BACKEND = replace(
    keywords_backend(
        "",
        tuple,
        probe,
        lambda name, rows, seed, shaping, words: make_vector_env(
            name, rows, seed, EnvOptions(keywords=words), shaping
        ),
        lambda spec: recipe(spec) | ({"mode": "sync"} if spec.simulator else {}),
        make=lambda name, options: (
            None if simulator_backend(name) else make(name, 1, options.keywords, options.first_row)
        ),
        make_simulator=make_simulator,
    ),
    make_vector_env=make_vector_env,
)
