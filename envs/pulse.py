"""The pulse of a unit: it shows that the unit gets on while it makes, resets or steps its rows one after the other.

It is two cells of memory that the supervisor watches, so that slow environments are not taken for hung ones. A unit
finds it at its source of shaping (see `ShapingSource`), which in an actor has the attribute `pulse`. A unit that loops
over rows in Python writes `pulse[ROW]` after each: one store, without a clock. One call for all rows gives no sign
until it returns; making and seeding them, which takes long, is announced by `all_at_once`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .base import ShapingSource

ROW, AT_ONCE = range(2)
"""Cells. ROW: any number that differs from that of the row before. AT_ONCE: rows that the present call handles."""
SECONDS_PER_ROW = 1.0
"""Patience for each row that is made or seeded in one call. An Atari game takes 0.1 s for either on an idle core, and
0.5 s where six processes share it."""

T = TypeVar("T")


def pulse_of(source: ShapingSource) -> memoryview:
    """Return the pulse of the unit that has this source; cells that nobody watches if it has none."""
    watched: memoryview | None = getattr(source, "pulse", None)
    return memoryview(bytearray(16)).cast("q") if watched is None else watched


def beating(pulse: memoryview, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and give a sign when the caller asks for the next one: the one before is done."""
    for row, item in enumerate(items):
        yield item
        pulse[ROW] = row


@contextmanager
def all_at_once(pulse: memoryview, rows: int) -> Iterator[None]:
    """Announce a call that makes or seeds this many rows before it returns."""
    pulse[AT_ONCE] = rows
    try:
        yield
    finally:
        pulse[ROW] += 1  # first, so that a watcher who sees the announcement gone sees the sign too
        pulse[AT_ONCE] = 0
