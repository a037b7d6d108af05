"""What the toys are made of: their base, with a state that can be saved, and the simplest of them."""

# ruff: noqa: D102 - the docstring of each class describes its reset and step

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

Obs = Any
Info = dict[str, Any]
Step = tuple[Obs, float, bool, bool, Info]


class Toy(gymnasium.Env[Obs, Any]):
    """A toy's state is its random generator and those of its attributes that are numbers or arrays of numbers."""

    def save_state(self) -> dict[str, Any]:
        """See `SavesState`."""
        numbers = {k: v for k, v in vars(self).items() if isinstance(v, bool | int | float)}
        arrays = {k: v.tolist() for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return {"numbers": numbers, "arrays": arrays, "generator": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        """See `SavesState`."""
        for name, number in state["numbers"].items():
            setattr(self, name, number)
        for name, numbers in state["arrays"].items():
            setattr(self, name, np.array(numbers, getattr(self, name).dtype))
        self.np_random.bit_generator.state = state["generator"]


def one_hot(index: int, size: int) -> Obs:
    """Return float32 [size], 1 at the index."""
    hot = np.zeros(size, np.float32)
    hot[index] = 1
    return hot


class Identity(Toy):
    """See an index, answer it: reward 1 if right. `length` steps, then truncated.

    A random policy earns length / size; the best length.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        self.observation_space = Box(0, 1, (size,))
        self.action_space = Discrete(size)
        self._size = size
        self._length = length
        self._steps = 0
        self._index = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._next(), {}

    def step(self, action: int) -> Step:
        reward = float(action == self._index)
        self._steps += 1
        return self._next(), reward, False, self._steps >= self._length, {}

    def _next(self) -> Obs:
        self._index = int(self.np_random.integers(self._size))
        return one_hot(self._index, self._size)
