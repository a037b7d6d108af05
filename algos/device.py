"""Device-specific parts: numba kernels for CPUs, and stream order on GPUs.

numba compiles kernels without the interpreter lock and caches them on disk if the cache folder is writable.

Work on one GPU stream runs in order, and concurrently with work on other streams. Kernel launches are asynchronous: a
call that has returned may not have run yet. Code that passes memory to another stream passes a mark with it, and the
other stream waits for that mark on the device; no host thread blocks. Acting and learning may each have a stream
(pbt_rl/learner/cuda).

    rollouts   acting -> learning    mark: the last value is written; back: the batch was read
    weights    learning -> acting    mark: the published copy is complete; back: it was taken
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numba
import torch
from torch import Tensor

Kernel = Callable[..., Any]
STRICT = frozenset({"contract", "arcp", "nsz"})
"""Fused multiply-add, reciprocals and signed zeros may change the last bit. NaN and operation order stay exact."""


def processor_is(vendor: str) -> bool:
    """Check the vendor of the processor, by Linux' name for it. False if the name cannot be read."""
    try:
        return vendor in Path("/proc/cpuinfo").read_text()
    except OSError:  # another system, or a container that hides it
        return False


def kernel(function: Callable[..., None]) -> Kernel:
    """Compile a function at its first call, or load it from numba's cache."""
    return _compiled(function, set(STRICT))


def finite_kernel(function: Callable[..., None]) -> Kernel:
    """Compile a kernel whose inputs are always finite; full fast-math allows wider vectorisation."""
    return _compiled(function, True)


def has_kernels(x: Tensor) -> bool:
    """True if kernels apply: float32 on a CPU. For few rows a dozen tensor operations take ten times as long."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def _compiled(function: Callable[..., None], fastmath: set[str] | bool) -> Kernel:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    compiled: Kernel
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package folder nor the user's cache folder is writable
        compiled = numba.njit(**options)(function)
    return compiled


class Mark(Protocol):
    """Marker of a position in a stream, like a CUDA event."""

    def query(self) -> bool:
        """True if the device has reached this mark."""


LOCKED: dict[str, Callable[[Tensor], Tensor]] = {"cuda": Tensor.pin_memory}
"""Device type -> function that copies a host tensor to page-locked memory, which the device may read at any time."""


def for_upload(host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor that is safe to free after the call.

    It may also be changed before the device has read it. A non-blocking copy reads its source later. torch keeps
    page-locked memory alive until then, but not other memory.
    """
    lock = LOCKED.get(device.type)
    return host if lock is None else lock(host)
