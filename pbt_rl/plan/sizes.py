"""Rows of a unit, rollouts of a batch, and actors of each learner, for every size of machine.

While a unit fills a rollout every other unit delivers one too. With U units and k rollouts in a batch, a rollout is
therefore U / k batches old when it is full, and up to two older when it is learned from: one batch may be waiting and
one in work. Age counts in optimiser steps, as Sample Factory counts its policy lag; S is those of a batch (epochs *
minibatches). It is planned to be harmless, and half the limit on the policy lag is left for what no plan foresees:

    (U / k + 2) * S <= min(AGE_PLANNED, --learner.max-policy-lag / 2)    and    U / k + 2 <= BATCHES_PLANNED

or U = k, if that is more. So every batch bounds the rows in flight, and on a machine with many cores units are small or
some cores have no actor. In the sync modes all units rest while a batch is learned from: k = U.

Rows here are those of one policy: U units, b of its rows in each, k rollouts in its batch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

MIN_UNIT_ROWS = 32
"""With fewer rows the calls of a vector environment cost too much (on Atari 32 rows were 9 % faster than 16)."""
MIN_POLICY_ROWS = 8
"""With fewer rows a forward of one policy wastes the CPU's vector units."""
LEAST_UNIT_ROWS = 4
"""What is left of MIN_UNIT_ROWS if rollouts would be too old otherwise; below, calls cost more than rows (CartPole took
9 us per row with 32, 14 with 4, 20 with 2; Atari hardly differs). In sync modes half of it, as cores are idle there."""
LEAST_GPU_ROWS = 16
"""The same beside a GPU, where every core has an actor: its other unit has to bridge a turn and the wake-ups, which are
late if all cores are busy (docs/lab/speed.md)."""
LEAST_SPARE_ROWS = 8
"""The same where each learner has a core to itself."""
ENOUGH_ACTORS = 0.9
"""Smaller units on all cores are faster than those on fewer than this share of the cores."""
AGE_PLANNED = 192
"""Largest planned age of rollouts, in optimiser steps between the weights that act and those that learn. Up to this
age scores are at most a third lower with the proximal clip; age 0 is not measured better (docs/lab/rollout-age.md)."""
BATCHES_PLANNED = 10
"""The same in batches, for algorithms that take few steps in one."""
LAG_PLANNED = 0.5
"""Share of the limit on the policy lag that is planned with."""
LAG_OF_QUEUE = 2
"""Batches between a full rollout and the end of the update that learns from it."""
EVEN = 1.1
"""Members train at even speed if none has more than this many times the actors, rows or batch of another."""
FAR_BATCH = 0.25
"""Actors are left out if a batch would differ from what was asked for by more than this share of it."""


@dataclass(frozen=True)
class Size:
    """b and k: see above."""

    envs: int
    rollouts: int

    @property
    def batch_rows(self) -> int:
        """Rows of a batch of one policy."""
        return self.envs * self.rollouts


@dataclass(frozen=True)
class Sizing:
    """What the sizes of units and batches follow from, besides the number of units."""

    batch_rows: float
    """Rows that make a batch of one policy, each with one rollout."""
    max_policy_lag: int
    batch_steps: int
    """Optimiser steps of a batch."""
    slots: int
    """P of the largest pack."""
    seats: int
    """b is a multiple of it."""
    minibatches: int
    envs: int = 0
    """b as the user gives it; 0: planned."""
    on_policy: bool = False
    """Every unit rests until the batch is learned from."""
    per_unit: bool = False
    """The algorithm learns from each rollout alone, or from as few as are young enough."""
    on_gpu: bool = False
    """All learners have one."""
    least_rows: int = LEAST_UNIT_ROWS
    """Of a unit, if cores may be idle for that."""

    @property
    def units_per_rollout(self) -> float:
        """Most units in flight for each rollout of a batch."""
        steps = min(AGE_PLANNED, self.max_policy_lag * LAG_PLANNED)
        return max(1.0, min(steps / self.batch_steps, BATCHES_PLANNED) - LAG_OF_QUEUE)

    @property
    def wanted_envs(self) -> int:
        """Return b of the largest pack, if nothing limits it: few rows if a unit is a batch, for many updates."""
        if self.per_unit:
            return self._seated(MIN_POLICY_ROWS)
        return self._seated(max(MIN_POLICY_ROWS, math.ceil(MIN_UNIT_ROWS / self.slots)))

    def least_rollouts(self, units: int) -> int:
        """Return the smallest k at which rollouts are young enough."""
        return math.ceil(units / self.units_per_rollout - 1e-9)

    def age(self, units: int, rollouts: int) -> tuple[int, int]:
        """Return how old rollouts are when they are learned from, in optimiser steps: at least and at most."""
        if self.on_policy:
            return 0, 0
        full = max(units, 1) / rollouts
        return round(full * self.batch_steps), round((full + LAG_OF_QUEUE) * self.batch_steps)

    def too_old(self, units: int, size: Size) -> bool:
        """Whether rollouts are older than the rule above allows."""
        return not self.on_policy and size.rollouts < self.least_rollouts(units)

    def batch_error(self, size: Size) -> float:
        """Return by which share a batch differs from what was asked for."""
        return 0.0 if self.per_unit else abs(size.batch_rows / self.batch_rows - 1)

    def sizes(self, units: Sequence[int]) -> list[Size]:
        """Choose b and k of packs with this many units each, so that every policy has the same rows."""
        if self.envs:
            return [self._of(n, self.envs) for n in units]
        return min(self._candidates(units), key=self._cost)

    def _candidates(self, units: Sequence[int]) -> Iterator[list[Size]]:
        """Yield what b may be in the pack with most units: from k = U up to what is wanted."""
        most = max(units)
        least = self.batch_rows / most / self.seats
        last = self.wanted_envs // self.seats
        if self.per_unit:
            choice = range(last, last + 1)
        else:
            choice = range(math.floor(least), max(0 if self.on_policy else last, math.ceil(least)) + 1)
        for environments in choice:
            rows = max(1, environments) * self.seats * most
            yield [self._of(n, self._seated(rows / n)) for n in units]

    def _of(self, units: int, envs: int) -> Size:
        young = self.least_rollouts(units)
        if self.per_unit:
            # In the sync modes those that rest must not be left out: one unit or all.
            return Size(envs, units if self.on_policy and young > 1 else young)
        if self.on_policy:
            return Size(envs, units)
        of_batch = max(1, round(self.batch_rows / envs))
        return Size(envs, min(units, of_batch if self.envs else max(young, of_batch)))

    def _cost(self, sizes: Sequence[Size]) -> tuple[float, ...]:
        """Order candidates by what is lost: learning's batch counts twice as much as the efficiency of calls."""
        batches, envs = [size.batch_rows for size in sizes], min(size.envs for size in sizes)
        error = max(map(self.batch_error, sizes))
        return (
            min(batches) < self.minibatches <= self.batch_rows,
            error > FAR_BATCH or self._uneven(batches),
            self.least_rows > LEAST_UNIT_ROWS and self.slots * envs < self.least_rows,
            2 * error
            + max(0.0, math.log(MIN_UNIT_ROWS / (self.slots * envs)))
            + abs(math.log(self.wanted_envs / envs)) / 4,
        )

    def _uneven(self, batches: Sequence[int]) -> bool:
        return not self.per_unit and max(batches) > EVEN * min(batches)

    def _seated(self, envs: float) -> int:
        """Round to environments of `seats` rows, one at least."""
        return max(1, round(envs / self.seats)) * self.seats

    def flaws(self, units: Sequence[int], slots: Sequence[int]) -> tuple[float, ...]:
        """Return what is wrong with this many units in each pack, the worst first; 0 for what is right.

        A batch that is far from what was asked for counts by how far: of rollouts as long as a batch every further unit
        makes it larger.
        """
        sizes = self.sizes(units)
        rows = [size.envs * n for size, n in zip(sizes, units, strict=True)]
        batches = [size.batch_rows for size in sizes]
        least = LEAST_UNIT_ROWS // 2 if self.on_policy else self.least_rows
        thin = min(size.envs * n for size, n in zip(sizes, slots, strict=True)) < least
        error = max(map(self.batch_error, sizes))
        return (
            any(self.too_old(n, size) for n, size in zip(units, sizes, strict=True)),
            not self.envs and max(rows) > EVEN * min(rows),
            self._uneven(batches),
            error if error > FAR_BATCH else 0.0,
            not self.envs and thin,
        )


def share_actors(actors: int, members: Sequence[int]) -> list[int]:
    """Share actors between packs in proportion to their members, at least one each. actors >= len(members)."""
    shares = [1] * len(members)
    by_need = [(1 / own, i) for i, own in enumerate(members)]
    heapq.heapify(by_need)
    for _ in range(actors - len(members)):
        _, neediest = by_need[0]
        shares[neediest] += 1
        heapq.heapreplace(by_need, (shares[neediest] / members[neediest], neediest))
    return shares


def plan_actors(
    sizing: Sizing,
    cores: int,
    wanted: int,
    units_per_actor: int,
    members: Sequence[int],
    slots: Sequence[int],
) -> tuple[Sizing, list[int]]:
    """Choose the actors of each pack, and by which sizing.

    Beside a GPU every core has one, nearly, if units are large so. Else `wanted` leaves each learner a core, unless
    that is a large part of its cores; then smaller units do. members, slots: of each pack.
    """
    if sizing.on_gpu and not sizing.envs:
        most = max(wanted, cores)
        spare = wanted if wanted >= ENOUGH_ACTORS * most else most
        for least, number in ((LEAST_GPU_ROWS, most), (LEAST_SPARE_ROWS, spare)):
            choice = replace(sizing, least_rows=least)
            actors = _most_actors(choice, number, units_per_actor, members, slots)
            sizes = choice.sizes([n * units_per_actor for n in actors])
            rows = min(size.envs * n for size, n in zip(sizes, slots, strict=True))
            if rows >= least and sum(actors) >= ENOUGH_ACTORS * number:
                return choice, actors
    return sizing, _most_actors(sizing, wanted, units_per_actor, members, slots)


def _most_actors(
    sizing: Sizing, wanted: int, units_per_actor: int, members: Sequence[int], slots: Sequence[int]
) -> list[int]:
    """Choose as many actors as wanted in all, or the next number without flaws.

    Fewer, if rollouts would be too old or units too small; more only for packs that would be uneven otherwise.
    """

    def flaws(actors: Sequence[int]) -> tuple[float, ...]:
        speeds = [n / m for n, m in zip(actors, members, strict=True)]
        old, *others = sizing.flaws([n * units_per_actor for n in actors], slots)
        return (old, max(speeds) > EVEN * min(speeds), *others)

    most = sum(members) if len(members) > 1 else wanted
    best: list[int] = []
    fewest_flaws: tuple[float, ...] | None = None
    for total in (*range(wanted, len(members) - 1, -1), *range(wanted + 1, most + 1)):
        actors = share_actors(total, members)
        own = flaws(actors)
        if not any(own):
            return actors
        if fewest_flaws is None or own < fewest_flaws:
            best, fewest_flaws = actors, own
    return best
