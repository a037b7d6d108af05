"""The emulators of a large unit in several engines, so that games begin before all of them are there.

An emulator takes about 0.1 s to make, most of it for a table of colours that nothing here uses, and as long again to
be seeded. The library holds the interpreter while it makes them, and a unit of 40 policies has hundreds. So its rows
are dealt to engines of a few rows each. The first one is there from the beginning, `grow` makes the next.

Axes: R rows of the unit, E rows of one engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENGINE_ROWS = 16
"""Most rows of an engine. Fewer would cost speed: a call takes about 0.1 ms, the step of a row 0.3 ms."""
WHOLE_ROWS = 64
"""A unit with no more rows is not divided."""


def dealt(rows: int, together: int) -> list[NDArray[np.intp]]:
    """Deal rows to engines, in the order in which they are made; [E] each.

    together: neighbouring rows that belong to one policy. Each policy gets a row in turn, forth and back, so that all
    have as much of the time in which the unit grows.
    """
    row_EP = np.arange(rows).reshape(-1, together).T.copy()
    row_EP[1::2] = row_EP[1::2, ::-1]
    return [np.sort(part) for part in np.array_split(row_EP.ravel(), -(-rows // ENGINE_ROWS))]


class Engines:
    """Answers `step` and `reset` as one engine of all rows. A row without an emulator is black, and silent.

    make: makes an engine of so many rows. together: neighbouring rows that belong to one policy.
    """

    def __init__(self, make: Callable[[int], Any], rows: int, together: int = 1) -> None:
        self._make, self._rows = make, rows
        self._parts = dealt(rows, together)
        self._seeds: NDArray[np.int64] | None = None
        self._engines = [make(self._size(0))]
        self._arrived: list[tuple[NDArray[np.intp], Any]] = []
        """First answers of engines, which the next step delivers."""
        self.ale, self._shape = self._engines[0].ale, self._engines[0].single_observation_space.shape

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Rows without an emulator, [R]."""
        missing_R = np.zeros(self._rows, np.bool_)
        for part in self._parts[len(self._engines) :]:
            missing_R[part] = True
        return missing_R

    @property
    def next_size(self) -> int:
        """Rows of the engine that is made next; 0 if all are there."""
        return self._size(len(self._engines)) if len(self._engines) < len(self._parts) else 0

    def grow(self) -> NDArray[np.intp]:
        """Make the next engine; return its rows, whose games begin with the next step."""
        number = len(self._engines)
        self._engines.append(self._make(self._size(number)))
        self._arrived.append((self._parts[number], self._begun(number, self._seeds)))
        return self._parts[number]

    def reset(self, *, seed: NDArray[np.int64] | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin a game on every row that is there. seed: one per row; engines made later take theirs from it."""
        self._seeds = self._seeds if seed is None else seed
        self._arrived = [(self._parts[e], self._begun(e, seed)) for e in range(len(self._engines))]
        frames_R, *_, info = self._arrivals()
        return frames_R, info

    def step(self, action_R: NDArray[np.integer[Any]]) -> tuple[Any, ...]:
        """Step every row that is there, but for those whose games begin."""
        there = len(self._engines) - len(self._arrived)
        answers = self._arrivals()
        *arrays_R, info_R = answers
        for part, engine in zip(self._parts[:there], self._engines, strict=False):
            *arrays_E, info = engine.step(action_R[part])
            for array_R, array_E in zip(
                (*arrays_R, info_R["lives"]), (*arrays_E, info["lives"]), strict=True
            ):
                array_R[part] = array_E
        return answers

    def _size(self, number: int) -> int:
        return len(self._parts[number])

    def _begun(
        self, number: int, seed: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        frames_E, info = self._engines[number].reset(seed=None if seed is None else seed[self._parts[number]])
        return frames_E.copy(), info["lives"].copy()

    def _arrivals(self) -> tuple[Any, ...]:
        """Return (frames, scores, over, cut, info) with nothing but the rows whose games begin."""
        rows = self._rows
        frames_R, lives_R = np.zeros((rows, *self._shape), np.uint8), np.zeros(rows, np.int64)
        for part, (frames_E, lives_E) in self._arrived:
            frames_R[part], lives_R[part] = frames_E, lives_E
        self._arrived = []
        over_R, cut_R = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        return frames_R, np.zeros(rows), over_R, cut_R, {"lives": lives_R}
