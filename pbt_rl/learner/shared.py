"""State that sampler and trainer share. Both communicate through one `SharedState` and the published weights.

    state                  written by                           read by
    PackState              trainer                              sampler, reports
    SamplingCounts         sampler; reports remove episodes;    trainer, reports
                           loads continue counts of steps
    ended versions         sampler                              trainer
    LearningCounts         trainer; reports reset sums          reports
    full rollouts          sampler                              trainer
    free buffers           trainer                              sampler
    state resets           trainer                              sampler

The sampler and the reports run in the learner's main thread. The trainer runs in a separate thread (async) or in the
main thread (sync, serial). Commands that change members hold the lock `Updater.changing`.
`SamplingCounts.lock` protects episodes, `LearningCounts.lock` protects statistics. Deques and single numbers need no
lock.

Axes: P policies (slots), R rows of a vector env.
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
"""Rollout of a vector env or of a device simulator."""


@dataclass(frozen=True)
class SlotMember:
    """Member in a slot, with the shaping versions that it has had there."""

    member: int
    """Index of the member in `SharedState.members`."""
    generation_of: dict[int, int]
    """Shaping version of the slot -> the member's generation under this version, for versions since the member entered
    the slot. A version is removed some time after its last episode has ended."""
    evaluations: set[int] = field(default_factory=set)
    """Shaping versions under which the member was evaluated."""

    def forget_before(self, version: int) -> None:
        """Remove shaping versions below `version`, because a long run creates many versions."""
        for old in [v for v in self.generation_of if v < version]:
            del self.generation_of[old]
            self.evaluations.discard(old)


@dataclass
class PackState:
    """State of the slots of a pack. Each field has one entry per slot."""

    weights_version: NDArray[np.int64]
    """Number of published optimiser steps of each slot. A load of other weights does not reset it."""
    lineage_version: NDArray[np.int64]
    """Number of times that the weights in each slot were replaced or discarded. Rollouts with a lower number are
    outdated."""
    slot_members: list[SlotMember | None]
    """Member of each slot. None: empty slot."""
    member: NDArray[np.int64]
    """Index of each slot's member. The index of an empty slot is the number of members."""
    evaluated: NDArray[np.bool_]
    """True if the slot's member is evaluated: it acts without learning."""

    @classmethod
    def new(cls, slot_members: Sequence[SlotMember | None], members: int) -> PackState:
        """Create a state in which all versions are 0.

        slot_members: initial member of each slot. None: empty slot. members: number of members of the run.
        """
        slots = len(slot_members)
        return cls(
            np.zeros(slots, np.int64),
            np.zeros(slots, np.int64),
            list(slot_members),
            np.array([members if h is None else h.member for h in slot_members], np.int64),
            np.zeros(slots, np.bool_),
        )

    def hold(self, slot: int, index: int | None, members: int) -> None:
        """Assign a slot to a member. index: index of the member; None empties the slot.

        The array `member` is replaced by a changed copy, because the sampler reads the array without a lock.

        members: number of members of the run.
        """
        member = self.member.copy()
        member[slot] = members if index is None else index
        self.slot_members[slot] = None if index is None else SlotMember(index, {})
        self.evaluated[slot] = False
        self.member = member


@dataclass
class SamplingCounts:
    """Total counts of the sampler, and the episodes that finished since the last report."""

    steps: NDArray[np.int64]
    """[members + 1], total steps of each member. Resets of environments do not count. Last entry: empty slots."""
    episodes: list[Episode] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    """Results of episodes with several agents."""
    inference_seconds: float = 0.0
    """CPU seconds of the sampler's thread in inference."""
    environment_seconds: float = 0.0
    """CPU seconds of the sampler's thread in steps of a device simulator."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, episodes: Iterable[Episode], games: Iterable[Game]) -> None:
        """Add finished episodes."""
        with self.lock:
            self.episodes += episodes
            self.games += games

    def take(self) -> tuple[list[Episode], list[Game]]:
        """Return and remove the episodes that finished since the last call."""
        with self.lock:
            episodes, self.episodes = self.episodes, []
            games, self.games = self.games, []
        return episodes, games


@dataclass
class LearningCounts:
    """Counts of the trainer: totals, and sums since the last report.

    Each list has one entry per member, and a last entry for empty slots. Hold `lock` during each call of a method.
    Argument `index` of the methods: index of the member.
    """

    sums: list[dict[str, tuple[float, int]]]
    """Statistic -> (sum, number of values) since the last report."""
    steps_done: list[int]
    """Optimiser steps since the last report, except skipped steps."""
    steps_left_out: list[int]
    """Optimiser steps since the last report that were skipped because of non-finite gradients."""
    updates: list[int]
    """Total number of updates."""
    steps: list[int]
    """Total number of environment steps that the member learned from."""
    lag_max: int = 0
    """Largest rollout age of a used rollout, in optimiser steps."""
    discarded: int = 0
    """Total number of discarded rollouts. A rollout that two policies discard counts twice."""
    learning_seconds: float = 0.0
    """CPU seconds of the trainer's thread in updates, and of the threads of `Parts`."""
    gpu_seconds: float | None = None
    """Total GPU seconds of updates. None on a CPU, and before the end of the first update."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def new(cls, members: int) -> LearningCounts:
        """Create counts that are all 0. members: number of members."""
        done, left_out, updates, steps = ([0] * (members + 1) for _ in range(4))
        return cls([{} for _ in range(members + 1)], done, left_out, updates, steps)

    def add(self, index: int, name: str, values: Iterable[float]) -> None:
        """Add values of a statistic."""
        total, count = self.sums[index].get(name, (0.0, 0))
        for value in values:
            total, count = total + float(value), count + 1
        self.sums[index][name] = (total, count)

    def note_steps(self, index: int, stats: Mapping[str, NDArray[np.float32]]) -> None:
        """Count a member's optimiser steps, and add the statistics of these steps.

        An optimiser step with a non-finite gradient is counted in `steps_left_out`, any other step in `steps_done`. A
        step in which the member was not active (`ACTIVE`) is not counted.

        stats: statistic -> its value in each optimiser step, an array [steps]. ACTIVE and "grad_norm" must be included.
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
        """Return the mean of each statistic since the last call, and reset the sums."""
        sums, self.sums[index] = self.sums[index], {}
        return {name: total / count for name, (total, count) in sums.items()}

    def take_broken(self, index: int) -> bool | None:
        """True if all optimiser steps since the last call were skipped. None if there were no steps.

        The counts are reset.
        """
        done, left_out = self.steps_done[index], self.steps_left_out[index]
        self.forget_steps(index)
        return None if done + left_out == 0 else done == 0

    def forget_steps(self, index: int) -> None:
        """Reset the numbers of optimiser steps since the last report."""
        self.steps_done[index] = self.steps_left_out[index] = 0


@dataclass(frozen=True)
class SharedState:
    """State that sampler and trainer of a pack share."""

    members: tuple[int, ...]
    """Ids of all members. A member's index is its position in this tuple."""
    pack: PackState
    sampling: SamplingCounts
    learning: LearningCounts
    full: deque[AnyRollout] = field(default_factory=deque)
    """Rollouts to learn from, oldest first."""
    free: deque[Rollout] = field(default_factory=deque)
    """Free rollout buffers."""
    state_resets: deque[int] = field(default_factory=deque)
    """Slots whose recurrent state must be zeroed before the next inference batch."""
    ended_versions: list[NDArray[np.int64]] = field(default_factory=list)
    """One array [R] per vector env: shaping version of each row's last finished episode, or -1 if no episode of the row
    has finished. A device simulator has one array [P]: shaping version of each slot after the last rollout, or -1."""

    @classmethod
    def new(
        cls,
        members: tuple[int, ...],
        slot_members: Sequence[int | None],
        generations: Mapping[int, int] = MappingProxyType({}),
    ) -> SharedState:
        """Create the state of a new pack.

        slot_members: initial member of each slot. None: empty slot. The member's shaping gets version 0.
        generations: member -> generation, for members whose generation is not 0.
        """
        held = [
            None if member is None else SlotMember(members.index(member), {0: generations.get(member, 0)})
            for member in slot_members
        ]
        counts = SamplingCounts(np.zeros(len(members) + 1, np.int64))
        return cls(members, PackState.new(held, len(members)), counts, LearningCounts.new(len(members)))

    def member_of(self, slot: int) -> int | None:
        """Return the member in a slot. None: empty slot."""
        slot_member = self.pack.slot_members[slot]
        return None if slot_member is None else self.members[slot_member.member]

    def oldest_version(self, slot: int) -> int:
        """Return a lower bound of the shaping versions of a slot's running episodes.

        Versions never decrease: an episode has at least the version of the previous episode on the same row.
        """
        slots = len(self.pack.slot_members)
        return min((int(one.reshape(slots, -1)[slot].min()) for one in self.ended_versions), default=-1)

    def note_exchanged_weights(self, slot: int) -> None:
        """Mark a slot's rollouts as outdated, and request a reset of the slot's recurrent state.

        Call this under the lock `Updater.changing`. The reset is queued first, because a rollout with the new lineage
        version must start with a zero state.
        """
        self.state_resets.append(slot)
        self.pack.lineage_version[slot] += 1
