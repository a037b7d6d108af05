"""State shared by sampler and trainer. Both hold one `SharedState` and do not access each other.

    state                  written by                           read by
    PackState              trainer                              sampler, reports
    SamplingCounts         sampler; reports take episodes       trainer, reports
    ended versions         sampler                              trainer
    LearningCounts         trainer                              reports
    full rollouts          sampler appends, trainer takes
    free buffers           sampler takes, trainer gives back
    state resets           trainer appends, sampler takes

The sampler and the reports run in the learner's main thread. The trainer runs in its own thread (async) or in the main
thread (sync, serial). Edits write the trainer's state under `Updater.changing`. Deques and single numbers need no lock.
Reports take episodes under `SamplingCounts.lock` and statistics under `LearningCounts.lock`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import Episode, Game
from pbt_rl.algos.rollout import Rollout
from pbt_rl.algos.update import ACTIVE
from pbt_rl.learner.simulators.in_place import InPlaceRollout

AnyRollout: TypeAlias = Rollout | InPlaceRollout
"""A rollout of a vector env, or one that already is a batch."""


@dataclass(frozen=True)
class SlotHolder:
    """Member in a slot."""

    member: int
    """Index within the pack's members."""
    generation_of: dict[int, int]
    """`shaping_version` of the slot -> the member's generation, since it entered the slot. Versions of running episodes
    are kept."""
    evaluations: set[int] = field(default_factory=set)
    """Versions under which the member was evaluated."""

    def forget_before(self, version: int) -> None:
        """Drop older versions, because a long run creates many."""
        for old in [v for v in self.generation_of if v < version]:
            del self.generation_of[old]
            self.evaluations.discard(old)


@dataclass
class PackState:
    """State of the slots, [P] each."""

    weights_version: NDArray[np.int64]
    """Optimiser steps of the published weights."""
    lineage_version: NDArray[np.int64]
    """Lineage version: rises when the weights in a slot are replaced. Rollouts from before are outdated."""
    holders: list[SlotHolder | None]
    """None: empty slot."""
    member: NDArray[np.int64]
    """Index of each slot's member. Empty slot: one past the last member."""
    evaluated: NDArray[np.bool_]
    """The member is evaluated: it acts but does not learn."""

    @classmethod
    def new(cls, holders: Sequence[SlotHolder | None], members: int) -> PackState:
        """Create state with all counters at 0. holders: initial member of each slot."""
        slots = len(holders)
        return cls(
            np.zeros(slots, np.int64),
            np.zeros(slots, np.int64),
            list(holders),
            np.array([members if h is None else h.member for h in holders], np.int64),
            np.zeros(slots, np.bool_),
        )

    def hold(self, slot: int, index: int | None, members: int) -> None:
        """Assign a slot to a member, or empty it. index: below `members`. The sampler may read at any moment."""
        member = self.member.copy()
        member[slot] = members if index is None else index
        self.holders[slot] = None if index is None else SlotHolder(index, {})
        self.evaluated[slot] = False
        self.member = member


@dataclass
class SamplingCounts:
    """Counts of the sampler, and finished episodes until the next report."""

    steps: NDArray[np.int64]
    """[members + 1] total transitions without resets. The last entry is for empty slots."""
    episodes: list[Episode] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    """Episodes of multi-agent environments."""
    inference_seconds: float = 0.0
    environment_seconds: float = 0.0
    """Time in a simulator that the sampler steps itself."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, episodes: Iterable[Episode], games: Iterable[Game]) -> None:
        """Add finished episodes."""
        with self.lock:
            self.episodes += episodes
            self.games += games

    def take(self) -> tuple[list[Episode], list[Game]]:
        """Return the episodes that finished since the last call."""
        with self.lock:
            episodes, self.episodes = self.episodes, []
            games, self.games = self.games, []
        return episodes, games


@dataclass
class LearningCounts:
    """Totals, and sums since the last report. Lists are by member index; the last entry is for empty slots.

    The caller of a method holds `lock`.
    """

    sums: list[dict[str, tuple[float, int]]]
    """Statistic -> (sum, number of values) since the last report."""
    steps_done: list[int]
    """Optimiser steps taken since the last report."""
    steps_left_out: list[int]
    """Optimiser steps since the last report that were skipped for non-finite gradients."""
    updates: list[int]
    """Total batches."""
    steps: list[int]
    """Total steps learned from."""
    lag_max: int = 0
    discarded: int = 0
    """Total discarded rollouts (of one policy)."""
    learning_seconds: float = 0.0
    gpu_seconds: float | None = None
    """GPU time from start to end of updates. None without a GPU."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def new(cls, members: int) -> LearningCounts:
        """Create empty counts."""
        done, left_out, updates, steps = ([0] * (members + 1) for _ in range(4))
        return cls([{} for _ in range(members + 1)], done, left_out, updates, steps)

    def add(self, index: int, name: str, values: Iterable[float]) -> None:
        """Add values of a statistic."""
        total, count = self.sums[index].get(name, (0.0, 0))
        for value in values:
            total, count = total + float(value), count + 1
        self.sums[index][name] = (total, count)

    def note_steps(self, index: int, stats: Mapping[str, NDArray[np.float32]]) -> None:
        """Count a member's taken and skipped optimiser steps. stats: [S] each.

        A step is skipped if its gradient is not finite. A step without samples is not counted.
        """
        active = stats[ACTIVE] > 0
        good = active & np.isfinite(stats["grad_norm"])
        self.steps_done[index] += int(good.sum())
        self.steps_left_out[index] += int((active & ~good).sum())
        if good.any():
            for name, values in stats.items():
                if name != ACTIVE:
                    self.add(index, name, values[good])

    def take_means(self, index: int) -> dict[str, float]:
        """Return the mean of each statistic since the last call."""
        sums, self.sums[index] = self.sums[index], {}
        return {name: total / count for name, (total, count) in sums.items()}

    def take_broken(self, index: int) -> bool | None:
        """True if all optimiser steps since the last call were skipped. None if there was no step."""
        done, left_out = self.steps_done[index], self.steps_left_out[index]
        self.forget_steps(index)
        return None if done + left_out == 0 else done == 0

    def forget_steps(self, index: int) -> None:
        """Reset the optimiser steps since the last report."""
        self.steps_done[index] = self.steps_left_out[index] = 0


@dataclass(frozen=True)
class SharedState:
    """All state that sampler and trainer of one pack share."""

    members: tuple[int, ...]
    """Ids of all members of the pack. Counts use the index in this tuple."""
    pack: PackState
    sampling: SamplingCounts
    learning: LearningCounts
    full: deque[AnyRollout] = field(default_factory=deque)
    """Rollouts to learn from, oldest first."""
    free: deque[Rollout] = field(default_factory=deque)
    """Free rollout buffers."""
    state_resets: deque[int] = field(default_factory=deque)
    """Slots whose recurrent state must be zeroed before they act again."""
    ended_versions: list[NDArray[np.int64]] = field(default_factory=list)
    """Per vector env: [R] `shaping_version` of the last ended episode on each row; -1 before the first."""

    @classmethod
    def new(
        cls,
        members: tuple[int, ...],
        holders: Sequence[int | None],
        generations: Mapping[int, int] = MappingProxyType({}),
    ) -> SharedState:
        """Create the state of a new pack.

        holders: member of each slot, under shaping version 0. generations: of the members, where not 0.
        """
        held = [
            None if member is None else SlotHolder(members.index(member), {0: generations.get(member, 0)})
            for member in holders
        ]
        counts = SamplingCounts(np.zeros(len(members) + 1, np.int64))
        return cls(members, PackState.new(held, len(members)), counts, LearningCounts.new(len(members)))

    def holder(self, slot: int) -> int | None:
        """Return the member in a slot. None: empty."""
        holder = self.pack.holders[slot]
        return None if holder is None else self.members[holder.member]

    def oldest_version(self, slot: int) -> int:
        """Return a lower bound of `shaping_version` over a slot's running episodes.

        Versions rise, so an episode's version is at least that of the previous episode on its row.
        """
        slots = len(self.pack.holders)
        return min((int(one.reshape(slots, -1)[slot].min()) for one in self.ended_versions), default=-1)

    def note_exchanged_weights(self, slot: int) -> None:
        """Mark a slot's rollouts as outdated and its recurrent state for reset. The caller holds `Updater.changing`.

        The order matters: a rollout that starts under the new lineage version must start with zeroed state.
        """
        self.state_resets.append(slot)
        self.pack.lineage_version[slot] += 1
