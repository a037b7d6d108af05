"""GPU of a learner: selection, test, error messages, timing."""

from __future__ import annotations

import contextlib
import os
import warnings

import torch

from pbt_rl.errors import ConfigError

GIB = 1 << 30


def prepare(device: torch.device, *, reproducible: bool) -> None:
    """Select and test a GPU. Does nothing on a CPU. Raises ConfigError if the GPU cannot be used.

    The GPU is selected, because learners of other GPUs would otherwise open a context on the first GPU, too. A context
    takes 0.3 to 0.5 GiB.

    reproducible: select deterministic kernels, which are slower. torch warns about operations without such a kernel.
    """
    if device.type != "cuda":
        return
    with warnings.catch_warnings():  # newer versions of torch deprecate this option's name
        warnings.simplefilter("ignore")
        # No TF32. By default, torch uses TF32 for convolutions, but not for matrix products. Some packings compute
        # convolutions as matrix products, and packings must not differ in precision.
        torch.backends.cudnn.allow_tf32 = False
    if reproducible:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS at its start
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
            f"{device} cannot be used: {str(error).splitlines()[0]}. Choose another device with --devices (such as "
            f"`--devices cpu`), or install a driver and a torch that fit this GPU (CUDA version of torch "
            f"{torch.__version__}: {torch.version.cuda or 'none'})"
        ) from error


def ran_out(error: BaseException) -> bool:
    """True if an error means that a GPU is out of memory.

    torch.OutOfMemoryError comes from torch's allocator only. Errors of CUDA contexts, libraries and graphs are
    recognised by their text.
    """
    said = str(error) if isinstance(error, RuntimeError) else ""
    return "out of memory" in said or "ALLOC_FAILED" in said or isinstance(error, torch.OutOfMemoryError)


def out_of_memory(device: torch.device, error: BaseException) -> str:
    """Return an error message with free memory (if known) and remedies."""
    there = ""
    with contextlib.suppress(RuntimeError, AssertionError):  # there may be too little memory for a context
        free, total = torch.cuda.mem_get_info(device)
        there = f" ({free / GIB:.1f} of {total / GIB:.1f} GiB are free now)"
    return (
        f"{device} has too little memory for this run{there}. Use fewer --slots, a smaller "
        f"--learner.batch, more --learner.minibatches, fewer --actors or --envs-per-vector-env, or end other programs "
        f"on the GPU. {str(error).splitlines()[0]}"
    )


class Stopwatch:
    """Timer of the work that is queued on the current GPU stream between `start` and `end`. Does nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._ended = None
        if device.type == "cuda":
            self._began, self._ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))

    def start(self) -> None:
        """Mark the start of the measured work, without waiting for the device."""
        if self._began is not None:
            self._began.record()

    def end(self) -> None:
        """Mark the end of the measured work, without waiting for the device."""
        if self._ended is not None:
            self._ended.record()

    def seconds(self) -> float | None:
        """Return the seconds between the marks, or None on a CPU. Blocks until the device has reached the end mark."""
        if self._began is None or self._ended is None:
            return None
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1000
