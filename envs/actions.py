"""Conversion between Gymnasium action spaces and columns of numbers.

An action has one column for each component. For a Tuple or Dict, nested or not, the columns of all discrete parts come
first, then the columns of all continuous parts. Within each kind, the columns keep the order of the space.

Axes: R rows, A columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .base import ActionSpec

LARGEST_BOUND = 1e9
"""Bounds of this absolute value or more are treated as infinite."""
MOST_CHOICES = 2**16
MOST_WHOLE = 256
"""Maximum number of values of each component in an integer Box. Integer Boxes with more values are not supported."""

_DISCRETE = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
Path = tuple[str | int, ...]
"""Keys and indices that lead to a part of a Tuple or Dict. Empty for other spaces."""
Decode = Callable[[NDArray[Any]], Any]


def action_spec(space: spaces.Space[Any], env_id: str) -> ActionSpec:
    """Convert an action space to an `ActionSpec`. Bounds of LARGEST_BOUND or more become infinite.

    Each value of an integer Box becomes a discrete choice. Supported are Discrete, MultiDiscrete, MultiBinary, Box of
    floats, Box of integers (at least one axis, at most MOST_WHOLE values per component), and Tuples and Dicts of these
    spaces. Raises EnvSetupError for other spaces, for an empty space, and for more than MOST_CHOICES choices in total.
    """
    check_space(space, "the action space", env_id)
    parts = dict(_parts(space))
    for path, part in parts.items():
        if not (isinstance(part, _DISCRETE) or _is_continuous(part)):
            where = f"its part {'.'.join(map(str, path))} of the action space" if path else "the action space"
            raise EnvSetupError(
                f"{env_id}: {where} {part} is not supported. Supported: Discrete, MultiDiscrete, MultiBinary, Box of "
                f"floats, Box of integers (at most {MOST_WHOLE} values), and Tuples and Dicts of these spaces. Wrap "
                "the environment, for example in gymnasium.wrappers.TransformAction"
            )
    if not parts:
        raise EnvSetupError(f"{env_id}: the action space {space} is empty. Add at least one part")
    boxes = [part for part in parts.values() if isinstance(part, spaces.Box)]
    bounds = [_bounds(box) for box in boxes]
    sizes = tuple(n for part in parts.values() for n in _choices(part))
    if sum(sizes) > MOST_CHOICES:
        raise EnvSetupError(
            f"{env_id}: the action space {space} has {sum(sizes):,} choices, each an output of the network. At most "
            f"{MOST_CHOICES:,} are supported. Use a MultiDiscrete of smaller parts, or a Box of floats"
        )
    return ActionSpec(
        nvec=sizes,
        low=tuple(number for low, _ in bounds for number in low.tolist()),
        high=tuple(number for _, high in bounds for number in high.tolist()),
    )


def check_space(space: object, what: str, env_id: str) -> None:
    """Raise EnvSetupError if an object is not a Gymnasium space. what: name of the object in the error message."""
    if isinstance(space, spaces.Space):
        return
    kind = "None" if space is None else f"a {type(space).__module__}.{type(space).__qualname__}"
    raise EnvSetupError(
        f"{env_id}: {what} is {kind}, not a space of Gymnasium. Use gymnasium.spaces (for an "
        "environment of the old gym see docs/reference/environment-interface.md)"
    )


def first_choices(space: spaces.Space[Any]) -> NDArray[np.int64]:
    """Return the value of choice 0 of each component, int64 in the shape of the space.

    space: any supported space other than Tuple and Dict.
    Continuous components have the value 0, because their actions are not choices.
    """
    part = _choices_of(space)
    start = part.start if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) else 0
    return np.broadcast_to(np.asarray(start, np.int64), part.shape or ())


def action_decoder(space: spaces.Space[Any]) -> Decode:
    """Return a function that converts the columns of actions to the environment's format.

    The function takes one action [A], or the actions of all rows [R, A]. In the second case the result has a leading
    axis R. For a Tuple or Dict, each part of the result has this axis.
    """
    columns = _columns(dict(_parts(space)))

    def build(space: spaces.Space[Any], path: Path) -> Decode:
        if isinstance(space, spaces.Dict):
            named = {key: build(part, (*path, key)) for key, part in space.spaces.items()}
            return lambda action: {key: decode(action) for key, decode in named.items()}
        if isinstance(space, spaces.Tuple):
            ordered = [build(part, (*path, i)) for i, part in enumerate(space.spaces)]
            return lambda action: tuple(decode(action) for decode in ordered)
        decode, mine = _decoder(space), columns[path]
        return lambda action: decode(action[..., mine])

    return build(space, ()) if isinstance(space, spaces.Dict | spaces.Tuple) else _decoder(space)


def actions_decoder(space: spaces.Space[Any]) -> Callable[[NDArray[Any]], list[Any]]:
    """Return a function that converts actions [R, A] to a list with one action per environment."""
    decode = action_decoder(space)
    if isinstance(space, spaces.Discrete):
        return lambda action_RA: list(decode(action_RA))
    return lambda action_RA: [decode(action_A) for action_A in action_RA]


def inner_spaces(space: spaces.Dict | spaces.Tuple[Any]) -> Iterable[tuple[Any, spaces.Space[Any]]]:
    """Return (key or index, part) for each part of a space."""
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def _parts(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """Yield (path, part) for each part that is neither Tuple nor Dict, in the order of the space.

    An integer Box becomes a MultiDiscrete (see `_choices_of`).
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in inner_spaces(space):
            yield from _parts(part, (*path, key))
    else:
        yield path, _choices_of(space)


def _choices_of(part: spaces.Space[Any]) -> spaces.Space[Any]:
    """Convert an integer Box of at most MOST_WHOLE values per component to a MultiDiscrete.

    All other spaces, and a Box without axes, are returned unchanged.
    """
    if not (isinstance(part, spaces.Box) and np.issubdtype(part.dtype, np.integer) and part.shape):
        return part
    low, high = part.low.astype(np.float64), part.high.astype(np.float64)
    if not math.prod(part.shape) or (high - low >= MOST_WHOLE).any():
        return part
    sizes = (high - low + 1).astype(np.int64)
    return spaces.MultiDiscrete(sizes, start=part.low.astype(np.int64))


def _is_continuous(part: spaces.Space[Any]) -> bool:
    if not isinstance(part, spaces.Box):
        return False
    return bool(np.issubdtype(part.dtype, np.floating)) and math.prod(part.shape) > 0


def _choices(part: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the number of choices in each discrete column of a part. Empty for a continuous part."""
    if isinstance(part, spaces.Discrete):
        return (int(part.n),)
    if isinstance(part, spaces.MultiBinary):
        return (2,) * math.prod(part.shape)
    return tuple(int(size) for size in part.nvec.ravel()) if isinstance(part, spaces.MultiDiscrete) else ()


def _columns(parts: Mapping[Path, spaces.Space[Any]]) -> dict[Path, slice]:
    """Return path of a part -> its columns in an action array. The columns of discrete parts come first."""
    found, start = {}, 0
    for continuous in (False, True):
        for path, part in parts.items():
            if isinstance(part, spaces.Box) == continuous:
                width = math.prod(part.shape) if isinstance(part, spaces.Box) else len(_choices(part))
                found[path] = slice(start, start + width)
                start += width
    return found


def _decoder(space: spaces.Space[Any]) -> Decode:
    """Return the decoder of a space that is neither Tuple nor Dict.

    The decoder maps actions [..., A] to elements of the space. A: number of action components of this space alone.
    """
    dtype, space = space.dtype, _choices_of(space)
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return lambda action: (action[..., 0].astype(np.int64) + first).astype(dtype)
    if isinstance(space, spaces.MultiDiscrete):
        start, shape = space.start, space.shape
        return lambda action: (action.reshape((*action.shape[:-1], *shape)) + start).astype(dtype)
    if isinstance(space, spaces.MultiBinary):
        bits = space.shape
        return lambda action: action.reshape((*action.shape[:-1], *bits)).astype(dtype)
    assert isinstance(space, spaces.Box)
    box, (low, high) = space.shape, _bounds(space)
    return lambda action: np.clip(action, low, high).reshape((*action.shape[:-1], *box)).astype(dtype)


def _bounds(space: spaces.Box) -> tuple[NDArray[Any], NDArray[Any]]:
    low = np.where(space.low > -LARGEST_BOUND, space.low, -np.inf)
    high = np.where(space.high < LARGEST_BOUND, space.high, np.inf)
    return low.ravel(), high.ravel()
