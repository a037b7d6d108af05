"""What acting reads of the policies: the weights and normalisers that were published last.

A forward must never see half of a publication, neither layers of two updates nor of two members. A lock per slot sees
to that: a device with one stream does what it was asked for in this order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from torch import Tensor

from .normalizers import of_normalizers
from .streams import Mark
from .weights import Weights


class Serving:
    """Published weights and `stats` (normalisers), [P, ...]; `state` is the pack's, from which they are published.

    locks: one per slot; acting and publishing exclude each other.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Tensor]) -> None:
        self._weights, self._state = weights, state
        self.stats = {name: value.clone() for name, value in of_normalizers(state).items()}
        self._locks = [threading.Lock() for _ in range(weights.masters.shape[0])]

    def take(self) -> None:
        """Acting, before a turn: bring what was published since the last one."""

    @contextmanager
    def held(self, slots: tuple[int, ...]) -> Iterator[None]:
        """Acting: these slots do not change inside."""
        with ExitStack() as stack:
            for p in slots:
                stack.enter_context(self._locks[p])
            yield

    def publish(self, slots: tuple[int, ...], *, exchanged: bool) -> None:  # noqa: ARG002 - here it is there at once
        """Learning: bring the present weights and normalisers of these slots to acting.

        exchanged: they are not those of before, a little older or newer; no turn that begins from now on may use those.
        """
        for p in slots:
            with self._locks[p]:
                self._weights.publish(p)
                for name, served in self.stats.items():
                    served[p].copy_(self._state[name][p])


class Streams:
    """One stream for all. What was asked for first is done first, so nothing ever waits."""

    def serving(self, weights: Weights, state: Mapping[str, Tensor]) -> Serving:
        """Return what brings published weights to acting. state: of the pack, from which they are published."""
        return Serving(weights, state)

    def acting(self) -> AbstractContextManager[object]:
        """Whatever is asked for inside goes to the stream that acts."""
        return nullcontext()

    def learning(self) -> AbstractContextManager[object]:
        """Whatever is asked for inside goes to the stream that learns."""
        return nullcontext()

    def mark(self) -> Mark | None:
        """Return the point which the present stream has been given work up to; None: all that is asked for is done."""
        return None

    def after(self, mark: Mark | None) -> None:
        """Let the present stream go on after a mark."""

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """Bring a tensor of the present stream to the host, and wait until it is there."""
        into.copy_(source)

    def begin(self) -> None:
        """Wait for all that was asked for before the streams are used: it was given to none of them."""
