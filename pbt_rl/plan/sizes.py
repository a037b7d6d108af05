"""Sizes of vector envs and batches, and number of actors per learner.

Symbols: U vector envs, b rows of a policy per vector env, k rollouts per batch, P policies, S optimiser steps per batch
(epochs * minibatches). Here, a rollout contains the rollouts of all rows of a vector env.

The sizes limit the rollout age (the optimiser steps between acting and learning, like the policy lag of Sample
Factory). While one of the U vector envs fills a rollout, each of the others fills a rollout, too. These U rollouts are
U / k batches. Before it learns from the rollout, the learner possibly learns from two further batches: a batch in
progress, and a batch that waits. Planned sizes satisfy these conditions, unless the user has set b:

    (U / k + 2) * S <= min(AGE_PLANNED, --learner.max-policy-lag / 2)    and    U / k + 2 <= BATCHES_PLANNED

Half of --learner.max-policy-lag is a reserve for delays. U = k is always allowed. Therefore, the size of the batch
limits the number of rows: on a machine with many cores, vector envs are small or some cores have no actor. In the modes
sync and serial, k = U, because all vector envs wait during an update. Exception: for an algorithm with one optimiser
step per vector env, k can be 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MIN_VECTOR_ENV_ROWS = 32
"""Target number of rows of a vector env. With fewer rows, the overhead of calls is too large: on Atari, 32 rows were
9 % faster than 16 rows."""
MIN_POLICY_ROWS = 8
"""Target number of rows of one policy. With fewer rows, a forward pass does not fill the CPU's SIMD units."""
LEAST_VECTOR_ENV_ROWS = 4
"""Minimum rows of a vector env in async mode, used if rollouts with MIN_VECTOR_ENV_ROWS are older than planned. Vector
envs have fewer rows only if every plan has flaws, or if the user has set the rows.

With fewer rows, the overhead of calls dominates: CartPole took 9 us per row with 32 rows, 14 us with 4 rows, and 20 us
with 2 rows. Atari hardly differs. In the modes sync and serial, the minimum is half of this number, because cores are
idle during an update."""
LEAST_GPU_ROWS = 16
"""Minimum rows of a vector env with a GPU, if each core has an actor.

While one vector env of an actor waits for an inference batch, the other vector env must keep the actor busy. With an
actor on each core, this wait is longer, because threads wake up late (docs/lab/speed.md)."""
LEAST_SPARE_ROWS = 8
"""Minimum rows of a vector env with a GPU, if each learner has a free core."""
ENOUGH_ACTORS = 0.9
"""Minimum fraction of cores that have an actor. Below this fraction, smaller vector envs on all cores are faster."""
AGE_PLANNED = 192
"""Maximum planned rollout age in optimiser steps.

On HalfCheetah with --learner.proximal, a rollout age up to this number costs at most a third of the score
(docs/lab/rollout-age.md)."""
BATCHES_PLANNED = 10
"""Maximum planned rollout age in batches. This limit matters for algorithms with few optimiser steps per batch."""
LAG_PLANNED = 0.5
"""Fraction of --learner.max-policy-lag that the plan uses."""
LAG_OF_QUEUE = 2
"""Maximum number of other batches from the end of a rollout to the start of the update that learns from it."""
EVEN = 1.1
"""Maximum ratio between two members' numbers of actors, rows or steps per batch. With a larger ratio, members train at
different speeds."""
FAR_BATCH = 0.25
"""Maximum relative difference between planned and requested batch. To avoid a larger difference, the plan has fewer
actors."""


@dataclass(frozen=True)
class Size:
    """Planned sizes. envs: b, the rows of a policy per vector env. rollouts: k, the rollouts per batch."""

    envs: int
    rollouts: int

    @property
    def batch_rows(self) -> int:
        """Number of rows of a policy in a batch."""
        return self.envs * self.rollouts


class Flaws(NamedTuple):
    """Flaws of planned sizes, most severe first. False or 0: the plan does not have the flaw.

    If the user has set the rows of a policy per vector env, the fields `undivided`, `uneven_rows` and `thin` are always
    False.
    """

    old: bool
    """Rollouts are older than the formula in the module docstring allows."""
    undivided: bool
    """The planned batch has fewer rows than minibatches, although the requested batch has enough."""
    far: float
    """Relative difference between planned and requested batch if it exceeds FAR_BATCH, else 0."""
    uneven_batches: bool
    """Batch sizes of policies differ by more than EVEN."""
    uneven_rows: bool
    """Numbers of rows of policies differ by more than EVEN."""
    thin: bool
    """A vector env has fewer rows than the minimum."""


def uneven(numbers: Sequence[float]) -> bool:
    """Check whether the largest number is more than EVEN times the smallest number."""
    return max(numbers) > EVEN * min(numbers)


@dataclass(frozen=True)
class Sizing:
    """Inputs for planning the sizes of vector envs and batches.

    Symbols: U vector envs, b rows of a policy per vector env, k rollouts per batch.
    """

    batch_rows: float
    """Requested number of rows of a policy in a batch."""
    max_policy_lag: int
    """--learner.max-policy-lag, in optimiser steps."""
    batch_steps: int
    """S: optimiser steps per batch."""
    slots: int
    """P: number of policies in the largest pack."""
    agents: int
    """Number of agents per environment. b is a multiple of this number."""
    minibatches: int
    """Number of minibatches per batch."""
    least_rows: int
    """Minimum rows of a vector env. A plan with idle cores is preferred to a plan with fewer rows."""
    envs: int = 0
    """b, if the user has set it. 0: the plan chooses b."""
    on_policy: bool = False
    """True in the modes sync and serial, where all vector envs wait during an update."""
    per_vector_env: bool = False
    """True if the algorithm takes one optimiser step per rollout of a vector env. Then k is 1. k is larger if rollouts
    would be older than planned with k = 1."""
    on_gpu: bool = False
    """True if all learners have a GPU."""

    @property
    def vector_envs_per_rollout(self) -> float:
        """Largest U / k (vector envs / rollouts per batch) with which rollouts are not older than planned."""
        steps = min(AGE_PLANNED, self.max_policy_lag * LAG_PLANNED)
        return max(1.0, min(steps / self.batch_steps, BATCHES_PLANNED) - LAG_OF_QUEUE)

    @property
    def wanted_envs(self) -> int:
        """Target number of rows of a policy per vector env (b), in the largest pack.

        With `per_vector_env`, the target is small, because updates are then frequent.
        """
        if self.per_vector_env:
            return self._whole_environments(MIN_POLICY_ROWS)
        return self._whole_environments(max(MIN_POLICY_ROWS, math.ceil(MIN_VECTOR_ENV_ROWS / self.slots)))

    def least_rollouts(self, vector_envs: int) -> int:
        """Return the smallest number of rollouts per batch (k) with which rollouts are not older than planned."""
        return math.ceil(vector_envs / self.vector_envs_per_rollout - 1e-9)

    def age(self, vector_envs: int, rollouts: int) -> tuple[int, int]:
        """Return the planned minimum and maximum rollout age, in optimiser steps.

        rollouts: rollouts per batch (k). With `on_policy` and k = `vector_envs`: 0, 0. With a smaller k, a rollout
        waits for the batches of the other vector envs.
        """
        full = max(vector_envs, 1) / rollouts
        if self.on_policy:
            return 0, round(full * self.batch_steps) if rollouts < vector_envs else 0
        return round(full * self.batch_steps), round((full + LAG_OF_QUEUE) * self.batch_steps)

    def batch_error(self, size: Size) -> float:
        """Return the relative difference between planned and requested batch. 0 with `per_vector_env`."""
        return 0.0 if self.per_vector_env else abs(size.batch_rows / self.batch_rows - 1)

    def sizes(self, vector_envs: Sequence[int], slots: Sequence[int]) -> tuple[Flaws, list[Size]]:
        """Choose the sizes b and k of each pack, with about equal rows for all policies. Return the flaws and sizes.

        If the user has set b, only k is chosen. vector_envs, slots: number of vector envs and of slots of each pack.
        """
        if self.envs:
            sizes = [self._of(n, self.envs) for n in vector_envs]
            return self._flaws(vector_envs, slots, sizes), sizes
        found = ((self._flaws(vector_envs, slots, sizes), sizes) for sizes in self._candidates(vector_envs))
        return min(found, key=lambda one: (one[0], self._cost(one[1])))

    def _candidates(self, vector_envs: Sequence[int]) -> Iterator[list[Size]]:
        """Yield candidates: the sizes of each pack. vector_envs: number of vector envs (U) of each pack.

        The candidates differ in b, the rows of a policy per vector env. In the pack with most vector envs, b ranges
        from `batch_rows` / U (then k = U) to the target `wanted_envs`. With `per_vector_env`, b is only the target.
        With `on_policy`, b is only `batch_rows` / U, rounded down or up.
        """
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
            # In the modes sync and serial, k is 1 or U. With other k, some waiting vector envs would be in no batch.
            return Size(envs, vector_envs if self.on_policy and young > 1 else young)
        if self.on_policy:
            return Size(envs, vector_envs)
        of_batch = max(1, round(self.batch_rows / envs))
        return Size(envs, min(vector_envs, of_batch if self.envs else max(young, of_batch)))

    def _cost(self, sizes: Sequence[Size]) -> float:
        """Return the cost of sizes, which ranks sizes with equal flaws.

        Weights of the terms: 2 for the batch error, 1 for few rows in a vector env, 1/4 for the distance of b (rows of
        a policy per vector env) from its target.
        """
        envs = min(size.envs for size in sizes)
        small = max(0.0, math.log(MIN_VECTOR_ENV_ROWS / (self.slots * envs)))
        return 2 * max(map(self.batch_error, sizes)) + small + abs(math.log(self.wanted_envs / envs)) / 4

    def _whole_environments(self, envs: float) -> int:
        """Round `envs`, a number of rows, to the nearest multiple of `agents`, at least `agents`. Return rows."""
        return max(1, round(envs / self.agents)) * self.agents

    def _flaws(self, vector_envs: Sequence[int], slots: Sequence[int], sizes: Sequence[Size]) -> Flaws:
        """Return the flaws of sizes. vector_envs, slots: number of vector envs and of slots of each pack."""
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
    """Divide actors among packs in proportion to their members, with at least one actor for each pack.

    Return the number of actors of each pack.
    actors: number of actors, at least the number of packs. members: number of members of each pack.
    """
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
    """Choose the sizing, and the number of actors of each pack.

    With GPUs, the first possible plan of this list is used, unless the user has set the rows:

    1. All cores have an actor, and vector envs have at least LEAST_GPU_ROWS rows.
    2. One core per learner has no actor, and vector envs have at least LEAST_SPARE_ROWS rows. If these cores are more
       than a tenth of all cores, they have actors, too.
    3. One core per learner has no actor, and vector envs can be smaller than in plans 1 and 2.

    Plans 1 and 2 can lack up to a tenth of their actors. Without GPUs, the plan has about `wanted` actors.

    cores: number of cores for actors and learners. wanted: preferred number of actors. With GPUs, this number leaves
    one core without an actor to each learner.
    members, slots: number of members and number of slots of each pack.
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
    """Divide actors among packs, and return the number of actors of each pack.

    The total is `wanted`. If the plan with `wanted` actors has flaws, other totals are tried. Smaller totals are tried
    first, because with `wanted` actors rollouts are possibly too old or vector envs too small. Larger totals are tried
    next, because packs then possibly have equal numbers of actors per member.
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
