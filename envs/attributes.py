"""Reads attributes of environments that others wrote: they may be missing, None, cyclic, a proxy, or raise."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

MOST_WRAPPERS = 64
"""A chain of wrappers that is longer has no end."""
_NO_NAME = "no_environment_has_an_attribute_of_this_name"


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute; None if there is none, if reading it raises, and if it is made up by a proxy."""
    if _answers_anything(thing) and inspect.getattr_static(thing, name, None) is None:
        return None
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of theirs
        return None


def wrapped(env: Any) -> Iterator[Any]:
    """Yield an environment and all that it wraps (`env.env`), the outermost first, each once."""
    seen = set[int]()
    while env is not None and id(env) not in seen and len(seen) < MOST_WRAPPERS:
        seen.add(id(env))
        yield env
        env = attribute(env, "env")


def metadata_of(env: Any) -> Mapping[str, Any]:
    """Return `env.metadata`; empty if it is no mapping."""
    found = attribute(env, "metadata")
    return found if isinstance(found, Mapping) else {}


def has_methods(thing: Any, names: tuple[str, ...]) -> bool:
    """Whether it has all of these methods."""
    return all(callable(attribute(thing, name)) for name in names)


def _answers_anything(thing: Any) -> bool:
    try:
        return hasattr(thing, _NO_NAME)
    except Exception:  # noqa: BLE001 - `__getattr__` of theirs
        return True
