"""Sizes of vector envs and batches, and number of actors per learner, for any machine.

While a vector env fills a rollout, each other one delivers one too. With U vector envs and k rollouts per batch, a
full rollout is U / k batches old. It is up to two batches older when it is learned from, because one batch may be
waiting and one in progress. Rollout age is measured in optimiser steps, like the policy lag of Sample Factory. S is
the number of optimiser steps per batch (epochs * minibatches). The planned age is harmless, and half of the limit on
the policy lag is a reserve for unforeseen delays:

    (U / k + 2) * S <= min(AGE_PLANNED, --learner.max-policy-lag / 2)    and    U / k + 2 <= BATCHES_PLANNED

U = k is always allowed. So the batch bounds the rows in flight. On a machine with many cores, vector envs are small or
some cores have no actor. In the sync modes all vector envs wait while a batch is learned from: k = U.

Rows here are those of one policy: U vector envs, b of its rows in each, k rollouts in its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MIN_VECTOR_ENV_ROWS = 32
"""Target rows of a vector env. With fewer rows its calls cost too much (on Atari 32 rows were 9 % faster than 16)."""
MIN_POLICY_ROWS = 8
"""Target rows of one policy. With fewer rows a forward pass wastes the CPU's SIMD units."""
LEAST_VECTOR_ENV_ROWS = 4
"""Minimum rows of a vector env if rollouts would be too old with MIN_VECTOR_ENV_ROWS.

With fewer rows calls cost more than rows: CartPole took 9 us per row with 32, 14 with 4, 20 with 2. Atari hardly
differs. In the sync modes the minimum is half, because cores are idle there."""
LEAST_GPU_ROWS = 16
"""The same minimum with a GPU, where each core has an actor.

While one vector env of an actor waits for an inference batch, the other one must keep it busy. Wake-ups are late if all
cores are busy (docs/lab/speed.md)."""
LEAST_SPARE_ROWS = 8
"""The same minimum if each learner has a core to itself."""
ENOUGH_ACTORS = 0.9
"""Fraction of the cores below which smaller vector envs on all cores are faster."""
AGE_PLANNED = 192
"""Planned maximum of optimiser steps between the acting and the learning weights.

Up to this age scores are at most a third lower with the proximal clip; age 0 is not measured better
(docs/lab/rollout-age.md)."""
BATCHES_PLANNED = 10
"""The same maximum in batches, for algorithms with few optimiser steps per batch."""
LAG_PLANNED = 0.5
"""Fraction of the limit on the policy lag that the plan uses."""
LAG_OF_QUEUE = 2
"""Batches between a full rollout and the end of the update that learns from it."""
EVEN = 1.1
"""Maximum ratio of actors, rows or batches between two members for even training speed."""
FAR_BATCH = 0.25
"""Maximum relative difference between planned and requested batch. Beyond it, fewer actors are planned."""


@dataclass(frozen=True)
class Size:
    """b (rows of a policy per vector env) and k (rollouts per batch): see the module."""

    envs: int
    rollouts: int

    @property
    def batch_rows(self) -> int:
        """Rows per policy in a batch."""
        return self.envs * self.rollouts


class Flaws(NamedTuple):
    """Flaws of a division into vector envs and batches, most severe first. 0: none."""

    old: bool
    """Rollouts are older than the module's rule allows."""
    undivided: bool
    """The batch has fewer rollouts than minibatches, although the requested one has not."""
    far: float
    """Difference to the requested batch if it is large. With rollouts as long as a batch, each further vector env
    increases it."""
    uneven_batches: bool
    uneven_rows: bool
    """Policies have different numbers of environments."""
    thin: bool
    """Vector envs have fewer rows than the minimum."""


def uneven(numbers: Sequence[float]) -> bool:
    """Check whether members with these numbers train at different speeds."""
    return max(numbers) > EVEN * min(numbers)


@dataclass(frozen=True)
class Sizing:
    """Inputs for the sizes of vector envs and batches."""

    batch_rows: float
    """Requested rows per policy in a batch, one rollout each."""
    max_policy_lag: int
    batch_steps: int
    """Optimiser steps per batch."""
    slots: int
    """P of the largest pack."""
    agents: int
    """Agents per environment. b is a multiple of it."""
    minibatches: int
    least_rows: int
    """Minimum rows of a vector env, even if cores are idle for it."""
    envs: int = 0
    """b if the user sets it. 0: planned."""
    on_policy: bool = False
    """All vector envs wait until the batch is learned from."""
    per_vector_env: bool = False
    """The algorithm learns from single rollouts, or from as few as keep rollouts young enough."""
    on_gpu: bool = False
    """All learners have a GPU."""

    @property
    def vector_envs_per_rollout(self) -> float:
        """Maximum of vector envs in flight per rollout in a batch."""
        steps = min(AGE_PLANNED, self.max_policy_lag * LAG_PLANNED)
        return max(1.0, min(steps / self.batch_steps, BATCHES_PLANNED) - LAG_OF_QUEUE)

    @property
    def wanted_envs(self) -> int:
        """Target b of the largest pack. It is small if each rollout is a batch, for frequent updates."""
        if self.per_vector_env:
            return self._whole_environments(MIN_POLICY_ROWS)
        return self._whole_environments(max(MIN_POLICY_ROWS, math.ceil(MIN_VECTOR_ENV_ROWS / self.slots)))

    def least_rollouts(self, vector_envs: int) -> int:
        """Return the smallest k for which rollouts are young enough."""
        return math.ceil(vector_envs / self.vector_envs_per_rollout - 1e-9)

    def age(self, vector_envs: int, rollouts: int) -> tuple[int, int]:
        """Return the (minimum, maximum) rollout age in optimiser steps."""
        if self.on_policy:
            return 0, 0
        full = max(vector_envs, 1) / rollouts
        return round(full * self.batch_steps), round((full + LAG_OF_QUEUE) * self.batch_steps)

    def batch_error(self, size: Size) -> float:
        """Return the relative difference between planned and requested batch."""
        return 0.0 if self.per_vector_env else abs(size.batch_rows / self.batch_rows - 1)

    def sizes(self, vector_envs: Sequence[int], slots: Sequence[int]) -> tuple[Flaws, list[Size]]:
        """Choose b and k per pack, with equal rows for each policy. vector_envs: vector envs per pack."""
        if self.envs:
            sizes = [self._of(n, self.envs) for n in vector_envs]
            return self._flaws(vector_envs, slots, sizes), sizes
        found = ((self._flaws(vector_envs, slots, sizes), sizes) for sizes in self._candidates(vector_envs))
        return min(found, key=lambda one: (one[0], self._cost(one[1])))

    def _candidates(self, vector_envs: Sequence[int]) -> Iterator[list[Size]]:
        """Yield candidate sizes. In the pack with most vector envs, b ranges from k = U to the target."""
        most = max(vector_envs)
        least = self.batch_rows / most / self.agents
        last = self.wanted_envs // self.agents
        if self.per_vector_env:
            choice = range(last, last + 1)
        else:
            choice = range(math.floor(least), max(0 if self.on_policy else last, math.ceil(least)) + 1)
        for environments in choice:
            rows = max(1, environments) * self.agents * most
            yield [self._of(n, self._whole_environments(rows / n)) for n in vector_envs]

    def _of(self, vector_envs: int, envs: int) -> Size:
        young = self.least_rollouts(vector_envs)
        if self.per_vector_env:
            # In the sync modes k is 1 or U, because no waiting vector env may be left out of the batch.
            return Size(envs, vector_envs if self.on_policy and young > 1 else young)
        if self.on_policy:
            return Size(envs, vector_envs)
        of_batch = max(1, round(self.batch_rows / envs))
        return Size(envs, min(vector_envs, of_batch if self.envs else max(young, of_batch)))

    def _cost(self, sizes: Sequence[Size]) -> float:
        """Rate sizes without flaws. An error of the batch counts twice as much as inefficient calls."""
        envs = min(size.envs for size in sizes)
        small = max(0.0, math.log(MIN_VECTOR_ENV_ROWS / (self.slots * envs)))
        return 2 * max(map(self.batch_error, sizes)) + small + abs(math.log(self.wanted_envs / envs)) / 4

    def _whole_environments(self, envs: float) -> int:
        """Round to whole environments of `agents` rows, at least one."""
        return max(1, round(envs / self.agents)) * self.agents

    def _flaws(self, vector_envs: Sequence[int], slots: Sequence[int], sizes: Sequence[Size]) -> Flaws:
        """Rate the sizes of packs with these vector envs and slots."""
        rows = [size.envs * n for size, n in zip(sizes, vector_envs, strict=True)]
        batches = [size.batch_rows for size in sizes]
        error = max(map(self.batch_error, sizes))
        young = self.on_policy or all(
            size.rollouts >= self.least_rollouts(n) for n, size in zip(vector_envs, sizes, strict=True)
        )
        return Flaws(
            old=not young,
            undivided=not self.envs and min(batches) < self.minibatches <= self.batch_rows,
            far=error if error > FAR_BATCH else 0.0,
            uneven_batches=not self.per_vector_env and uneven(batches),
            uneven_rows=not self.envs and uneven(rows),
            thin=not self.envs
            and min(size.envs * n for size, n in zip(sizes, slots, strict=True)) < self.least_rows,
        )


def share_actors(actors: int, members: Sequence[int]) -> list[int]:
    """Divide actors among packs in proportion to their members, at least one each. actors >= len(members)."""
    shares = [1] * len(members)
    for _ in range(actors - len(members)):
        shares[min(range(len(members)), key=lambda pack: shares[pack] / members[pack])] += 1
    return shares


def plan_actors(
    sizing: Sizing,
    cores: int,
    wanted: int,
    vector_envs_per_actor: int,
    members: Sequence[int],
    slots: Sequence[int],
) -> tuple[Sizing, list[int]]:
    """Choose the sizing and the actors per pack. members, slots: per pack.

    With a GPU, nearly each core has an actor if vector envs are then large enough. Otherwise `wanted` leaves a core to
    each learner. If that core is a large fraction of all, each core has an actor with smaller vector envs.
    """
    if sizing.on_gpu and not sizing.envs:
        most = max(wanted, cores)
        spare = wanted if wanted >= ENOUGH_ACTORS * most else most
        for least, number in ((LEAST_GPU_ROWS, most), (LEAST_SPARE_ROWS, spare)):
            choice = replace(sizing, least_rows=least)
            actors = _most_actors(choice, number, vector_envs_per_actor, members, slots)
            flaws, _ = choice.sizes([n * vector_envs_per_actor for n in actors], slots)
            if not (flaws.thin or flaws.far) and sum(actors) >= ENOUGH_ACTORS * number:
                return choice, actors
    return sizing, _most_actors(sizing, wanted, vector_envs_per_actor, members, slots)


def _most_actors(
    sizing: Sizing, wanted: int, vector_envs_per_actor: int, members: Sequence[int], slots: Sequence[int]
) -> list[int]:
    """Choose `wanted` actors in total, or the nearest number without flaws.

    There are fewer if rollouts would be too old or vector envs too small. There are more only to make packs even.
    """
    most = sum(members) if len(members) > 1 else wanted
    found: list[tuple[tuple[float, ...], list[int]]] = []
    for total in (*range(wanted, len(members) - 1, -1), *range(wanted + 1, most + 1)):
        actors = share_actors(total, members)
        flaws, _ = sizing.sizes([n * vector_envs_per_actor for n in actors], slots)
        unequal = uneven([n / own for n, own in zip(actors, members, strict=True)])
        if not any(flaws) and not unequal:
            return actors
        found.append(((flaws.old, unequal, *flaws), actors))
    return min(found, key=lambda one: one[0])[1]
