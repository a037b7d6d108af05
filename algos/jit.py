"""Compile kernels: numba without the interpreter lock, cached on disk where that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., None]) -> Callable[..., Any]:
    """Compile at the first call; a later process finds the result in numba's cache.

    Fused multiply-add, reciprocals and signed zeros may differ in the last bit; NaN and order may not.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "arcp", "nsz"}}
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        compiled = numba.njit(**options)(function)
    return compiled
