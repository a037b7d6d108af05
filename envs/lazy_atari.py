"""Atari vector envs with lazy construction of emulators.

Making an emulator takes about 0.1 s, and seeding an emulator another 0.1 s. Lazy construction is used only in
asynchronous runs, which are not reproducible in any case.

    without sticky actions   Emulators are not seeded, which saves time. The no-ops are the only randomness. ale-py
                             draws the no-ops from the machine's entropy.
    with sticky actions      Emulators are seeded. An unseeded emulator would draw its sticky actions from the time in
                             seconds, so emulators made within one second would be equal.

ale-py holds the GIL while it makes emulators. Therefore the rows are distributed over several vector envs of ale-py
(*engines*). The first engine is small. In an actor's first vector env, it is made at the start. The actor makes all
other engines while it runs (`Engines.construct_more`).

Axes: R rows of the vector env, E rows of one engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ale import SEEN, AtariVectorEnv
from .atari import AtariOptions
from .base import ShapingSource
from .episode_book import all_at_once

ENGINE_ROWS = 16
"""Maximum number of rows per engine in a large vector env. Smaller engines are slower: a call takes about 0.1 ms, and
the step of a row 0.3 ms.
"""
FIRST_ROWS = 8
"""Number of rows of the first engine in a vector env of up to LARGE_ROWS rows."""
LATER_ROWS = 32
"""Maximum number of rows of each further engine in a vector env of up to LARGE_ROWS rows."""
LARGE_ROWS = 64
"""Vector envs with more rows than this number are large."""
WHOLE_ROWS = 16
"""A vector env with at most this number of rows has a single engine."""


def dealt(rows: int, together: int) -> list[NDArray[np.intp]]:
    """Distribute rows over engines. Return an array [E] of row numbers for each engine, in the order of construction.

    together: number of neighbouring rows that one policy plays.

    Policies get rows round-robin, alternately in ascending and descending order. While engines are being constructed,
    all policies therefore have almost equal numbers of rows.
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
    """Several engines with the interface of a single one. Rows without an emulator have black frames and reward 0.

    make: function that makes an engine with a given number of rows.
    together: number of neighbouring rows that one policy plays.
    empty: True if the constructor makes no engine. Otherwise, it makes the first engine.
    """

    def __init__(
        self, make: Callable[[int], Any], rows: int, together: int = 1, *, empty: bool = False
    ) -> None:
        self._make, self._rows = make, rows
        self._parts = dealt(rows, together)
        self._seeds: NDArray[np.int64] | None = None
        self._engines: list[Any] = [] if empty else [make(len(self._parts[0]))]
        self._arrived: list[tuple[NDArray[np.intp], Any]] = []
        """(rows, results of the reset) of engines whose first observations the next step delivers."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """True for rows without an emulator, [R]."""
        missing_R = np.zeros(self._rows, np.bool_)
        for part in self._parts[len(self._engines) :]:
            missing_R[part] = True
        return missing_R

    @property
    def next_size(self) -> int:
        """Number of rows of the next engine. 0 if all engines exist."""
        return len(self._parts[len(self._engines)]) if len(self._engines) < len(self._parts) else 0

    def construct_more(self) -> NDArray[np.intp]:
        """Make the next engine and return the indices of its rows. Call this only if `next_size` is not 0.

        The games of these rows begin with the next step.
        """
        number = len(self._engines)
        self._engines.append(self._make(len(self._parts[number])))
        self._arrived.append((self._parts[number], self._begun(number, self._seeds)))
        return self._parts[number]

    def reset(self, *, seed: NDArray[np.int64] | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin a game in every existing row. Return (frames [R, 1, 84, 84], info). info["lives"]: [R].

        seed: seeds [R] of all rows, including rows that are made later. None: existing rows are not seeded again.
        """
        self._seeds = self._seeds if seed is None else seed
        self._arrived = [(self._parts[e], self._begun(e, seed)) for e in range(len(self._engines))]
        frames_R, *_, info = self._arrivals()
        return frames_R, info

    def step(self, action_R: NDArray[np.integer[Any]]) -> tuple[Any, ...]:
        """Step the rows that exist. A row whose game begins in this step only returns its first frame.

        Return (frames [R, 1, 84, 84], scores [R], terminated [R], truncated [R], info). info["lives"]: [R].
        """
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
        """Return (frames, rewards, terminated, truncated, info) of rows whose games begin. All other rows are 0."""
        rows = self._rows
        frames_R, lives_R = np.zeros((rows, 1, *SEEN), np.uint8), np.zeros(rows, np.int64)
        for part, (frames_E, lives_E) in self._arrived:
            frames_R[part], lives_R[part] = frames_E, lives_E
        self._arrived = []
        over_R, cut_R = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        return frames_R, np.zeros(rows), over_R, cut_R, {"lives": lives_R}


class LazyAtariVectorEnv(AtariVectorEnv):
    """R rows of one Atari game in several engines, with lazy construction of the emulators."""

    def __init__(
        self, game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
    ) -> None:
        self._source = shaping
        super().__init__(game, rows, seed, options, shaping)
        self._missing_R = self._engine.missing
        if not options.repeat_action_probability:
            self._seeded = True  # the first reset does not seed the emulators

    def _make_all(self, game: str, options: AtariOptions) -> Any:
        # If `begins_empty` is True, the actor resets this vector env only after all rows are made.
        empty: bool = getattr(self._source, "begins_empty", False)
        together: int = getattr(self._source, "envs_per_policy", 1)
        return Engines(lambda part: self._make(game, part, options), self.rows, together, empty=empty)

    @property
    def incomplete(self) -> bool:
        return bool(self._missing_R.any())

    def construct_more(self) -> None:
        with all_at_once(self._heartbeat, self._engine.next_size):
            rows = self._engine.construct_more()
        self._missing_R[rows] = False
        self._ended_R[rows] = True


def lazy_vector_env(
    game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
) -> LazyAtariVectorEnv | None:
    """Make a vector env with lazy construction.

    Returns None if `rows` is at most WHOLE_ROWS, or if the shaping source does not allow lazy construction.
    """
    if rows <= WHOLE_ROWS or not getattr(shaping, "may_be_lazy", False):
        return None
    return LazyAtariVectorEnv(game, rows, seed, options, shaping)
