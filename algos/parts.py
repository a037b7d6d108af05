"""Forward and backward passes of a minibatch in parts, one thread per part, on a CPU.

torch's threads synchronise after every operation. If actors run on some of the cores, each operation waits for the
slowest thread. Threads of parts synchronise only after the forward pass and after the backward pass. The loss is
computed once, from the outputs of all parts.

Only the async mode uses parts, because runs with parts are not reproducible: gradients are added in the order in which
parts end, which may change the last bits.

Axes: G policies (1 here), T steps, B rows, D distribution parameters, S recurrent state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Outputs = tuple[Tensor, ...]
"""params [G, T, B, D], value [G, T, B], state [G, B, S]."""
Forward = Callable[..., Outputs]
Result = TypeVar("Result")
ROWS_AT = (2, 2, 1)
"""Position of the axis B in each output."""


class Parts:
    """Threads for the parts of a minibatch.

    number: number of parts.
    threads: torch threads of each part.
    """

    def __init__(self, number: int, threads: int = 1) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(
            number - 1, "part", initializer=torch.set_num_threads, initargs=(threads,)
        )
        self._lock = threading.Lock()
        self._seconds = 0.0

    def forward(
        self, compute: Forward, obs: Mapping[str, Tensor], state: Tensor, *of_steps: Tensor
    ) -> Outputs:
        """Compute the outputs of all rows, with gradients if gradients are enabled.

        compute: called as compute(obs, state, *of_steps) with the rows of a part.
        of_steps: further inputs, [G, T, B] each.
        """
        rows, with_gradients = state.shape[1], torch.is_grad_enabled()
        bounds = [rows * part // self.number for part in range(self.number + 1)]

        def of_part(part: int) -> Outputs:
            span = slice(bounds[part], bounds[part + 1])
            seen = {name: x[:, :, span] for name, x in obs.items()}
            with torch.set_grad_enabled(with_gradients):  # the setting of new threads is True
                return compute(seen, state[:, span], *(x[:, :, span] for x in of_steps))

        if rows < self.number:
            return compute(obs, state, *of_steps)
        if not with_gradients:
            return _joined(self.run(of_part))
        token = torch.zeros((), requires_grad=True)  # makes autograd call `_InParts.backward`
        outputs: Outputs = _InParts.apply(token, self, of_part)  # type: ignore[no-untyped-call] # torch's has no annotations
        return outputs

    def run(self, of_part: Callable[[int], Result]) -> list[Result]:
        """Call a function for each part. The first call runs in this thread."""
        others = [self._pool.submit(self._timed, of_part, part) for part in range(1, self.number)]
        try:
            first = of_part(0)
        finally:
            wait(others)  # after an error too, because parts add to the same gradients
        return [first, *(other.result() for other in others)]

    def _timed(self, of_part: Callable[[int], Result], part: int) -> Result:
        began = time.thread_time()
        try:
            return of_part(part)
        finally:
            with self._lock:
                self._seconds += time.thread_time() - began

    def take_seconds(self) -> float:
        """Return the CPU seconds since the last call, except those of the thread that calls `run`."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


class _InParts(torch.autograd.Function):
    """Outputs of all parts as one node of the autograd graph. Backward runs the backward passes of all parts."""

    @staticmethod
    def forward(ctx: Any, _token: Tensor, parts: Parts, of_part: Callable[[int], Outputs]) -> Outputs:
        with torch.enable_grad():
            ctx.parts, ctx.outputs = parts, parts.run(of_part)
        joined = _joined([tuple(x.detach() for x in outputs) for outputs in ctx.outputs])
        ctx.mark_non_differentiable(*joined[2:])
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        outputs, ctx.outputs = ctx.outputs, None
        sizes = [value.shape[2] for _, value, _ in outputs]
        of_parts = list(zip(*(grad.split(sizes, 2) for grad in grads[:2]), strict=True))
        ctx.parts.run(lambda part: torch.autograd.backward(outputs[part][:2], of_parts[part]))
        return None, None, None


def _joined(outputs: list[Outputs]) -> Outputs:
    return tuple(
        torch.cat(of_all, at) for of_all, at in zip(zip(*outputs, strict=True), ROWS_AT, strict=True)
    )
