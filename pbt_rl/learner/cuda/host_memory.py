"""Page-locked host memory for fast copies to and from a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable

import torch


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeroed host memory for copies to and from a device. For a GPU, page-lock the memory if possible."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return torch.zeros(shape, dtype=dtype)


class PageLocks:
    """Page locks of shared memory. Does nothing on a CPU.

    Locking may fail (sandbox, WSL, driver limit). Copies are then slower, because CUDA uses a staging buffer.
    """

    def __init__(self, memories: Iterable[mmap.mmap], device: torch.device) -> None:
        self._locked: list[mmap.mmap] = []
        if device.type != "cuda":
            return
        for memory in memories:
            if not _lock(memory):
                print("CUDA cannot page-lock the mailboxes, so copies to the GPU are slower")
                break
            self._locked.append(memory)

    def release(self) -> None:
        """Unlock the memory. Call this before the memory is unmapped.

        Otherwise, CUDA would treat later memory at these addresses as locked.
        """
        if self._locked:
            with contextlib.suppress(RuntimeError):  # raised by a failed GPU
                torch.cuda.synchronize()  # wait for pending copies
        while self._locked:
            torch.cuda.cudart().cudaHostUnregister(_address(self._locked.pop()))


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _lock(memory: mmap.mmap) -> bool:
    if int(torch.cuda.cudart().cudaHostRegister(_address(memory), len(memory), 0)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)  # because CUDA reports the error at the next launch
    return False
