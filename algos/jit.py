"""Compile kernels: numba without the interpreter lock, cached on disk if that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import torch
from torch import Tensor

Kernel = Callable[..., Any]
STRICT = frozenset({"contract", "arcp", "nsz"})
"""Fused multiply-add, reciprocals and signed zeros may differ in the last bit; NaN and order may not."""


def kernel(function: Callable[..., None]) -> Kernel:
    """Compile at the first call; a later process finds the result in numba's cache."""
    return _compiled(function, set(STRICT))


def finite_kernel(function: Callable[..., None]) -> Kernel:
    """Do the same for kernels that only ever see finite numbers: the compiler may then use vector units fully."""
    return _compiled(function, True)


def has_kernels(x: Tensor) -> bool:
    """Whether a kernel is worth it: with few rows on a CPU, a dozen tensor operations take ten times as long."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def _compiled(function: Callable[..., None], fastmath: set[str] | bool) -> Kernel:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    compiled: Kernel
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        compiled = numba.njit(**options)(function)
    return compiled
