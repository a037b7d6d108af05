"""A toy that is seen as an image."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..toy import Info, Obs, Step, Toy

# ruff: noqa: D102 - the docstring of each class describes its reset and step

CELL = 4
"""Pixels of a cell's side."""
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Treasure(Toy):
    """Walk over a field of `size` x `size` cells to a treasure: reward 1, and the end. `length` steps at most.

    Walker and treasure begin anywhere. The image has a channel for each of the two. A random walk finds the treasure in
    a fifth of the episodes; the best policy always does, in 4.7 steps on average (both as the defaults are).
    """

    encoder = "a3c"

    def __init__(self, size: int = 7, length: int = 20) -> None:
        self.observation_space = Box(0, 255, (2, CELL * size, CELL * size), np.uint8)
        self.action_space = Discrete(len(MOVES))
        self._size = size
        self._length = length
        self._steps = 0
        self._places = np.zeros((2, 2), np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        cells = self.np_random.choice(self._size**2, size=2, replace=False)
        self._places = np.stack(np.divmod(cells, self._size), 1)
        return self._obs(), {}

    def step(self, action: int) -> Step:
        self._steps += 1
        self._places[0] = np.clip(self._places[0] + MOVES[action], 0, self._size - 1)
        found = bool((self._places[0] == self._places[1]).all())
        return self._obs(), float(found), found, not found and self._steps == self._length, {}

    def _obs(self) -> Obs:
        image = np.zeros((2, self._size, CELL, self._size, CELL), np.uint8)
        for channel, (row, column) in enumerate(self._places):
            image[channel, row, :, column] = 255
        return image.reshape(self.observation_space.shape)
