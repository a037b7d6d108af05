"""Device-specific code: numba kernels for CPUs, and the order of work on GPU streams.

numba kernels run without the interpreter lock. For few rows, equivalent tensor operations take ten times as long.
numba caches kernels on disk if the cache folder is writable.

Acting and learning may have separate GPU streams (pbt_rl/learner/cuda). Work on one stream runs in order, and may run
concurrently with work on other streams. Kernel launches are asynchronous: the device may run a kernel after the
launch has returned. Therefore memory is passed to the other stream together with a mark (a position in a stream,
like a CUDA event). The other stream waits for the mark on the device; no host thread blocks.

    memory     direction             mark with the memory               mark when the memory is free again
    rollouts   acting -> learning    the last value is written          the batch was read
    weights    learning -> acting    the published copy is complete     the copy was taken
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kernel = Callable[..., Any]
STRICT = frozenset({"contract", "arcp", "nsz"})
"""Allowed fast-math: fused multiply-add, reciprocals, no signed zeros. These optimisations may change the rounding of a
result. Handling of NaN and order of operations stay exact."""


def processor_is(vendor: str) -> bool:
    """True if the processor has this vendor id in /proc/cpuinfo. False if the file cannot be read."""
    try:
        return vendor in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux, or hidden by a container
        return False


def kernel(function: Callable[..., None]) -> Kernel:
    """Return the function as a numba kernel, compiled at the first call or loaded from numba's cache."""
    return _compiled(function, set(STRICT))


def finite_kernel(function: Callable[..., None]) -> Kernel:
    """Return the function as a numba kernel for finite inputs only. Full fast-math allows wider vectorisation."""
    return _compiled(function, True)


def has_kernels(x: Tensor) -> bool:
    """True if numba kernels support this tensor: float32 on a CPU."""
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
    """Position in a stream, like a CUDA event."""

    def query(self) -> bool:
        """True if the device has reached this mark."""


LOCKED: dict[str, Callable[[Tensor], Tensor]] = {"cuda": Tensor.pin_memory}
"""Device type -> function that copies a host tensor to page-locked memory."""


def for_upload(host: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a host tensor for a non-blocking upload, or the tensor itself if uploads block.

    The caller may free or change `host` as soon as the upload call has returned. torch keeps page-locked memory until
    the device has read it.
    """
    lock = LOCKED.get(device.type)
    return host if lock is None else lock(host)


def uploaded(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a host array to a device without waiting. On a CPU, the result may share memory with the array."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    return for_upload(host, device).to(device, non_blocking=True)
