"""State that sampler and trainer share, with who may write what."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.rollout import Rollout
from pbt_rl.wire.messages import Episode, Game


@dataclass(frozen=True)
class SlotHolder:
    """Who holds a row, and what the versions of the shaping that it has acted under mean."""

    member: int
    """Index among the pack's members."""
    generation_of: dict[int, int]
    """Version in the shaping table -> the member's generation, since it took the row."""


@dataclass
class PackState:
    """What sampler and trainer share about the policies, [P] each. Only the trainer writes."""

    version: NDArray[np.int64]
    """Updates (batches) that the published weights have seen."""
    origin: NDArray[np.int64]
    """Raised when the weights are replaced: rollouts that began before are outdated."""
    occupants: list[SlotHolder | None]
    """None: nobody holds the row."""
    member: NDArray[np.int64]
    """The same as indices; one past the last member for nobody."""

    @classmethod
    def new(cls, policies: int) -> PackState:
        """All zero; the first members hold the rows, in order, under version 0 of the shaping."""
        return cls(
            np.zeros(policies, np.int64),
            np.zeros(policies, np.int64),
            [SlotHolder(p, {0: 0}) for p in range(policies)],
            np.arange(policies),
        )


@dataclass
class SamplingCounts:
    """What the sampler counts. Episodes wait here for the next report."""

    steps: NDArray[np.int64]
    """[members + 1] transitions that count (resets left out), in total; the last: of rows that nobody held."""
    episodes: list[Episode] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    """Where environments have several seats; guarded like the episodes."""
    inference_seconds: float = 0.0


class BufferPool:
    """Free rollout buffers. Thread-safe: the trainer gives back what the sampler took."""

    def __init__(self, buffers: list[Rollout]) -> None:
        self._free = deque(buffers)

    def take(self) -> Rollout | None:
        """Return a free buffer, or None."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give(self, rollout: Rollout) -> None:
        """Take a buffer back."""
        self._free.append(rollout)

    def __len__(self) -> int:
        return len(self._free)


@dataclass
class LearningCounts:
    """Sums since the last report, and totals; lists by member of the pack, and last what nobody's rows did."""

    sums: list[dict[str, Tensor]]
    steps_done: list[int]
    """Optimiser steps since the last report..."""
    steps_left_out: list[int]
    """...and those left out since then because a gradient was not finite."""
    updates: list[int]
    """Batches in total."""
    steps: list[int]
    """Steps learned from in total."""
    lag_max: int = 0
    discarded: int = 0
    """Rollouts (of one policy) thrown away in total."""
    learning_seconds: float = 0.0

    @classmethod
    def new(cls, members: int) -> LearningCounts:
        """All empty."""
        sums: list[dict[str, Tensor]] = [{} for _ in range(members + 1)]
        zeros = [[0] * (members + 1) for _ in range(4)]
        return cls(sums, zeros[0], zeros[1], zeros[2], zeros[3])
