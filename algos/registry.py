"""Names of algorithms. Imports no torch: options are parsed and checked without it.

An algorithm is one file that defines an `Algorithm` and one line in `ALGORITHMS`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .algorithm import Algorithm

ALGORITHMS: dict[str, str] = {
    "appo": "appo:APPO",
    "a3c": "a3c:A3C",
    "unreal": "unreal:UNREAL",
    "fun": "fun:FUN",
}
"""Name -> module of this folder and the object in it."""


def names() -> tuple[str, ...]:
    """Names of the algorithms that come with the project."""
    return tuple(ALGORITHMS)


def is_known(name: str) -> bool:
    """Whether a name is registered, or has the form of a user's own, `module:OBJECT`."""
    return name in ALGORITHMS or ":" in name


def load(name: str) -> Algorithm:
    """Import an algorithm: a registered one, or `module:OBJECT` from the import path. Raises ValueError."""
    from .algorithm import Algorithm  # noqa: PLC0415 - torch comes with it

    if not is_known(name):
        raise ValueError(f"algorithm {name!r} is unknown: use one of {', '.join(names())}, or module:OBJECT")
    module, _, attribute = ALGORITHMS.get(name, name).partition(":")
    try:
        found = getattr(
            importlib.import_module(f".{module}" if name in ALGORITHMS else module, __package__), attribute
        )
    except Exception as error:  # the user's module may raise anything
        raise ValueError(
            f"algorithm {name!r} cannot be loaded: {error!r}. Write module:OBJECT, as Python imports it"
        ) from error
    if not isinstance(found, Algorithm):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            f"algorithm {name!r} is a {type(found).__name__}: give a pbt_rl.algos.algorithm.Algorithm"
        )
    return found
