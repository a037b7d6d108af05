"""Anonymous shared memory, passed by descriptor and poisoned when fresh."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

POISON_BYTE = 0xA5
"""Fresh integer and boolean memory; fresh floats are NaN."""


def anonymous_memory(size: int, name: str) -> int:
    """Return the descriptor of `size` bytes of zeroed anonymous shared memory."""
    fd = os.memfd_create(f"pbt_rl-{name}", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def poison(array: NDArray[Any]) -> None:
    """Fill with values that show if they are read before they are written."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(POISON_BYTE)
