"""State that sampler and trainer share. Neither reaches into the other: both hold one `SharedState`.

    state                  written by                           read by
    PackState              trainer                              sampler, reports
    SamplingCounts         sampler; reports take what finished  trainer, reports
    ended versions         sampler                              trainer
    LearningCounts         trainer                              reports
    full rollouts          sampler appends, trainer takes
    free buffers           sampler takes, trainer gives back
    state resets           trainer appends, sampler takes

The sampler runs in the learner's main thread, and so do reports; the trainer runs in a thread of its own (async) or in
the main thread (sync, serial). An edit writes what the trainer writes, by whoever holds `Updater.changing`. Deques and
single numbers need no lock. Locks guard what a report takes away: episodes and games (`SamplingCounts.lock`), sums of
statistics (`LearningCounts.lock`).
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
"""A rollout of a unit, or one that is a batch as it lies."""


@dataclass(frozen=True)
class SlotHolder:
    """The member that holds a slot."""

    member: int
    """Index among the pack's members."""
    generation_of: dict[int, int]
    """`shaping_version` of the slot -> the member's generation, since it entered the slot, as long as an episode that
    began under it may run."""
    evaluations: set[int] = field(default_factory=set)
    """Those of these versions under which the member was evaluated."""

    def forget_before(self, version: int) -> None:
        """Drop older versions, of which a run of days makes many."""
        for old in [v for v in self.generation_of if v < version]:
            del self.generation_of[old]
            self.evaluations.discard(old)


@dataclass
class PackState:
    """State of the slots, [P] each."""

    weights_version: NDArray[np.int64]
    """Optimiser steps that the published weights have taken."""
    weights_epoch: NDArray[np.int64]
    """Rises when the weights in a slot are exchanged: rollouts that began before are outdated."""
    holders: list[SlotHolder | None]
    """None: held by no member."""
    member: NDArray[np.int64]
    """The holders as indices; one past the last member for none."""
    evaluated: NDArray[np.bool_]
    """The holder is evaluated: it acts, and nothing is learned from that."""

    @classmethod
    def new(cls, holders: Sequence[SlotHolder | None], members: int) -> PackState:
        """All zero. holders: of each slot at the start."""
        slots = len(holders)
        return cls(
            np.zeros(slots, np.int64),
            np.zeros(slots, np.int64),
            list(holders),
            np.array([members if h is None else h.member for h in holders], np.int64),
            np.zeros(slots, np.bool_),
        )

    def hold(self, slot: int, index: int | None, members: int) -> None:
        """Let a member (an index below `members`) or none hold a slot. The sampler may read at any moment."""
        member = self.member.copy()
        member[slot] = members if index is None else index
        self.holders[slot] = None if index is None else SlotHolder(index, {})
        self.evaluated[slot] = False
        self.member = member


@dataclass
class SamplingCounts:
    """Counts of the sampler. Episodes and games wait here for the next report."""

    steps: NDArray[np.int64]
    """[members + 1] transitions that count (resets left out), in total; the last: of slots without a holder."""
    episodes: list[Episode] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    """Games of environments with several seats."""
    inference_seconds: float = 0.0
    environment_seconds: float = 0.0
    """Of a simulator that the sampler steps itself."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, episodes: Iterable[Episode], games: Iterable[Game]) -> None:
        """Add what has finished."""
        with self.lock:
            self.episodes += episodes
            self.games += games

    def take(self) -> tuple[list[Episode], list[Game]]:
        """Return what has finished since the last call."""
        with self.lock:
            episodes, self.episodes = self.episodes, []
            games, self.games = self.games, []
        return episodes, games


@dataclass
class LearningCounts:
    """Totals, and sums since the last report; lists by index of the member, and last what no member did.

    The caller of a method holds `lock`.
    """

    sums: list[dict[str, tuple[float, int]]]
    """Statistic -> (sum, number of values) since the last report."""
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
    gpu_seconds: float | None = None
    """From the beginning of updates to their end on a GPU; None without one."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def new(cls, members: int) -> LearningCounts:
        """All empty."""
        done, left_out, updates, steps = ([0] * (members + 1) for _ in range(4))
        return cls([{} for _ in range(members + 1)], done, left_out, updates, steps)

    def add(self, index: int, name: str, values: Iterable[float]) -> None:
        """Add values of a statistic."""
        total, count = self.sums[index].get(name, (0.0, 0))
        for value in values:
            total, count = total + float(value), count + 1
        self.sums[index][name] = (total, count)

    def note_steps(self, index: int, stats: Mapping[str, NDArray[np.float32]]) -> None:
        """Count optimiser steps of a member with their statistics, [S], and those left out.

        A step is left out if its gradient is not finite. One without anything to learn from is no step.
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
        """Return the mean of every statistic since the last call."""
        sums, self.sums[index] = self.sums[index], {}
        return {name: total / count for name, (total, count) in sums.items()}

    def take_broken(self, index: int) -> bool | None:
        """Whether all optimiser steps since the last call were left out; None without any."""
        done, left_out = self.steps_done[index], self.steps_left_out[index]
        self.forget_steps(index)
        return None if done + left_out == 0 else done == 0

    def forget_steps(self, index: int) -> None:
        """Count no optimiser step since the last report."""
        self.steps_done[index] = self.steps_left_out[index] = 0


@dataclass(frozen=True)
class SharedState:
    """Everything that sampler and trainer of one pack share."""

    members: tuple[int, ...]
    """Ids of all members of the pack; counts are by index in it."""
    pack: PackState
    sampling: SamplingCounts
    learning: LearningCounts
    full: deque[AnyRollout] = field(default_factory=deque)
    """Rollouts to learn from, oldest first."""
    free: deque[Rollout] = field(default_factory=deque)
    """Buffers to fill."""
    state_resets: deque[int] = field(default_factory=deque)
    """Slots whose recurrent state has to be zeroed before they act again."""
    ended_versions: list[NDArray[np.int64]] = field(default_factory=list)
    """Of each unit: [R] `shaping_version` of the last episode that ended on each row; -1 before the first."""

    @classmethod
    def new(
        cls,
        members: tuple[int, ...],
        holders: Sequence[int | None],
        generations: Mapping[int, int] = MappingProxyType({}),
    ) -> SharedState:
        """State of a pack that has done nothing.

        holders: member of each slot, under shaping version 0. generations: of the members, where not 0.
        """
        held = [
            None if member is None else SlotHolder(members.index(member), {0: generations.get(member, 0)})
            for member in holders
        ]
        counts = SamplingCounts(np.zeros(len(members) + 1, np.int64))
        return cls(members, PackState.new(held, len(members)), counts, LearningCounts.new(len(members)))

    def holder(self, slot: int) -> int | None:
        """Return the member that holds a slot."""
        holder = self.pack.holders[slot]
        return None if holder is None else self.members[holder.member]

    def oldest_version(self, slot: int) -> int:
        """Return a `shaping_version` that no episode which still runs in a slot is older than.

        Versions rise, so that a row's episode began under none that is older than that of its episode before.
        """
        slots = len(self.pack.holders)
        return min((int(one.reshape(slots, -1)[slot].min()) for one in self.ended_versions), default=-1)

    def note_exchanged_weights(self, slot: int) -> None:
        """Make a slot's rollouts outdated and its recurrent state zero. The caller holds `Updater.changing`.

        In this order: a rollout that begins under the new epoch then begins with the zeroed state.
        """
        self.state_resets.append(slot)
        self.pack.weights_epoch[slot] += 1
