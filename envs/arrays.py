"""What an array of an observation is: a picture, choices, words, numbers, or refused. It is decided here alone.

It follows from the space: its kind, dtype, axes, sizes and bounds.

    picture    [.., H, W, ..], delivered uint8 [C, H, W] from 0 to 255, whatever its bounds are. All other axes
               (colours, frames) become channels, in their order. Those of uint8 with two axes or more; small ones of
               other whole numbers (grids of codes); those of any numbers with two sides of SMALL and more, if their
               bounds are finite and the same for all pixels, or of each channel.
    choices    Discrete and MultiDiscrete, delivered as a one-hot part for each.
    words      Text, delivered as hashed words.
    numbers    all else, delivered float32. Whole numbers beyond +-LARGEST_CODE are divided by their largest bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .base import ArraySpec

SMALL = 36
"""The Nature CNN needs pictures of so many pixels a side. Smaller ones (grids of codes, mostly) are read by an MLP, and
normalised by their running statistics; beside larger ones by IMPALA's network."""
SMALLEST_GRID = 3
"""Whole numbers (but uint8) in two axes, one of which is shorter, are a table of numbers."""
LARGEST_CODE = 16
"""Whole numbers up to this are codes or counts, which a network reads as they are."""
LARGEST_WHOLE = 2**16
"""Bounds of whole numbers beyond this say nothing of the numbers."""
LARGEST_LEVEL = 1e18
"""Bounds of pixels beyond this are none."""
MOST_CHOICES = 2**16
MOST_WORDS = 32


Levels = tuple[float, float] | tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Picture:
    """shape: [C, H, W] as delivered. axes: those of the array in the order C.., H, W. levels: low and high, which
    become 0 and 255; None if that is what they are. Of a picture whose channels differ, arrays to broadcast.
    """

    shape: tuple[int, int, int]
    axes: tuple[int, ...]
    levels: Levels | None


@dataclass(frozen=True)
class Numbers:
    """scale: what they are multiplied by."""

    scale: float = 1.0


def what_is(space: spaces.Box | spaces.MultiBinary) -> Picture | Numbers:
    """Decide what an array of numbers is."""
    shape, bounds = tuple(int(size) for size in space.shape), _bounds(space)
    whole = space.dtype is not None and space.dtype.kind in "biu"
    if len(shape) >= 2 and 0 not in shape:
        axes = _axes(shape)
        height, width = (shape[axis] for axis in axes[-2:])
        delivered = math.prod(shape) // (height * width), height, width
        if bounds is not None and _is_picture(space, bounds, min(height, width), len(shape)):
            return Picture(delivered, axes, None if bounds == (0, 255) else bounds)
        if bounds is None and len(shape) > 2 and min(height, width) >= SMALL:
            of_channels = _bounds_of_channels(space, axes[-2:])
            if of_channels is not None:
                return Picture(delivered, axes, of_channels)
    largest = max(map(abs, bounds)) if bounds else 0
    return Numbers(1 / largest if whole and LARGEST_CODE < largest <= LARGEST_WHOLE else 1.0)


def looks_like_a_picture(array: ArraySpec) -> bool:
    """Whether numbers that are delivered as they are have the axes of a picture: their bounds are not known, then."""
    return array.dtype == "float32" and len(array.shape) > 2 and sorted(array.shape)[-2] >= SMALL


def is_image(array: ArraySpec | NDArray[Any]) -> bool:
    """Whether an array is a picture as it is delivered, [C, H, W]."""
    return array.dtype == "uint8" and len(array.shape) == 3


def is_grid(array: ArraySpec | NDArray[Any]) -> bool:
    """Whether an array is a picture of less than SMALL pixels a side."""
    return is_image(array) and min(array.shape[1:]) < SMALL


def _is_picture(space: Any, bounds: tuple[float, float], side: int, axes: int) -> bool:
    low, high = bounds
    if space.dtype == np.uint8:
        return True
    if side >= SMALL:
        return low >= 0 or axes > 2
    return bool(space.dtype.kind in "iu" and side >= SMALLEST_GRID and low >= 0 and 1 < high <= 255)


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of an array of two and more in the order (channels.., height, width).

    The channels are the short axes: last in most environments, first after some wrappers.
    """
    if len(shape) == 3:
        return (2, 0, 1) if shape[2] < shape[0] else (0, 1, 2)
    sides = max(range(len(shape) - 1), key=lambda axis: (min(shape[axis : axis + 2]), axis))
    rest = tuple(axis for axis in range(len(shape)) if axis not in (sides, sides + 1))
    return (*rest, sides, sides + 1)


def _bounds_of_channels(
    space: Any, sides: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the bounds of each channel if they are finite and those of all its pixels; else None."""
    if isinstance(space, spaces.MultiBinary):
        return None
    low, high = (bound.max(axis=sides, keepdims=True).astype(np.float64) for bound in (space.low, space.high))
    same = (space.low == low).all() and (space.high == high).all()
    finite = (np.maximum(np.abs(low), np.abs(high)) < LARGEST_LEVEL).all()
    return (low, high) if same and finite and (low < high).all() else None


def _bounds(space: Any) -> tuple[float, float] | None:
    """Return the one finite bound of all numbers below and above; None if there is none."""
    if isinstance(space, spaces.MultiBinary):
        return 0.0, 1.0
    if space.dtype == np.uint8:
        low, high = float(space.low.min(initial=255)), float(space.high.max(initial=0))
        return (low, high) if high > low else None
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if not low.size or (low != low[0]).any() or (high != high[0]).any():
        return None
    ends = float(low[0]), float(high[0])
    finite = all(map(math.isfinite, ends)) and ends[0] < ends[1] and max(map(abs, ends)) < LARGEST_LEVEL
    return ends if finite else None
