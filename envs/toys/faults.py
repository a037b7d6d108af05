"""Toys that fail as the environments of others do."""

from __future__ import annotations

import time
from typing import NoReturn

import numpy as np

from ..toy import Identity, Step

# ruff: noqa: D102 - the docstring of each class describes its reset and step


class Crashing(Identity):
    """Identity that raises RuntimeError in the step `steps` of its life: a restarted actor gets on."""

    def __init__(self, steps: int = 200) -> None:
        super().__init__()
        self._left = steps

    def step(self, action: int) -> Step:
        self._left -= 1
        if self._left == 0:
            self._fail()
        return super().step(action)

    def _fail(self) -> NoReturn:
        raise RuntimeError("toy/crashing raises here, as it is meant to")


class Hanging(Crashing):
    """Identity that never returns from the step `steps` of its life."""

    def _fail(self) -> NoReturn:
        while True:
            time.sleep(3600)


class NotANumber(Identity):
    """Identity whose fifth observation after a step holds NaN."""

    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._steps == 5:
            obs[0] = np.nan
        return obs, reward, terminated, truncated, info


class WrongShape(Identity):
    """Identity whose fifth observation after a step is one number short."""

    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[: self._size - (self._steps == 5)], reward, terminated, truncated, info
