"""Conversion of Gymnasium observations to arrays, with checks of the values that environments return.

The observation space (class, dtype, shape, bounds) determines the conversion:

    picture    Converted to uint8 [C, H, W]; the bounds are scaled to 0 and 255. All axes besides H and W (colours,
               frames) become channels, in their order. Pictures are:
               - uint8 arrays with at least two axes;
               - grids of codes: arrays of other integers whose shorter side is from SMALLEST_GRID to SMALL - 1, if all
                 integers have the same bounds, the lower bound is at least 0, and the upper bound is from 2 to 255;
               - arrays of any dtype with two sides of at least SMALL, if the bounds are at most LARGEST_LEVEL and equal
                 for all pixels, or for all pixels of each channel. With only two axes, the lower bound must be at
                 least 0, and the upper bound of floats at most 255.
    choices    Discrete and MultiDiscrete: one-hot, float32.
    words      Text: hashed words, int32.
    numbers    All other arrays: float32. Integers with the same bounds are divided by the largest absolute bound, if
               this bound is above LARGEST_CODE and at most LARGEST_LEVEL. The bounds of uint8 numbers may differ.

A word's hash depends only on its characters, so all processes and versions compute equal hashes.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .actions import MOST_CHOICES, action_spec, check_space, inner_spaces
from .base import ACTION_MASK, ActionSpec, ArraySpec
from .user_values import array_of, briefly

SMALL = 36
"""Minimum side in pixels for the Nature CNN. Smaller pictures are mostly grids of codes. If all pictures are smaller,
the default encoder is an MLP, and running statistics normalise the pictures (see `recipe` in gym.py).
"""
SMALLEST_GRID = 3
"""Minimum side of a grid of codes. Integer arrays with a shorter side are converted as numbers, except uint8."""
LARGEST_CODE = 16
"""In arrays of numbers, integers with bounds up to this value are codes or counts, and are not scaled."""
LARGEST_LEVEL = 2**16
"""For integers and pixels, bounds beyond this value are treated as unknown."""
MOST_WORDS = 32


Levels = tuple[float, float] | tuple[NDArray[np.float64], NDArray[np.float64]]


def _as_picture(space: spaces.Box | spaces.MultiBinary) -> tuple[tuple[int, ...], Levels | None] | None:
    """Return the axes of a picture in the order C.., H, W, and its levels. None if the space is not a picture.

    Levels are the two values that become 0 and 255, or two arrays to broadcast if the values differ between channels.
    Without scaling, levels are None.
    """
    shape, bounds = space.shape, _bounds(space)
    if len(shape) < 2:
        return None
    axes = _axes(shape)
    side = min(shape[axis] for axis in axes[-2:])
    if bounds is not None:
        return (axes, None if bounds == (0, 255) else bounds) if _is_picture(space, bounds, side) else None
    of_channels = _bounds(space, axes[-2:]) if len(shape) > 2 and side >= SMALL else None
    return None if of_channels is None else (axes, of_channels)


def looks_like_a_picture(array: ArraySpec) -> bool:
    """Check whether an array is float32 and has the shape of a picture.

    Such an array is possibly a picture whose space does not declare the range of its pixels.
    """
    return array.dtype == "float32" and len(array.shape) > 2 and sorted(array.shape)[-2] >= SMALL


def is_image(array: ArraySpec | NDArray[Any]) -> bool:
    """Check whether a converted array is a picture, [C, H, W]."""
    return array.dtype == "uint8" and len(array.shape) == 3


def is_grid(array: ArraySpec | NDArray[Any]) -> bool:
    """Check whether an array is a picture with a side of less than SMALL pixels."""
    return is_image(array) and min(array.shape[1:]) < SMALL


def _is_picture(space: Any, bounds: Levels, side: int) -> bool:
    low, high = bounds
    if space.dtype == np.uint8:
        return True
    if side >= SMALL:
        shades = low >= 0 and (high <= 255 or space.dtype.kind in "iu")  # else a table of numbers
        return bool(shades or len(space.shape) > 2)
    return bool(space.dtype.kind in "iu" and side >= SMALLEST_GRID and low >= 0 and 1 < high <= 255)


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of an array's axes in the order (channels.., height, width).

    The array has at least two axes. The channels are the short axes. Most environments put the channels last; some
    wrappers put the channels first.
    """
    if len(shape) == 3:
        return (2, 0, 1) if shape[2] < shape[0] else (0, 1, 2)
    sides = max(range(len(shape) - 1), key=lambda axis: (min(shape[axis : axis + 2]), axis))
    rest = tuple(axis for axis in range(len(shape)) if axis not in (sides, sides + 1))
    return (*rest, sides, sides + 1)


def _bounds(space: Any, axes: tuple[int, ...] | None = None) -> Levels | None:
    """Return the lower and the upper bound that all numbers of a space have in common.

    None: numbers have different bounds, a bound exceeds LARGEST_LEVEL, or a lower bound is not less than the upper
    bound. The bounds of uint8 numbers may differ. For uint8, the smallest and the largest bound are returned.
    axes: if given, bounds need to be equal only along these axes. The result is then two arrays to broadcast.
    """
    if isinstance(space, spaces.MultiBinary):
        return 0.0, 1.0
    if space.dtype == np.uint8:
        ends = float(space.low.min()), float(space.high.max())
        return ends if ends[0] < ends[1] else None
    low, high = (bound.max(axis=axes, keepdims=True).astype(np.float64) for bound in (space.low, space.high))
    same = (space.low == low).all() and (space.high == high).all()
    if not same or not (low < high).all() or (np.maximum(np.abs(low), np.abs(high)) > LARGEST_LEVEL).any():
        return None
    return (low.item(), high.item()) if axes is None else (low, high)


_WORD = re.compile(r"[^\W_]+")


def hash_words(sentence: str, out: NDArray[np.int32]) -> None:
    """Write the hashes of a sentence's first L words, in order, to `out` [L] int32.

    A sentence with fewer words fills the end of `out`, and the entries before are 0.

    A word is a run of letters and digits, in lower case. The hash of a word is the lower 31 bits of its CRC-32; 0
    becomes 1.
    """
    words = _WORD.findall(sentence.lower())[: len(out)]
    out[:] = 0
    if words:
        out[-len(words) :] = [zlib.crc32(word.encode()) & 0x7FFFFFFF or 1 for word in words]


@dataclass(frozen=True)
class Leaf:
    """Description of one array of an observation, and of its conversion.

    path: keys of nested dicts and tuples that lead to the array. Indices of a tuple are strings.
    shape: shape that the environment returns.
    spec: shape and dtype after the conversion.
    in_info: True if the array is in the info dict.
    axes, levels: for pictures, order of the axes, and the two values that become 0 and 255. See `_as_picture`.
    scale: for kind `float`, factor of the numbers.
    start, sizes: for kind `one_hot`, the smallest value and the number of values of each integer.

    kind       environment's values             converted to
    float      numbers                          float32
    bytes      uint8 picture, channels first    uint8, unchanged
    image      any other picture                uint8, channels first
    one_hot    integers                         float32
    text       string                           hashed words, int32
    mask       action mask of 0 and 1           uint8
    """

    name: str
    path: tuple[str, ...]
    kind: Literal["float", "bytes", "image", "one_hot", "text", "mask"]
    shape: tuple[int, ...]
    spec: ArraySpec
    start: int | tuple[int, ...] = 0
    in_info: bool = False
    axes: tuple[int, ...] = ()
    levels: Levels | None = None
    scale: float = 1.0
    sizes: tuple[int, ...] = ()


NOT_FINITE = "NaN or infinity (a float32 holds up to 3.4e38)"


def obs_leaves(space: spaces.Space[Any], env_id: str) -> tuple[Leaf, ...]:
    """Return the arrays of an observation space. A space other than Dict and Tuple is one array named "obs".

    Parts of a Tuple are named after their index: "0", or "camera.0" within a Dict. The key `action_mask` of the
    outermost Dict is the action mask, see ACTION_MASK. Raises EnvSetupError for spaces other than Box, Discrete,
    MultiDiscrete, MultiBinary, Text, Dict and Tuple, for a space without numbers, and for more than MOST_CHOICES
    choices. Also raises EnvSetupError if two arrays have one name, or if the mask is not a Box or MultiBinary.
    """
    leaves = _leaves(space, (), env_id)
    found = [leaf.name for leaf in leaves]
    if not found:
        raise EnvSetupError(f"{env_id}: the observation space {space} is empty. Add at least one part")
    if twice := {name for name in found if found.count(name) > 1}:
        raise EnvSetupError(
            f"{env_id}: two parts of its observation are both named {min(twice)!r}. Rename one part"
        )
    return leaves


def with_mask(
    leaves: tuple[Leaf, ...], action: ActionSpec, env_id: str, *, in_info: bool
) -> tuple[Leaf, ...]:
    """Check the action mask. Return the leaves, with a leaf for an action mask in the info dict.

    in_info: True if the environment returns `info["action_mask"]`.
    The mask covers only discrete components. Raises EnvSetupError for two masks, for a mask of a wrong size, if all
    actions are continuous, and if the mask is the only observation.
    """
    if in_info:
        leaves += (_mask_leaf((sum(action.nvec),), in_info=True),)
    masks = [leaf for leaf in leaves if leaf.kind == "mask"]
    if not masks:
        return leaves
    if len(masks) > 1:
        raise EnvSetupError(
            f"{env_id} returns its action mask twice, in the observation and in the info dict. Remove "
            'metadata["action_mask"]'
        )
    if not action.nvec:
        raise EnvSetupError(
            f"{env_id} has an action mask, but its actions are continuous. Masks apply to Discrete "
            "and MultiDiscrete actions. Remove the mask, or rename it if it is not a mask"
        )
    if masks[0].shape != (sum(action.nvec),):
        raise EnvSetupError(
            f"{env_id}: its action mask has shape {masks[0].shape}. Return one number for each of the "
            f"{sum(action.nvec)} choices, shape ({sum(action.nvec)},)"
        )
    if len(leaves) == 1:
        raise EnvSetupError(f"{env_id} returns an action mask and no other observation. Add an observation")
    return leaves


def leaves_of(
    env_id: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    metadata: Mapping[str, Any],
) -> tuple[Leaf, ...]:
    """Return the arrays of an environment's observations, including an action mask from its info dict.

    Raises EnvSetupError for unsupported spaces, see `obs_leaves`, `action_spec` and `with_mask`.
    """
    leaves, action = obs_leaves(observation_space, env_id), action_spec(action_space, env_id)
    return with_mask(leaves, action, env_id, in_info=bool(metadata.get(ACTION_MASK)))


def parts_of(
    space: spaces.Space[Any], obs: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, spaces.Space[Any], Any]]:
    """Yield (name, space, value) of each array in an observation. A missing value is None.

    path: prefix of the names.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield ".".join(path) or "obs", space, obs
        return
    for key, part in inner_spaces(space):
        try:
            value = obs[key]
        except (LookupError, TypeError):
            value = None
        yield from parts_of(part, value, (*path, str(key)))


def _leaves(space: spaces.Space[Any], path: tuple[str, ...], env_id: str) -> tuple[Leaf, ...]:
    name = ".".join(path) or "obs"
    check_space(space, f"observation {name!r}", env_id)
    if path == (ACTION_MASK,):
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise EnvSetupError(
                f"{env_id}: the space of its action mask is {space}. Use "
                "Box(0, 1, (number of choices,), np.uint8), or MultiBinary"
            )
        return (_mask_leaf(tuple(map(int, space.shape))),)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return tuple(
            leaf for key, part in inner_spaces(space) for leaf in _leaves(part, (*path, str(key)), env_id)
        )
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return (_array_leaf(space, name, path, env_id),)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return (_choices_leaf(space, name, path, env_id),)
    if isinstance(space, spaces.Text) or space.dtype == np.str_:
        longest = getattr(space, "max_length", 2 * MOST_WORDS)
        words = max(1, min(MOST_WORDS, (longest + 1) // 2))
        return (Leaf(name, path, "text", (), ArraySpec((words,), "int32", "a text, its words hashed")),)
    remedy = "Return a Box of a fixed shape"
    if path:
        wrapper = "FilterObservation" if len(path) == 1 else "TransformObservation"
        remedy += f", or remove the observation by gymnasium.wrappers.{wrapper}"
    raise EnvSetupError(
        f"{env_id}: observation {name!r} is a {type(space).__name__} space. Supported: Box, Discrete, MultiDiscrete, "
        f"MultiBinary, Text, Dict and Tuple. {remedy}"
    )


def _mask_leaf(shape: tuple[int, ...], *, in_info: bool = False) -> Leaf:
    return Leaf(ACTION_MASK, (ACTION_MASK,), "mask", shape, ArraySpec(shape, "uint8"), in_info=in_info)


def _array_leaf(
    space: spaces.Box | spaces.MultiBinary, name: str, path: tuple[str, ...], env_id: str
) -> Leaf:
    shape, whole = tuple(map(int, space.shape)), space.dtype is not None and space.dtype.kind in "biu"
    if 0 in shape:
        raise EnvSetupError(f"{env_id}: observation {name!r} has no numbers, shape {shape}. Remove it")
    picture = _as_picture(space)
    if picture is None:
        low, high = _bounds(space) or (0.0, 0.0)
        largest = max(abs(float(low)), abs(float(high)))
        scale = 1 / largest if whole and LARGEST_CODE < largest <= LARGEST_LEVEL else 1.0
        unscaled = isinstance(space, spaces.Box) and bool(
            max(-float(space.low.min()), float(space.high.max())) * scale > 1
        )
        boolean = isinstance(space, spaces.MultiBinary) or space.dtype == np.bool_
        given = f"divided by {1 / scale:g}" if scale != 1 else ""
        spec = ArraySpec(shape or (1,), "float32", given, boolean, unscaled)
        return Leaf(name, path, "float", shape, spec, scale=scale)
    axes, levels = picture
    height, width = (shape[axis] for axis in axes[-2:])
    delivered = (math.prod(shape) // (height * width), height, width)
    if space.dtype == np.uint8 and levels is None and delivered == shape:
        return Leaf(name, path, "bytes", shape, ArraySpec(shape, "uint8"), axes=axes)
    given = f"{space.dtype} {'x'.join(map(str, shape))}"
    if levels is not None:
        given += f" from {_listed(levels[0])} to {_listed(levels[1])}, stretched to 0..255"
    if space.dtype != np.uint8:
        levels = levels or (0.0, 255.0)
    return Leaf(name, path, "image", shape, ArraySpec(delivered, "uint8", given), axes=axes, levels=levels)


def _listed(level: float | NDArray[np.float64]) -> str:
    return f"{level:g}" if np.ndim(level) == 0 else f"({', '.join(f'{one:g}' for one in np.ravel(level))})"


def _choices_leaf(
    space: spaces.Discrete | spaces.MultiDiscrete, name: str, path: tuple[str, ...], env_id: str
) -> Leaf:
    alone = isinstance(space, spaces.Discrete)
    sizes = (int(space.n),) if isinstance(space, spaces.Discrete) else tuple(map(int, space.nvec.ravel()))
    if sum(sizes) > MOST_CHOICES:
        raise EnvSetupError(
            f"{env_id}: observation {name!r} has {sum(sizes):,} choices, each an input of the network. At most "
            f"{MOST_CHOICES:,} are supported. Return a Box of numbers"
        )
    start = int(space.start) if alone else tuple(map(int, np.ravel(space.start)))
    shape = () if alone else tuple(map(int, space.shape or ()))
    return Leaf(
        name, path, "one_hot", shape, ArraySpec((sum(sizes),), "float32", "one-hot"), start, sizes=sizes
    )


def read_leaf(leaf: Leaf, obs: Any, env_id: str) -> NDArray[Any]:
    """Convert one array of an observation to `leaf.spec`.

    obs: the whole observation. If `leaf.in_info` is True: the info dict.
    Raises EnvSetupError for a missing key, a wrong shape, an unsuitable dtype, NaN and infinity. Also raises
    EnvSetupError for an integer outside a Discrete or MultiDiscrete space, and for a mask with numbers besides 0 and 1.
    Numbers outside the bounds of a Box raise no error; pixels are clipped.
    """
    return read_rows(leaf, obs, None, env_id)


def read_rows(leaf: Leaf, obs: Any, rows: int | None, env_id: str) -> NDArray[Any]:
    """Convert one array of a batched observation to [R, *leaf.spec.shape]. See `read_leaf`.

    rows: R. None if the observation has no batch axis.
    """
    value = _follow(leaf, obs, env_id)
    try:
        array = array_of(value)
    except ValueError as error:  # ragged lists, and lists of tensors
        raise EnvSetupError(_breach(leaf, env_id, "an array", f"{briefly(value)} ({error})")) from None
    return _delivered(leaf, array, () if rows is None else (rows,), env_id)


def fits_as_it_is(leaf: Leaf, obs: Any) -> bool:
    """Check whether an observation can be written without `read_leaf`. Numbers still need `check_finite`.

    Most observations need no conversion. A call of `read_leaf` takes longer than a step of a small environment.
    """
    if leaf.path or leaf.in_info or type(obs) is not np.ndarray or obs.shape != leaf.shape:
        return False
    if leaf.shape != leaf.spec.shape or leaf.scale != 1:
        return False
    if leaf.kind == "float":
        return obs.dtype.kind in "fiub"
    return leaf.kind == "bytes" and obs.dtype == np.uint8


def check_finite(leaf: Leaf, rows: NDArray[Any], env_id: str) -> None:
    """Raise EnvSetupError if a number in the rows [R, ...] of a leaf is not finite."""
    if not np.isfinite(rows).all():
        raise EnvSetupError(_breach(leaf, env_id, "finite numbers", NOT_FINITE))


def _delivered(leaf: Leaf, array: NDArray[Any], rows: tuple[int, ...], env_id: str) -> NDArray[Any]:
    shape = (*rows, *leaf.shape)
    if leaf.kind == "one_hot" and leaf.shape == () and array.shape == (*rows, 1):
        array = array.reshape(shape)  # a number in an array of size 1
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
    pixels = pixels.transpose((*range(batch_axes), *(batch_axes + axis for axis in leaf.axes)))
    return pixels.reshape(*array.shape[:batch_axes], *leaf.spec.shape)


def _stretched(leaf: Leaf, array: NDArray[Any], levels: Levels, env_id: str) -> NDArray[np.uint8]:
    """Scale numbers to uint8. The two levels become 0 and 255; numbers outside the levels are clipped."""
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
    """Return the hashes of a sentence, [words] int32 (see `hash_words`).

    The cache helps because an instruction rarely changes within an episode.
    """
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
        # The key may be a number.
        named = key if key in value else next((one for one in value if str(one) == key), None)
        if named is None:
            raise EnvSetupError(_breach(leaf, env_id, f"the key {key!r}", f"keys {sorted(map(str, value))}"))
        value = value[named]
    return value


def _one_hot(leaf: Leaf, array: NDArray[Any], env_id: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "iub":
        raise EnvSetupError(_breach(leaf, env_id, _choices_of(leaf), f"{array.flat[0]} ({array.dtype})"))
    chosen, sizes = array.reshape(-1, len(leaf.sizes)), np.array(leaf.sizes)
    index = chosen.astype(np.int64) - leaf.start
    wrong = (index < 0) | (index >= sizes)
    if wrong.any():
        raise EnvSetupError(
            _breach(leaf, env_id, _choices_of(leaf), f"{chosen[wrong].flat[0]} ({array.dtype})")
        )
    hot = np.zeros((len(index), *leaf.spec.shape), np.float32)
    hot[np.arange(len(index))[:, None], index + (np.cumsum(sizes) - sizes)] = 1
    return hot.reshape(*array.shape[: array.ndim - len(leaf.shape)], -1)


def _choices_of(leaf: Leaf) -> str:
    """Describe the valid values of each integer in an array of choices (a `Leaf` of kind `one_hot`)."""
    ends = [f"{first}..{first + size - 1}" for first, size in np.broadcast(leaf.start, leaf.sizes)]
    shown = ", ".join(ends[:8]) + (", ..." if len(ends) > 8 else "")
    return f"{'an integer' if len(ends) == 1 else 'integers'} within {shown}"


def _mask(leaf: Leaf, array: NDArray[Any], env_id: str) -> NDArray[np.uint8]:
    if array.dtype.kind not in "biuf":
        raise EnvSetupError(_breach(leaf, env_id, "dtype bool or uint8", f"dtype {array.dtype}"))
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        raise EnvSetupError(_breach(leaf, env_id, "0 and 1 only", str(array[wrong].flat[0])))
    return array.astype(np.uint8, copy=False)


def _breach(leaf: Leaf, env_id: str, expected: str, got: str) -> str:
    if leaf.kind == "mask":
        where = 'info["action_mask"]' if leaf.in_info else "the observation's action_mask"
        return (
            f"{env_id}: {where} is wrong: expected {expected}, got {got}. Return one number for each choice of each "
            "action component: 1 if the choice is allowed, else 0"
        )
    return (
        f"{env_id}: observation {leaf.name!r} breaks its observation space: expected {expected}, got {got}. "
        "Correct the environment's observation or its observation_space"
    )
