"""Happens-before on the pretend device: which call reads or overwrites what another stream may not have finished.

    with pretend_device() as device, watch(device) as order, DrivenLearner(device="pretend:0") as driven:
        ...
        assert not order.found

Every stream knows how far each other one has come: by marks that it goes on after, and by host waits in its own thread.
A call on memory that another stream was given work on, beyond what is known, is noted in `found` with both lines. The
default stream, where work goes outside of `acting` and `learning`, is a third one.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from torch import Tensor

from pbt_rl.algos.weights import Streams
from pbt_rl.learner.cuda import streams
from tests.helpers.pretend import DEVICE, Call, Device

STREAMS = ("default", "acting", "learning")


Uses = dict[tuple[int, int, str], tuple[int, str]]
"""(first byte, byte behind the last, stream) -> (number of the stream's last call that used them, its line)."""


class Order:
    """What each stream was given and knows of the others. late: no mark is reached before a stream waits for it."""

    def __init__(self) -> None:
        self.now, self.late = "default", False
        self.found: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self._known: dict[str, Counter[str]] = defaultdict(Counter, {name: Counter() for name in STREAMS})
        self._reads: dict[int, Uses] = defaultdict(dict)
        self._writes: dict[int, Uses] = defaultdict(dict)
        self._memory: dict[int, Tensor] = {}
        """All that was ever made on the device, by address: none is used twice, and none is the host's."""

    def mark(self) -> PretendMark:
        """All that the present stream was given, and what is behind that."""
        return PretendMark(self, self._known[self.now] | Counter({self.now: self.given[self.now]}))

    def after(self, mark: PretendMark | None) -> None:
        if mark is not None:
            self._known[self.now] |= mark.reached

    def wait_for_all(self) -> None:
        for name in [*self._known]:
            self._known[name] |= self.given

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[None]:
        before, self.now = self.now, name
        try:
            yield
        finally:
            self.now = before

    def note(self, call: Call) -> None:
        """Check a call and remember what it uses."""
        if call.kind != "download":
            self._memory |= {_storage(x): x for x in call.outs}
        if call.kind == "view":
            return
        self.given[self.now] += 1
        reads, writes = (
            [x for x in used if _storage(x) in self._memory] for used in (call.reads, call.writes)
        )
        for x in reads:
            self._check(x, self._writes, "read of what is being written", call.site)
        for x in writes:
            self._check(x, self._writes, "write over what is being written", call.site)
            self._check(x, self._reads, "write over what is being read", call.site)
        for table, tensors in ((self._reads, reads), (self._writes, writes)):
            for x in tensors:
                table[_storage(x)][*_span(x), self.now] = self.given[self.now], call.site
        if call.waits:
            self._known[self.now][self.now] = self.given[self.now]

    def _check(self, x: Tensor, table: dict[int, Uses], what: str, site: str) -> None:
        low, high = _span(x)
        for (first, behind, stream), (number, where) in table[_storage(x)].items():
            unfinished = stream != self.now and number > self._known[self.now][stream]
            if unfinished and first < high and low < behind:
                self.found[f"{what}: {self.now} at {site}, {stream} at {where}"] += 1


@dataclass
class PretendMark:
    """A mark of `Order`."""

    order: Order
    reached: Counter[str]

    def query(self) -> bool:
        return not self.order.late


class PretendStreams(Streams):
    """Streams of the pretend device, which note what they do in an `Order`."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def serving(self, weights, state):
        return streams.StagedServing(weights, state, self)

    def acting(self):
        return self._order.stream("acting")

    def learning(self):
        return self._order.stream("learning")

    @contextlib.contextmanager
    def branch(self, number):
        before = self._order.mark()
        with self._order.stream(f"{self._order.now}, branch {number}"):
            self._order.after(before)
            yield

    def join(self, number):
        for branch in range(number):
            with self._order.stream(f"{self._order.now}, branch {branch}"):
                reached = self._order.mark()
            self._order.after(reached)

    def mark(self) -> PretendMark:
        return self._order.mark()

    def after(self, mark) -> None:
        self._order.after(mark)

    def wait_for_work(self) -> None:
        self._order.wait_for_all()


@contextlib.contextmanager
def watch(device: Device) -> Iterator[Order]:
    """Give learners that are made inside streams, and follow what goes to them."""
    order = Order()
    device.observers.append(order.note)
    with mock.patch.dict(streams.SEPARATE, {DEVICE.type: lambda _: PretendStreams(order)}):
        yield order
    device.observers.remove(order.note)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _span(x: Tensor) -> tuple[int, int]:
    """Bytes of the storage between the first and the last element."""
    low = x.storage_offset() * x.element_size()
    if not x.numel():
        return low, low
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return low, low + (last + 1) * x.element_size()
