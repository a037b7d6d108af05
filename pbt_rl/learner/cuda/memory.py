"""Memory of the host that a GPU copies from and to without staging."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable

import torch


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make memory of the host for copies from and to a device, page-locked if that can be done."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return torch.zeros(shape, dtype=dtype)


class PageLocks:
    """Shared memory that is registered with CUDA, so that copies from it need no staging; nothing on a CPU.

    Where it cannot be registered (a sandbox, WSL, a limit of the driver) copies are staged, as from any memory.
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
        """Undo it, before the memory is unmapped: CUDA would take what lies at its address later for the same."""
        if self._locked:
            with contextlib.suppress(RuntimeError):  # a GPU that has failed copies nothing, either
                torch.cuda.synchronize()  # nothing is copied from it any more
        while self._locked:
            torch.cuda.cudart().cudaHostUnregister(_address(self._locked.pop()))


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _lock(memory: mmap.mmap) -> bool:
    if int(torch.cuda.cudart().cudaHostRegister(_address(memory), len(memory), 0)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)  # CUDA keeps the error for the next launch to raise: this one
    return False
