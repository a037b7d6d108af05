"""Lookup of algorithms by name.

This module does not import torch, because options are parsed and checked without torch. A built-in algorithm is an
`Algorithm` in a module and an `AlgorithmEntry` in the table of pbt_rl/registry.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl import registry
from pbt_rl.registry import load_object

from .hypers import AlgorithmEntry

if TYPE_CHECKING:
    from .algorithm import Algorithm

ALGORITHMS: registry.Registry[AlgorithmEntry] = registry.ALGORITHMS
__all__ = ["ALGORITHMS", "is_known", "load", "names", "texts"]


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, including algorithms of other packages."""
    return tuple(ALGORITHMS)


def texts() -> dict[str, str]:
    """Return the help text of each algorithm by name, without faulty entry points."""
    return {name: entry.help for name, entry in ALGORITHMS.items()}


def is_known(name: str) -> bool:
    """True if a name is registered or has the form `module:OBJECT`."""
    return name in ALGORITHMS or ":" in name


def load(name: str) -> Algorithm:
    """Import an algorithm by registered name or `module:OBJECT`. Raises ValueError if this fails."""
    from .algorithm import Algorithm  # noqa: PLC0415 - it imports torch

    if not is_known(name):
        raise ValueError(f"algorithm {name!r} is unknown: use one of {', '.join(names())}, or module:OBJECT")
    try:
        found = load_object(ALGORITHMS[name].module if name in ALGORITHMS else name, "OBJECT")
    except ValueError as error:
        raise ValueError(f"algorithm {name!r} {error}") from error
    if not isinstance(found, Algorithm):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            f"algorithm {name!r} has type {type(found).__name__}: it must be a pbt_rl.algos.algorithm.Algorithm"
        )
    try:
        found.check()
    except ValueError as error:
        raise ValueError(f"algorithm {name!r}: {error}") from error
    return found
