"""Page-locked host memory for copies to and from a GPU without staging."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable

import torch


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate host memory for device copies, page-locked if possible."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return torch.zeros(shape, dtype=dtype)


class PageLocks:
    """Registration of shared memory with CUDA, so that copies need no staging. Does nothing on a CPU.

    Registration may fail (sandbox, WSL, driver limit). Copies are then staged.
    """

    def __init__(self, memories: Iterable[mmap.mmap], device: torch.device) -> None:
        self._locked: list[mmap.mmap] = []
        if device.type != "cuda":
            return
        for memory in memories:
            if not _lock(memory):
                print("CUDA cannot lock the mailboxes' memory: copies to the GPU are staged, which is slower")
                break
            self._locked.append(memory)

    def release(self) -> None:
        """Unregister the memory. Call before unmapping, because CUDA would treat later memory there as registered."""
        if self._locked:
            with contextlib.suppress(RuntimeError):  # a failed GPU does not copy either
                torch.cuda.synchronize()  # wait for pending copies
        while self._locked:
            torch.cuda.cudart().cudaHostUnregister(_address(self._locked.pop()))


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _lock(memory: mmap.mmap) -> bool:
    if int(torch.cuda.cudart().cudaHostRegister(_address(memory), len(memory), 0)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)  # CUDA reports the error at the next launch, so trigger it here
    return False
