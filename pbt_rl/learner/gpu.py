"""What a learner does once for its GPU: choose and try it, say what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import warnings

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


class Stopwatch:
    """Seconds that pass on a GPU between two points of the present stream. On a CPU it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._ended = None
        if device.type == "cuda":
            self._began, self._ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))

    def start(self) -> None:
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
