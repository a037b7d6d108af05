"""What depends on the device: kernels for a CPU, and order on a GPU.

Kernels are compiled by numba without the interpreter lock, and cached on disk if that can be written.

A GPU works through streams: what one stream was given runs in order, and beside what other streams were given. So a
call that returned has been asked for, not done. Whoever hands memory from one stream to another hands a mark along:
the other stream goes on after it. Marks are waited for on the device; no thread stops. Acting and learning may have a
stream each (pbt_rl/learner/cuda).

    rollouts   acting -> learning    the mark that the last value is written; back, that the batch was read
    weights    learning -> acting    the mark that the published copy is whole; back, that it was taken
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
"""Fused multiply-add, reciprocals and signed zeros may differ in the last bit; NaN and order may not."""


def processor_is(vendor: str) -> bool:
    """Whether the processor has this vendor, by Linux' name for it. False where the name cannot be read."""
    try:
        return vendor in Path("/proc/cpuinfo").read_text()
    except OSError:  # another system, or a container that hides it
        return False


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


class Mark(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has come to it."""


LOCKED: dict[str, Callable[[Tensor], Tensor]] = {"cuda": Tensor.pin_memory}
"""Type of a device -> what copies a tensor of the host to memory that the device may read at any time."""


def for_upload(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host that may be let go or changed before a device has read it.

    A copy that nobody waits for is read later. torch keeps page-locked memory until then, but no other.
    """
    lock = LOCKED.get(device.type)
    return host if lock is None else lock(host)
