"""Learning with several threads on a CPU: one policy per thread, or one part of a minibatch per thread.

torch's threads synchronise after every operation. If actors run on some of the cores, each operation waits for the
slowest thread. Threads of different policies wait for one another while a policy's state is written. Threads of parts
synchronise after the forward pass and after the backward pass. The loss is computed once, from the outputs of all
parts.

Only the async mode uses these threads. They make results irreproducible: gradients of parts are added in the order in
which the parts end, and this order may change the last bits.

Axes: G policies (1 here), T steps, B rows, D distribution parameters, S recurrent state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Outputs = tuple[Tensor, ...]
"""params [G, T, B, D], value [G, T, B], state [G, B, S]."""
Forward = Callable[..., Outputs]
Item = TypeVar("Item")
Result = TypeVar("Result")
ROWS_AT = (2, 2, 1)
"""Position of the axis B in each output."""
UNDIVIDED = 0.16
"""Fraction of an optimiser step's time that parts do not shorten: Adam, sums, copies (docs/lab/speed.md)."""


def learned_at_once(policies: int, threads: int) -> list[range]:
    """Divide policies into ranges, which are learned one after another.

    The policies of a range are learned at the same time, one thread each. Exception: a range of one policy is learned
    in parts by all threads. As long as there are enough policies, a range has a policy for each thread. The r remaining
    policies are learned in the faster of two ways (unit: time of one policy in one thread):

        at the same time             1
        one after another, in parts  r * (UNDIVIDED + (1 - UNDIVIDED) / threads)
    """
    rest = policies % threads
    ranges = [range(first, first + threads) for first in range(0, policies - rest, threads)]
    in_parts = rest * (UNDIVIDED + (1 - UNDIVIDED) / threads)
    width = rest if in_parts > 1 else 1
    return ranges + [range(first, first + width) for first in range(policies - rest, policies, width)]


class Parts:
    """Thread pool that computes several policies, or the parts of a minibatch, at the same time.

    number: number of parts of a minibatch, and maximum number of policies at the same time; at least 2.
    threads: number of torch threads that each thread of the pool uses. The calling thread, which computes the first
    part, keeps its own number.
    """

    def __init__(self, number: int, threads: int = 1) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(
            number - 1, "part", initializer=torch.set_num_threads, initargs=(threads,)
        )
        self._lock, self._within = threading.Lock(), threading.local()
        self._seconds = 0.0

    def forward(
        self, compute: Forward, obs: Mapping[str, Tensor], state: Tensor, *of_steps: Tensor
    ) -> Outputs:
        """Compute the outputs of all rows, with gradients if gradients are enabled.

        In a function that `run` calls, the calling thread computes all rows, because the other threads are busy. It
        also computes all rows if there are fewer rows than parts.

        Axes: G policies (1 here), T steps, B rows.

        compute: called as compute(obs, state, *of_steps) with the rows of a part.
        obs: name -> [G, T, B, ...]. state: [G, B, size of the state].
        of_steps: further inputs, [G, T, B] each.
        Result: (params [G, T, B, parameters], value [G, T, B], next state).
        """
        rows, with_gradients = state.shape[1], torch.is_grad_enabled()
        bounds = [rows * part // self.number for part in range(self.number + 1)]

        def of_part(part: int) -> Outputs:
            span = slice(bounds[part], bounds[part + 1])
            seen = {name: x[:, :, span] for name, x in obs.items()}
            with torch.set_grad_enabled(with_gradients):  # the setting of new threads is True
                return compute(seen, state[:, span], *(x[:, :, span] for x in of_steps))

        if rows < self.number or getattr(self._within, "run", False):
            return compute(obs, state, *of_steps)
        if not with_gradients:
            return _joined(self.run(of_part, range(self.number)))
        token = torch.zeros((), requires_grad=True)  # makes autograd call `_InParts.backward`
        outputs: Outputs = _InParts.apply(token, self, of_part)  # type: ignore[no-untyped-call] # torch's has no annotations
        return outputs

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call a function for each of 1 to `number` items, one thread each. The first call runs in this thread.

        Return the results in the order of the items. If calls raise, wait for all calls, and raise one of the errors.
        """
        others = [self._pool.submit(self._timed, function, item) for item in items[1:]]
        try:
            first = self._call(function, items[0])
        finally:
            wait(others)  # after an error too, because parts add to the same gradients
        return [first, *(other.result() for other in others)]

    def _call(self, function: Callable[[Item], Result], item: Item) -> Result:
        self._within.run = True
        try:
            return function(item)
        finally:
            self._within.run = False

    def _timed(self, function: Callable[[Item], Result], item: Item) -> Result:
        began = time.thread_time()
        try:
            return self._call(function, item)
        finally:
            with self._lock:
                self._seconds += time.thread_time() - began

    def take_seconds(self) -> float:
        """Return the CPU seconds of the threads since the last call. The thread that calls `run` is not included."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


class _InParts(torch.autograd.Function):
    """Outputs of all parts as one node of the autograd graph. Backward runs the backward passes of all parts."""

    @staticmethod
    def forward(ctx: Any, _token: Tensor, parts: Parts, of_part: Callable[[int], Outputs]) -> Outputs:
        with torch.enable_grad():
            ctx.parts, ctx.outputs = parts, parts.run(of_part, range(parts.number))
        joined = _joined([tuple(x.detach() for x in outputs) for outputs in ctx.outputs])
        ctx.mark_non_differentiable(*joined[2:])
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        outputs, ctx.outputs = ctx.outputs, None
        sizes = [value.shape[2] for _, value, _ in outputs]
        of_parts = list(zip(*(grad.split(sizes, 2) for grad in grads[:2]), strict=True))
        ctx.parts.run(
            lambda part: torch.autograd.backward(outputs[part][:2], of_parts[part]), range(len(sizes))
        )
        return None, None, None


def _joined(outputs: list[Outputs]) -> Outputs:
    return tuple(
        torch.cat(of_all, at) for of_all, at in zip(zip(*outputs, strict=True), ROWS_AT, strict=True)
    )
