"""Gymnasium observation spaces as arrays: converts observations, and checks what environments return.

Sentences become arrays of hashed words: a word's number depends on its letters alone, in every process and version.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .actions import action_spec, check_space
from .arrays import MOST_CHOICES, MOST_WORDS, Levels, Numbers, what_is
from .base import ACTION_MASK, ActionSpec, ArraySpec, EnvSetupError

_WORD = re.compile(r"[^\W_]+")


def hash_words(sentence: str, out: NDArray[np.int32]) -> None:
    """Write a sentence into `out` [L] int32: its first L words at the end, 0 before them.

    A word is a run of letters and digits, lower case; its number is its CRC-32 cut to 31 bits (0 becomes 1).
    """
    words = _WORD.findall(sentence.lower())[: len(out)]
    out[:] = 0
    if words:
        out[-len(words) :] = [zlib.crc32(word.encode()) & 0x7FFFFFFF or 1 for word in words]


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    path: keys (of a tuple: places, as text) that lead to it. shape: as the environment gives it.
    kind: `float` (any number, delivered float32), `bytes` (uint8, as it is), `image` (a picture, see arrays.py,
    delivered channels first), `one_hot` (integers from `start`, delivered as float32), `text` (delivered as hashed
    words, int32), `mask` (the action mask: bool or integers 0 and 1, delivered as uint8). in_info: it comes in the info
    dict instead.
    axes, levels: of an image, see `Picture`. scale: of numbers. sizes: of one_hot, of each integer.
    """

    name: str
    path: tuple[str, ...]
    kind: Literal["float", "bytes", "image", "one_hot", "text", "mask"]
    shape: tuple[int, ...]
    start: int | tuple[int, ...]
    spec: ArraySpec
    in_info: bool = False
    axes: tuple[int, ...] = ()
    levels: Levels | None = None
    scale: float = 1.0
    sizes: tuple[int, ...] = ()


NOT_FINITE = "NaN or infinity (a float32 holds up to 3.4e38)"


def obs_leaves(space: spaces.Space[Any], env_id: str) -> tuple[Leaf, ...]:
    """Arrays of an observation space; one that is no Dict and no Tuple becomes one array named "obs".

    The parts of a Tuple are named by their place: "0", or "camera.0" within a Dict. A key `action_mask` of the
    outermost Dict is the action mask: see ACTION_MASK and `with_mask`.
    Raises EnvSetupError for anything but Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dicts and Tuples of them.
    """
    leaves = _leaves(space, (), env_id)
    found = [leaf.name for leaf in leaves]
    if not found or len(set(found)) != len(found):
        raise EnvSetupError(
            f"{env_id}: the observation space's flat names {found} must be one or more, all different"
        )
    return leaves


def with_mask(
    leaves: tuple[Leaf, ...], action: ActionSpec, env_id: str, *, in_info: bool
) -> tuple[Leaf, ...]:
    """Check the action mask of an environment's arrays, if it has one, against its actions.

    in_info: the environment gives its mask as `info["action_mask"]`; it is added to the arrays.
    Of actions with discrete and continuous components it masks the discrete ones. Raises EnvSetupError for a mask given
    twice or of the wrong size, for one of continuous actions, and for an environment that gives nothing but its mask.
    """
    if in_info:
        size = sum(action.nvec)
        spec = ArraySpec((size,), "uint8")
        leaves += (Leaf(ACTION_MASK, (ACTION_MASK,), "mask", (size,), 0, spec, in_info=True),)
    masks = [leaf for leaf in leaves if leaf.kind == "mask"]
    if not masks:
        return leaves
    if len(masks) > 1:
        raise EnvSetupError(
            f"{env_id} gives its action mask twice, as an observation and in the info dict: leave out "
            'metadata["action_mask"]'
        )
    if not action.nvec:
        raise EnvSetupError(
            f"{env_id} has an action mask, but its actions are continuous: masks are for Discrete and MultiDiscrete "
            "actions; take the mask away, or rename it if it is something else"
        )
    if masks[0].shape != (sum(action.nvec),):
        raise EnvSetupError(
            f"{env_id}: its action mask has shape {masks[0].shape}: give one number for each of the "
            f"{sum(action.nvec)} choices, shape ({sum(action.nvec)},)"
        )
    if len(leaves) == 1:
        raise EnvSetupError(f"{env_id} gives nothing but an action mask: give an observation beside it")
    return leaves


def leaves_of(
    env_id: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    metadata: Mapping[str, Any],
) -> tuple[Leaf, ...]:
    """Arrays of one environment's observations, with the action mask if it gives one, there or in its info dict."""
    leaves, action = obs_leaves(observation_space, env_id), action_spec(action_space, env_id)
    return with_mask(leaves, action, env_id, in_info=bool(metadata.get(ACTION_MASK)))


def _leaves(space: spaces.Space[Any], path: tuple[str, ...], env_id: str) -> tuple[Leaf, ...]:
    name = ".".join(path) or "obs"
    check_space(space, f"observation {name!r}", env_id)
    if path == (ACTION_MASK,):
        return (_mask_leaf(space, env_id),)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = (_leaves(part, (*path, str(key)), env_id) for key, part in inner)
        return tuple(leaf for part in parts for leaf in part)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return (_array_leaf(space, name, path, env_id),)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return (_choices_leaf(space, name, path, env_id),)
    if isinstance(space, spaces.Text) or space.dtype == np.str_:
        longest = getattr(space, "max_length", 2 * MOST_WORDS)
        words = max(1, min(MOST_WORDS, (longest + 1) // 2))
        return (Leaf(name, path, "text", (), 0, ArraySpec((words,), "int32", "a text, its words hashed")),)
    remedy = "give it as a Box of a fixed shape"
    if path:
        wrapper = (
            "FilterObservation(env, KEYS) keeps the keys"
            if len(path) == 1
            else "TransformObservation(env, F, SPACE) gives the parts"
        )
        remedy = f"leave it out (gymnasium.wrappers.{wrapper} that you name), or {remedy}"
    raise EnvSetupError(
        f"{env_id}: observation {name!r} is a {type(space).__name__} space; Box, Discrete, MultiDiscrete, MultiBinary, "
        f"Text, Dict and Tuple are supported: {remedy}"
    )


def _array_leaf(
    space: spaces.Box | spaces.MultiBinary, name: str, path: tuple[str, ...], env_id: str
) -> Leaf:
    shape, what = tuple(int(size) for size in space.shape), what_is(space)
    if 0 in shape:
        raise EnvSetupError(f"{env_id}: observation {name!r} has no numbers, shape {shape}: leave it out")
    if isinstance(what, Numbers):
        given = f"divided by {1 / what.scale:g}" if what.scale != 1 else ""
        boolean = isinstance(space, spaces.MultiBinary) or space.dtype == np.bool_
        spec = ArraySpec(shape or (1,), "float32", given, boolean)
        return Leaf(name, path, "float", shape, 0, spec, scale=what.scale)
    given = f"{space.dtype} {'x'.join(map(str, shape))}"
    if what.levels is not None:
        given += f" from {_listed(what.levels[0])} to {_listed(what.levels[1])}, stretched to 0..255"
    as_it_is = space.dtype == np.uint8 and what.levels is None and what.shape == shape
    return Leaf(
        name,
        path,
        "bytes" if as_it_is else "image",
        shape,
        0,
        ArraySpec(what.shape, "uint8", "" if as_it_is else given),
        axes=what.axes,
        levels=what.levels if space.dtype == np.uint8 else what.levels or (0.0, 255.0),
    )


def _listed(level: float | NDArray[np.float64]) -> str:
    return f"{level:g}" if np.ndim(level) == 0 else f"({', '.join(f'{one:g}' for one in np.ravel(level))})"


def _choices_leaf(
    space: spaces.Discrete | spaces.MultiDiscrete, name: str, path: tuple[str, ...], env_id: str
) -> Leaf:
    alone = isinstance(space, spaces.Discrete)
    sizes = (int(space.n),) if isinstance(space, spaces.Discrete) else tuple(map(int, space.nvec.ravel()))
    if sum(sizes) > MOST_CHOICES:
        raise EnvSetupError(
            f"{env_id}: observation {name!r} has {sum(sizes):,} choices, each of which is a number for the network, "
            f"{MOST_CHOICES:,} at most: give it as a Box of numbers"
        )
    start = int(space.start) if alone else tuple(map(int, np.ravel(space.start)))
    shape = () if alone else tuple(map(int, space.shape or ()))
    return Leaf(
        name, path, "one_hot", shape, start, ArraySpec((sum(sizes),), "float32", "one-hot"), sizes=sizes
    )


def _mask_leaf(space: spaces.Space[Any], env_id: str) -> Leaf:
    integers = np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or not integers:
        raise EnvSetupError(
            f"{env_id}: its action mask is the space {space}: make it "
            "Box(0, 1, (number of choices,), np.uint8), or MultiBinary"
        )
    shape = tuple(int(size) for size in space.shape)
    return Leaf(ACTION_MASK, (ACTION_MASK,), "mask", shape, 0, ArraySpec(shape, "uint8"))


def read_leaf(leaf: Leaf, obs: Any, env_id: str) -> NDArray[Any]:
    """Return one array of an observation, converted to `leaf.spec`. Raises EnvSetupError if it does not fit."""
    return _delivered(leaf, np.asarray(_follow(leaf, obs, env_id)), (), env_id)


def read_rows(leaf: Leaf, obs: Any, rows: int, env_id: str) -> NDArray[Any]:
    """Do as `read_leaf` for the batched observation of a vector environment: [R, *leaf.spec.shape]."""
    return _delivered(leaf, np.asarray(_follow(leaf, obs, env_id)), (rows,), env_id)


def fits_as_it_is(leaf: Leaf, obs: Any) -> bool:
    """Whether an observation can be written unchanged (`check_finite` then checks its numbers).

    Most can. `read_leaf` costs several times as much as a small environment's step.
    """
    if leaf.path or leaf.in_info or type(obs) is not np.ndarray or obs.shape != leaf.shape:
        return False
    if leaf.shape != leaf.spec.shape or leaf.scale != 1:
        return False
    if leaf.kind == "float":
        return obs.dtype.kind in "fiub"
    return leaf.kind == "bytes" and obs.dtype == np.uint8


def check_finite(leaf: Leaf, rows: NDArray[Any], env_id: str) -> None:
    """Raise EnvSetupError if a float leaf of any row [R, ...] is not finite."""
    if not np.isfinite(rows).all():
        raise EnvSetupError(_breach(leaf, env_id, "finite numbers", NOT_FINITE))


def _delivered(leaf: Leaf, array: NDArray[Any], rows: tuple[int, ...], env_id: str) -> NDArray[Any]:
    shape = (*rows, *leaf.shape)
    if array.shape != shape:
        raise EnvSetupError(_breach(leaf, env_id, f"shape {shape}", f"shape {array.shape}"))
    if leaf.kind == "one_hot":
        return _one_hot(leaf, array, env_id)
    if leaf.kind == "mask":
        return _mask(leaf, array, env_id)
    if leaf.kind == "float":
        if array.dtype.kind not in "fiub":
            raise EnvSetupError(_breach(leaf, env_id, "numbers", f"dtype {array.dtype}"))
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32, copy=False)
        if not np.isfinite(numbers).all():
            raise EnvSetupError(_breach(leaf, env_id, "finite numbers", NOT_FINITE))
        if leaf.scale != 1:
            numbers = numbers * np.float32(leaf.scale)
        return numbers.reshape(*rows, *leaf.spec.shape)
    if leaf.kind == "text":
        return _words(leaf, array, env_id)
    return _picture(leaf, array, len(rows), env_id)


def _picture(leaf: Leaf, array: NDArray[Any], batch_axes: int, env_id: str) -> NDArray[np.uint8]:
    if leaf.levels is None and array.dtype != np.uint8:
        raise EnvSetupError(_breach(leaf, env_id, "dtype uint8", f"dtype {array.dtype}"))
    pixels = array if leaf.levels is None else _stretched(leaf, array, leaf.levels, env_id)
    if leaf.axes:
        places = (*range(batch_axes), *(batch_axes + axis for axis in leaf.axes))
        pixels = pixels.transpose(places)
    return pixels.reshape(*array.shape[:batch_axes], *leaf.spec.shape)


def _stretched(leaf: Leaf, array: NDArray[Any], levels: Levels, env_id: str) -> NDArray[np.uint8]:
    """Return uint8 numbers: 0 and 255 for the two levels, rounded in between; what lies outside is cut off."""
    if array.dtype.kind not in "fiub":
        raise EnvSetupError(_breach(leaf, env_id, "numbers", f"dtype {array.dtype}"))
    low, high = levels
    if array.dtype == np.uint8 and isinstance(low, float) and isinstance(high, float):
        stretched: NDArray[np.uint8] = _table((low, high))[array]
        return stretched
    if not np.isfinite(array).all():
        raise EnvSetupError(_breach(leaf, env_id, "finite numbers", NOT_FINITE))
    return _shades(array, levels)


def _shades(array: NDArray[Any], levels: Levels) -> NDArray[np.uint8]:
    low, high = levels
    shades: NDArray[np.uint8] = np.rint((array - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)
    return shades


@lru_cache(maxsize=64)
def _table(levels: tuple[float, float]) -> NDArray[np.uint8]:
    return _shades(np.arange(256), levels)


def _words(leaf: Leaf, array: NDArray[Any], env_id: str) -> NDArray[np.int32]:
    sentences = [array.item()] if array.ndim == 0 else array.tolist()
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise EnvSetupError(_breach(leaf, env_id, "a text", f"dtype {array.dtype}"))
    return np.array([_hashed(sentence, leaf.spec.shape[0]) for sentence in sentences]).reshape(
        *array.shape, *leaf.spec.shape
    )


@lru_cache(maxsize=4096)
def _hashed(sentence: str, words: int) -> NDArray[np.int32]:
    """Cached: a sentence mostly stays for an episode."""
    hashed = np.zeros(words, np.int32)
    hash_words(sentence, hashed)
    return hashed


def _follow(leaf: Leaf, obs: Any, env_id: str) -> Any:
    value = obs
    for key in leaf.path:
        if isinstance(value, tuple | list):
            if not key.isdecimal() or int(key) >= len(value):
                given = f"a {type(value).__name__} of {len(value)}"
                raise EnvSetupError(_breach(leaf, env_id, f"a place {key!r}", given))
            value = value[int(key)]
            continue
        if not isinstance(value, Mapping):
            raise EnvSetupError(_breach(leaf, env_id, f"a dict with the key {key!r}", type(value).__name__))
        named = (
            key if key in value else next((one for one in value if str(one) == key), None)
        )  # a number, perhaps
        if named is None:
            raise EnvSetupError(_breach(leaf, env_id, f"the key {key!r}", f"keys {sorted(map(str, value))}"))
        value = value[named]
    return value


def _one_hot(leaf: Leaf, array: NDArray[Any], env_id: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "iu":
        got = f"{array.flat[0]} ({array.dtype})" if array.size else f"nothing ({array.dtype})"
        raise EnvSetupError(_breach(leaf, env_id, _choices_of(leaf), got))
    sizes = leaf.sizes[0] if leaf.shape == () else np.array(leaf.sizes)
    chosen = array if leaf.shape == () else array.reshape(*array.shape[: array.ndim - len(leaf.shape)], -1)
    index = chosen.astype(np.int64) - leaf.start
    wrong = (index < 0) | (index >= sizes)
    if wrong.any():
        got = f"{chosen[wrong].flat[0]} ({array.dtype})"
        raise EnvSetupError(_breach(leaf, env_id, _choices_of(leaf), got))
    if leaf.shape == ():
        hot: NDArray[np.float32] = (np.arange(leaf.sizes[0]) == index[..., None]).astype(np.float32)
        return hot
    several = np.zeros((*chosen.shape[:-1], leaf.spec.shape[0]), np.float32)
    np.put_along_axis(several, index + (np.cumsum(sizes) - sizes), 1, -1)
    return several


def _choices_of(leaf: Leaf) -> str:
    """Describe what an integer, or each of several, may be."""
    ends = [f"{first}..{first + size - 1}" for first, size in np.broadcast(leaf.start, leaf.sizes)]
    shown = ", ".join(ends[:8]) + (", ..." if len(ends) > 8 else "")
    return f"{'an integer' if len(ends) == 1 else 'integers'} within {shown}"


def _mask(leaf: Leaf, array: NDArray[Any], env_id: str) -> NDArray[np.uint8]:
    if array.dtype.kind not in "biu":
        raise EnvSetupError(_breach(leaf, env_id, "dtype bool or uint8", f"dtype {array.dtype}"))
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        raise EnvSetupError(_breach(leaf, env_id, "0 and 1 only", str(array[wrong].flat[0])))
    return array.astype(np.uint8, copy=False)


def _breach(leaf: Leaf, env_id: str, expected: str, got: str) -> str:
    if leaf.kind == "mask":
        where = 'info["action_mask"]' if leaf.in_info else "the observation's action_mask"
        return (
            f"{env_id}: {where} is wrong: expected {expected}, got {got}. Give one number for each choice of each "
            "action component, 1 where it is allowed"
        )
    return (
        f"{env_id}: observation {leaf.name!r} breaks its observation space: expected {expected}, got {got}. "
        "Correct the environment's observation or its observation_space"
    )


def boxes(space: Any, obs: Any, path: tuple[str, ...]) -> Iterator[tuple[str, spaces.Box, NDArray[Any]]]:
    """Yield name, space and array of each Box of an observation."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        for key, part in space.spaces.items():
            if key in obs:
                yield from boxes(part, obs[key], (*path, str(key)))
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list):
        for place, (part, value) in enumerate(zip(space.spaces, obs, strict=False)):
            yield from boxes(part, value, (*path, str(place)))
    elif isinstance(space, spaces.Box):
        yield ".".join(path) or "obs", space, np.asarray(obs)


def dtype_faults(space: Any, obs: Any) -> Iterator[str]:
    """Yield the arrays of an observation that are of another dtype than their space, as sentences."""
    for name, box, array in boxes(space, obs, ()):
        if array.dtype != box.dtype and array.dtype.kind in "fiub":  # else the unit refuses it
            yield f"observation {name!r} has dtype {array.dtype}, its space has {box.dtype}: it is converted"
