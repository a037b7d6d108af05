"""Parts of a network that a user wrote, named by `module:factory`. An extra makes them."""

from __future__ import annotations

from typing import Any

from pbt_rl.extras import load_object, offered


class NetworkError(ValueError):
    """A user's part of a network raised, or returned what cannot be used. The message names part, place and shapes."""


def own_part(part: str, path: str, *arguments: object) -> Any:
    """Return a part by a user's factory: an `Encoder`, a `Core`, or a head. part: such as "encoder".

    arguments: what the factory is made for. An extra names what does that as `OWN_PARTS` in its `extra.py`. Raises
    ValueError.
    """
    for maker in offered("pbt_rl", "OWN_PARTS"):
        return load_object(maker)(part, path, *arguments)
    raise ValueError(f"{part} {path!r} is one of your own, and the extra that takes those is not there")
