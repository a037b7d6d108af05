"""Atari games whose emulators are made while the unit runs.

An emulator takes about 0.1 s to make, and as long again to be seeded. Such units play in runs whose processes do not
wait for each other, so that no seed makes them reproducible. Without sticky actions they are not seeded: the engine
draws no-ops, all that tells games apart, from the machine's entropy. With sticky actions they are: unseeded, the engine
draws those by the time in seconds, alike in all emulators that are made within one.

The library holds the interpreter while it makes emulators, for seconds in all. So rows are dealt to several engines: a
small one is there from the beginning, and an actor that may begin without all its rows has the others made while it
runs (`Engines`, `grow`).

Axes: R rows of the unit, E rows of one engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ale import SEEN, AtariUnit
from .atari import AtariOptions
from .base import ShapingSource
from .episodes import all_at_once

ENGINE_ROWS = 16
"""Most rows of an engine of a large unit. Fewer cost speed: a call takes about 0.1 ms, the step of a row 0.3 ms."""
FIRST_ROWS = 8
"""Rows of the first engine of a unit that is not large; the others have up to LATER_ROWS, as each costs a call."""
LATER_ROWS = 32
LARGE_ROWS = 64
"""A unit with more rows is large."""
WHOLE_ROWS = 16
"""A unit with no more rows is not divided."""


def dealt(rows: int, together: int) -> list[NDArray[np.intp]]:
    """Deal rows to engines, in the order in which they are made; [E] each.

    together: neighbouring rows that belong to one policy. Each policy gets a row in turn, forth and back, so that all
    have as much of the time in which the unit grows.
    """
    row_EP = np.arange(rows).reshape(-1, together).T.copy()
    row_EP[1::2] = row_EP[1::2, ::-1]
    if rows > LARGE_ROWS:
        parts = np.array_split(row_EP.ravel(), -(-rows // ENGINE_ROWS))
    else:
        first, later = np.split(row_EP.ravel(), [FIRST_ROWS])
        parts = [first, *np.array_split(later, -(-later.size // LATER_ROWS))]
    return [np.sort(part) for part in parts]


class Engines:
    """Answers `step` and `reset` as one engine of all rows. A row without an emulator is black, and silent.

    make: makes an engine of so many rows. together: neighbouring rows that belong to one policy. empty: the first
    engine is made later, too.
    """

    def __init__(
        self, make: Callable[[int], Any], rows: int, together: int = 1, *, empty: bool = False
    ) -> None:
        self._make, self._rows = make, rows
        self._parts = dealt(rows, together)
        self._seeds: NDArray[np.int64] | None = None
        self._engines: list[Any] = [] if empty else [make(len(self._parts[0]))]
        self._arrived: list[tuple[NDArray[np.intp], Any]] = []
        """First answers of engines, which the next step delivers."""

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
        return len(self._parts[len(self._engines)]) if len(self._engines) < len(self._parts) else 0

    def grow(self) -> NDArray[np.intp]:
        """Make the next engine; return its rows, whose games begin with the next step."""
        number = len(self._engines)
        self._engines.append(self._make(len(self._parts[number])))
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

    def _begun(
        self, number: int, seed: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        frames_E, info = self._engines[number].reset(seed=None if seed is None else seed[self._parts[number]])
        return frames_E.copy(), info["lives"].copy()

    def _arrivals(self) -> tuple[Any, ...]:
        """Return (frames, scores, over, cut, info) with nothing but the rows whose games begin."""
        rows = self._rows
        frames_R, lives_R = np.zeros((rows, 1, *SEEN), np.uint8), np.zeros(rows, np.int64)
        for part, (frames_E, lives_E) in self._arrived:
            frames_R[part], lives_R[part] = frames_E, lives_E
        self._arrived = []
        over_R, cut_R = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        return frames_R, np.zeros(rows), over_R, cut_R, {"lives": lives_R}


class GrowingAtariUnit(AtariUnit):
    """R games of one kind, which begin with some emulators, or none."""

    def __init__(
        self, game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
    ) -> None:
        self._source = shaping
        super().__init__(game, rows, seed, options, shaping)
        self._missing_R = self._engine.missing
        if not options.repeat_action_probability:
            self._seeded = True  # the first reset leaves the engines' own seeds

    def _make_all(self, game: str, options: AtariOptions) -> Any:
        empty: bool = getattr(self._source, "begins_empty", False)  # no step is taken before it is whole
        together: int = getattr(self._source, "envs_per_policy", 1)
        return Engines(lambda part: self._make(game, part, options), self.rows, together, empty=empty)

    @property
    def grows(self) -> bool:
        return bool(self._missing_R.any())

    def grow(self) -> None:
        with all_at_once(self._pulse, self._engine.next_size):
            rows = self._engine.grow()
        self._missing_R[rows] = False
        self._ended_R[rows] = True


def unit_that_grows(
    game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
) -> GrowingAtariUnit | None:
    """Make a unit that grows, if whoever makes it lets it (an attribute of its source) and it is worth it."""
    if rows <= WHOLE_ROWS or not getattr(shaping, "lets_grow", False):
        return None
    return GrowingAtariUnit(game, rows, seed, options, shaping)
