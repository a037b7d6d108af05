"""What a learner does once for its GPU: choose and try it, lock memory for its copies, say what is wrong with it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import warnings
from collections.abc import Iterable

import torch

from pbt_rl.errors import ConfigError

GIB = 1 << 30


def prepare(device: torch.device, *, reproducible: bool) -> None:
    """Make a GPU the process's own, and try it; nothing on a CPU. Raises ConfigError if it cannot be used.

    Whatever names no GPU would otherwise open a context on the first one: 0.3 to 0.5 GiB there for every learner.
    reproducible: the same input gives the same bits, at the price of speed.
    """
    if device.type != "cuda":
        return
    with warnings.catch_warnings():  # newer versions of torch would rather be told by another name
        warnings.simplefilter("ignore")
        # float32 is float32: else convolutions are computed in TF32 and matrix products are not, and packings that
        # use the one or the other are compared by speed alone.
        torch.backends.cudnn.allow_tf32 = False
    if reproducible:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        torch.cuda.set_device(device)
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        if ran_out(error):
            raise ConfigError(out_of_memory(device, error)) from error
        raise ConfigError(
            f"{device} cannot be used: {str(error).splitlines()[0]}: choose another with --devices (`--devices cpu` "
            f"for none), or install a driver and a torch that fit this GPU (torch {torch.__version__} is built for "
            f"CUDA {torch.version.cuda or 'of no version'})"
        ) from error


def ran_out(error: BaseException) -> bool:
    """Whether an error says that a GPU has too little memory.

    torch's own error comes from its allocator alone; a context, a library or a graph that finds none says so in words.
    """
    said = str(error) if isinstance(error, RuntimeError) else ""
    return "out of memory" in said or "ALLOC_FAILED" in said or isinstance(error, torch.OutOfMemoryError)


def out_of_memory(device: torch.device, error: BaseException) -> str:
    """Say how much there was, and what needs less."""
    there = ""
    with contextlib.suppress(RuntimeError, AssertionError):  # not even a context may have found its place
        free, total = torch.cuda.mem_get_info(device)
        there = f" ({free / GIB:.1f} of {total / GIB:.1f} GiB are free now)"
    return (
        f"{device} has too little memory for this run{there}: use fewer --slots at the same time, a smaller "
        f"--learner.batch, more --learner.minibatches, fewer --actors or --envs-per-unit, or end what else uses the "
        f"GPU. {str(error).splitlines()[0]}"
    )


def free_unused(device: torch.device) -> None:
    """Give memory back that the allocator keeps for calls like those before; nothing on a CPU.

    After everything is recorded: calls one by one need memory that recordings, which have their own, cannot use.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Stopwatch:
    """Seconds that pass on a GPU between two points of the present stream. On a CPU it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._ended = None
        if device.type == "cuda":
            self._began, self._ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))

    def begin(self) -> None:
        """Note the first point."""
        if self._began is not None:
            self._began.record()

    def end(self) -> None:
        """Note the second point."""
        if self._ended is not None:
            self._ended.record()

    def seconds(self) -> float | None:
        """Return the time between; None on a CPU. Sleeps until the device has come to the second point."""
        if self._began is None or self._ended is None:
            return None
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1000


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
