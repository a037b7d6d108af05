"""Toys with other actions than one index: masked ones, and composite ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from ..toy import Identity, Info, Obs, Step, Toy, one_hot

# ruff: noqa: D102 - the docstring of each class describes its reset and step


class Masked(Identity):
    """Identity with an action mask that allows the answer and about half of the others; any other raises ValueError.

    Every fourth step is a pause: the mask is all zeros, the action is ignored and pays nothing. The best policy
    earns 3/4 of length; a random one that obeys the mask less than half of that.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        super().__init__(size, length)
        self.observation_space = Dict(
            {"obs": Box(0, 1, (size,)), "action_mask": Box(0, 1, (size,), dtype=np.uint8)}
        )
        self._mask = np.zeros(size, np.uint8)

    def step(self, action: int) -> Step:
        pause = not self._mask.any()
        if not pause and not self._mask[action]:
            raise ValueError(f"toy/masked: action {action} is not allowed by the mask {self._mask.tolist()}")
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, 0.0 if pause else reward, terminated, truncated, info

    def _next(self) -> Obs:
        obs = super()._next()
        self._mask = self.np_random.integers(2, size=self._size).astype(np.uint8)
        self._mask[self._index] = 1
        if self._steps % 4 == 3:
            self._mask[:] = 0
        return {"obs": obs, "action_mask": self._mask.copy()}


class Hybrid(Toy):
    """See an index and a number, answer both: if the index is right, reward 1 - |difference of the numbers| (or 0).

    Observations are a Tuple with a Dict inside, actions a Dict of a Discrete and a Box. The best policy earns length, a
    random one 5/12 * length / size.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        self.observation_space = Tuple((Box(0, 1, (size,)), Dict({"number": Box(-1, 1, (1,))})))
        self.action_space = Dict({"number": Box(-1, 1, (1,)), "index": Discrete(size)})
        self._size = size
        self._length = length
        self._steps = 0
        self._index = 0
        self._number = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._next(), {}

    def step(self, action: Any) -> Step:
        closeness = max(0.0, 1 - abs(float(action["number"][0]) - self._number))
        reward = closeness * (action["index"] == self._index)
        self._steps += 1
        return self._next(), reward, False, self._steps >= self._length, {}

    def _next(self) -> Obs:
        self._index = int(self.np_random.integers(self._size))
        self._number = float(self.np_random.uniform(-1, 1))
        number = np.array([self._number], np.float32)
        return one_hot(self._index, self._size), {"number": number}
