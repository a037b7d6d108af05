"""Readers of values and attributes of user code.

Values may be Python numbers, numpy arrays, tensors or JAX arrays. Reading an attribute may raise, and a proxy may
return a value for any name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

MOST_WRAPPERS = 64
"""Maximum length of a chain of wrappers."""
_NO_NAME = "no_environment_has_an_attribute_of_this_name"


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute of an object of user code.

    None if the attribute is missing, or if reading it raises an error. Also None if the object is a proxy that returns
    a value for any name.
    """
    if _answers_anything(thing) and inspect.getattr_static(thing, name, None) is None:
        return None
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of user code
        return None


def wrapped(env: Any) -> Iterator[Any]:
    """Yield an environment and all environments inside it (`env.env`), outermost first, each once."""
    seen = set[int]()
    while env is not None and id(env) not in seen and len(seen) < MOST_WRAPPERS:
        seen.add(id(env))
        yield env
        env = attribute(env, "env")


def metadata_of(env: Any) -> Mapping[str, Any]:
    """Return `env.metadata`. An empty mapping if `env.metadata` is not a mapping."""
    found = attribute(env, "metadata")
    return found if isinstance(found, Mapping) else {}


def has_methods(thing: Any, names: tuple[str, ...]) -> bool:
    """Check whether an object has all of these methods."""
    return all(callable(attribute(thing, name)) for name in names)


def _answers_anything(thing: Any) -> bool:
    try:
        return hasattr(thing, _NO_NAME)
    except Exception:  # noqa: BLE001 - `__getattr__` of user code
        return True


SHOWN_CHARACTERS = 100


def briefly(value: Any) -> str:
    """Describe a value in one line. Lists, tuples and arrays are described by type and size, mappings by their keys."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        keys = ", ".join(repr(key)[:SHOWN_CHARACTERS] for key in list(value)[:8])
        return f"a {type(value).__name__} with the keys {keys or 'none'}{', ...' if len(value) > 8 else ''}"
    try:
        return " ".join(repr(value).split())[:SHOWN_CHARACTERS]
    except Exception:  # noqa: BLE001 - the text is user code
        return type(value).__name__


def breach(env_id: str, rule: str, got: object) -> EnvSetupError:
    """Return the error for an environment that violates its interface."""
    return EnvSetupError(f"{env_id} breaks its contract: {rule}, got {briefly(got)}. Correct the environment")


def check_has(env_id: str, env: object, names: tuple[str, ...]) -> None:
    """Raise EnvSetupError if an environment lacks one of these attributes."""
    for name in names:
        if not hasattr(env, name):
            raise EnvSetupError(f"{env_id} has no {name}. Set self.{name} in __init__")


def check_distinct(env_id: str, envs: Sequence[object]) -> None:
    """Raise EnvSetupError if a factory returned the same environment in two calls."""
    if len({*map(id, envs)}) < len(envs):
        raise EnvSetupError(f"{env_id} returned one environment twice. Make a new one in every call")


def array_of(value: Any) -> NDArray[Any]:
    """Convert a value to a numpy array. A tensor may have a gradient, be of bfloat16, or be on a device.

    Raises ValueError for ragged lists, sparse tensors, and lists of tensors with gradients.
    """
    try:
        plain = value.detach().cpu() if callable(getattr(value, "detach", None)) else value
        if str(getattr(plain, "dtype", "")) == "torch.bfloat16":
            plain = plain.float()
        array = np.asarray(plain)
    except (TypeError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array  # a JAX array


def number_of(value: Any) -> float:
    """Convert a number, or an array or list with one number, to a float.

    Raises TypeError or ValueError for other values.
    """
    if type(value) is float:
        return value
    if isinstance(value, (str, bytes)) or (isinstance(value, np.ndarray) and value.dtype.kind in "SU"):
        raise TypeError(f"{briefly(value)} is text")
    try:
        return float(value)
    except OverflowError:  # a large Python integer
        raise ValueError(briefly(value)) from None
    except TypeError:
        return float(_only_one(value))


def flag_of(value: Any) -> bool:
    """Convert a bool, the integer 0 or 1, or an array or list with one of them, to a bool.

    Raises ValueError for other values. A float is refused, because it may be a reward in the wrong place.
    """
    if type(value) is bool or type(value) is np.bool_:
        return bool(value)
    flag = _only_one(value, "iub")
    if flag not in (0, 1):
        raise ValueError(f"{briefly(value)} is not a flag")
    return bool(flag)


def _only_one(value: Any, kinds: str = "fiub") -> Any:
    """Return the only number of an array. Raises ValueError for another size, or a dtype of another kind."""
    array = array_of(value)
    if array.size != 1 or array.dtype.kind not in kinds:
        raise ValueError(f"{briefly(value)} is not one number")
    return array.item()


def level_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of settings as strings for DeepMind's engines. Nested names are joined: `table.name`.

    prefix: text before each name.
    Raises EnvSetupError for values other than numbers, bools, strings and mappings of these values.
    """
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from level_settings(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            yield name, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise EnvSetupError(
                f"--env-option {name}={value} cannot be used. Use a number, true, false, a word, or a table of them "
                'such as {"width": 9}'
            )
