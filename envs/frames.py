"""Conversion of rendered frames to pictures [H, W, 3] of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .user_values import array_of, briefly

Picture = NDArray[np.uint8]
"""RGB picture, [H, W, 3]"""
CHANNELS = (1, 3, 4)


class Frames:
    """Converter of rendered frames to pictures, for one film.

    The range of floats (0 to 1, -1 to 1, or 0 to 255) is inferred from all frames so far.
    """

    def __init__(self) -> None:
        self._signed = self._bytes = False
        """_bytes: True if a frame had values above 1. _signed: True if an earlier frame had values in -1..0."""

    def picture(self, frame: Any) -> Picture:
        """Convert a frame to a picture. Raises ValueError if the frame is not a picture.

        frame: grey, RGB or RGBA array, channels first or last. Of several frames (list, dict, batch), one is converted.
        """
        array = _of_three_axes(frame)
        if array.shape[2] == 4:  # the last channel is opacity
            array = array[..., :3]
        return self._shades(np.broadcast_to(array, (*array.shape[:2], 3)))

    def _shades(self, array: NDArray[Any]) -> Picture:
        if array.dtype == np.uint8:
            return array
        if array.dtype == np.bool_:
            return array.astype(np.uint8) * 255
        if array.dtype.kind in "iu":
            if array.dtype == np.uint16 and array.max() > 255:
                array = array >> 8
            return array.clip(0, 255).astype(np.uint8)
        shades = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=255.0, neginf=0.0)
        self._bytes |= bool(shades.max() > 1.001)
        self._signed |= bool(-1.001 <= shades.min() < 0 and not self._bytes)
        if not self._bytes:
            shades = 255 * ((shades + 1) / 2 if self._signed else shades)
        return shades.clip(0, 255).round().astype(np.uint8)


def _of_three_axes(frame: Any) -> NDArray[Any]:
    """Convert a frame to [H, W, C] with 1, 3 or 4 channels. Raises ValueError if that is impossible."""
    while isinstance(frame, Mapping) and frame:  # camera -> frame
        frame = next(iter(frame.values()))
    if isinstance(frame, list | tuple) and frame and not isinstance(frame[-1], list | tuple):
        frame = frame[-1]  # the newest frame of a `rgb_array_list`
    array = array_of(frame)
    while array.ndim > 3:  # a batch of size 1, or several frames
        array = array[-1]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim == 3 and array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != 3 or array.shape[2] not in CHANNELS or not array.size or array.dtype.kind not in "biuf":
        raise ValueError(f"an array of shape {array.shape}, {array.dtype}" if array.ndim else briefly(frame))
    return array


def fitted(picture: Picture, height: int, width: int) -> Picture:
    """Resize a picture to height x width by nearest neighbours. Black borders keep the proportions of the picture."""
    tall, wide = picture.shape[:2]
    if (tall, wide) == (height, width):
        return picture
    scale = min(height / tall, width / wide)
    rows, columns = max(1, round(tall * scale)), max(1, round(wide * scale))
    small = picture[np.arange(rows) * tall // rows][:, np.arange(columns) * wide // columns]
    whole = np.zeros((height, width, 3), np.uint8)
    top, left = (height - rows) // 2, (width - columns) // 2
    whole[top : top + rows, left : left + columns] = small
    return whole
