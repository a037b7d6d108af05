"""What acting reads of the policies: the weights and normalisers that were published last.

A forward must never see half of a publication, neither layers of two updates nor of two members. Where a call has been
carried out when it returns, a lock per slot sees to that. Where acting and learning have streams of their own, calls
have only been asked for, and locks say nothing: there a publication is *staged* by the stream that learns and *taken*
by the stream that acts, each after the other's mark (streams.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor

from .normalizers import of_normalizers
from .streams import Mark, Streams
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


class StagedServing(Serving):
    """For acting and learning on streams of their own.

    `publish` writes a copy that only learning uses, `take` brings it over, on the device and without waiting: it takes
    a publication only once that is whole. The host may be many optimiser steps ahead of the device, and a turn that
    waited for the newest weights would wait for all of those. After an exchange it does: rare, and the slot's next
    rollout must not begin with the former member's weights.

    There are two copies, so that learning does not wait either: what the turn in flight takes is written again only
    after a later turn has taken the other one, and a turn begins when the one before it has been answered.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Tensor], streams: Streams) -> None:
        super().__init__(weights, state)
        self._streams = streams
        self._served = [*weights.served, *self.stats.values()]
        self._copies = [[served.clone() for served in self._served] for _ in range(2)]
        """Both in the order of `_sources`."""
        self._newest = 0
        """The copy that the last publication is in."""
        self._lock = threading.Lock()  # of the marks; nobody waits for the device while holding it
        self._staged: Mark | None = None
        """Of the last publication, until it is taken."""
        self._taken: list[Mark | None] = [None, None]
        self._exchanged = False

    def take(self) -> None:
        """See `Serving`."""
        with self._lock:
            if self._staged is None or not (self._exchanged or self._staged.query()):
                return
            self._streams.after(self._staged)
            for copy, served in zip(self._copies[self._newest], self._served, strict=True):
                served.copy_(copy)
            self._staged, self._exchanged = None, False
            self._taken[self._newest] = self._streams.mark()

    @contextmanager
    def held(self, slots: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG002 - only `take` changes any
        """See `Serving`: what is served changes in `take` alone, on the stream that acts."""
        yield

    def publish(self, slots: tuple[int, ...], *, exchanged: bool) -> None:
        """See `Serving`."""
        with self._lock:
            if self._staged is None:
                self._change_copies()
            for span in _spans(slots):
                for copy, source in zip(self._copies[self._newest], self._sources(span), strict=True):
                    copy[span].copy_(source)
            self._staged = self._streams.mark()
            self._exchanged |= exchanged

    def _change_copies(self) -> None:
        """Go on in the other copy, since a turn may be reading this one."""
        before, self._newest = self._newest, 1 - self._newest
        self._streams.after(self._taken[self._newest])
        for copy, source in zip(self._copies[self._newest], self._copies[before], strict=True):
            copy.copy_(source)

    def _sources(self, span: slice) -> list[Tensor]:
        return [*self._weights.to_serve(span), *(self._state[name][span] for name in self.stats)]


def _spans(slots: tuple[int, ...]) -> list[slice]:
    """Return ascending slots as ranges: a copy costs the same for many neighbours as for one."""
    starts = [p for p in slots if p - 1 not in slots]
    ends = [p + 1 for p in slots if p + 1 not in slots]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]
