"""Shared memory of a run, setups of the processes, and the initial state (new or restored).

Axes: U vector envs of a pack, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.actor import ActorSetup
from pbt_rl.actors.mailbox import ACTIONS, BUSY_NS, Mailbox
from pbt_rl.actors.messages import Load
from pbt_rl.actors.shared_tables import MatchupTable, ShapingTable
from pbt_rl.actors.state_pool import ArrayLayout, Counts, StatePool, anonymous_memory, layout_of
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.learner.build import CpuInitialiser, LearnerSetup, lone_pack, net_names
from pbt_rl.learner.continuation import shaping_versions
from pbt_rl.plan import Plan
from pbt_rl.population.store import Store
from pbt_rl.processes.polling import Heartbeat
from pbt_rl.record.checkpoints import NetNames
from pbt_rl.run.resolved import ResolvedRun


@dataclass(frozen=True)
class Start:
    """Initial state of a run or of a new learner: content of the slots, and states of processes."""

    slots: Sequence[tuple[Load | None, ...]]
    """Per pack: the member that the learner loads into each slot. None: an empty slot."""
    unheld_values: Values
    """Placeholder values of empty slots."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Per pack: saved state of the learner. Empty if nothing was saved or the plan has changed."""
    vector_envs: Sequence[Any] = ()
    """Per actor: saved states of its vector envs. Empty if there are no saved states."""
    resumes: int = 0
    """Number of resumes of the run. The seeds of processes depend on this number."""
    renewals: int = 0
    """Number of earlier node workers of the pack. The seeds of processes depend on this number."""
    seconds: float = 0.0
    """Seconds of training before this start."""
    seeds_before: int = 0
    """Number of seeds to skip: the seeds of the packs with lower numbers, which are on other machines."""

    @classmethod
    def fresh(cls, plan: Plan, values: Sequence[Values]) -> Start:
        """Return the start of a new run: the first members of each pack have slots and initialised weights.

        values: initial values of all members.
        """
        return cls(
            [
                tuple(
                    Load(slot, member, 0, dict(values[member]), initialised=(member, 0), counts=Counts())
                    for slot, member in enumerate(pack.members[: pack.slots])
                )
                for pack in plan.packs
            ],
            values[0],
        )


Matchups = Sequence[NDArray[np.int64]]
"""Per pack: row of each agent in the initial matchups, [U, E, S] (vector env, environment, agent). Empty if
environments have one agent."""


@dataclass
class ActorRecord:
    """Setup and mailboxes of an actor, with its counts of restarts and actions. The record outlives the process."""

    pack: int
    setup: ActorSetup
    boxes: list[Mailbox]
    restarts: int = 0
    given: int = 0
    """Number of vector env steps for which the actor received actions from earlier learners."""


@dataclass(frozen=True)
class PackMemory:
    """Descriptors of memory and of an eventfd that a learner shares with its actors and the supervisor.

    ready_fd: eventfd by which actors wake the learner.
    """

    shaping_fd: int
    heartbeat_fd: int
    ready_fd: int
    matchup: Any
    """Table of matchups. None if environments have one agent."""


class Memory:
    """Mailboxes, tables of shaping and matchups, eventfds, and the setups of learners and actors.

    pool: pool of states. None: create a pool, which `close` closes.
    """

    def __init__(
        self, resolved: ResolvedRun, start: Start, matchups: Matchups = (), pool: StatePool | None = None
    ) -> None:
        self._resolved, self._start = resolved, start
        self._fds: list[int] = []
        self._own_pool = (
            None if pool is not None else StatePool(member_layout(resolved, start.unheld_values)[0])
        )
        self.pool = pool or self._own_pool
        self.actors: list[ActorRecord] = []
        self.learners: list[LearnerSetup] = []
        packs = resolved.plan.packs
        self.heartbeats: list[Heartbeat] = []
        self._renewals = 0
        self._packs = [
            self._pack_memory(number, matchups[number] if matchups else None) for number in range(len(packs))
        ]
        config = resolved.config
        counts = (
            [start.resumes, start.renewals] if start.renewals else [start.resumes] if start.resumes else []
        )
        seeds = np.random.SeedSequence([config.seed, *counts] if counts else config.seed)
        seeds.spawn(start.seeds_before)
        for number, pack in enumerate(packs):
            learner_seed, *actor_seeds = seeds.spawn(1 + pack.actors)
            actors = [self._actor(number, index, seed) for index, seed in enumerate(actor_seeds)]
            self.actors += actors
            self.learners.append(self._learner(number, actors, learner_seed, start))

    def _own(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _eventfd(self) -> int:
        return self._own(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def _pack_memory(self, number: int, row_UES: NDArray[np.int64] | None) -> PackMemory:
        """Allocate the shared memory of a pack. `_fill_shaping` writes the shaping table."""
        pack, names = self._resolved.plan.packs[number], tuple(self._resolved.spec.shaping)
        shaping_fd = self._own(anonymous_memory(ShapingTable.size(names, pack.slots), "shaping"))
        heartbeat_fd = self._own(anonymous_memory(Heartbeat.SIZE, "heartbeat"))
        self.heartbeats.append(Heartbeat(heartbeat_fd))
        matchup = None
        if row_UES is not None:
            size = MatchupTable.size(row_UES.shape)
            matchup = MatchupTable.map(row_UES.shape, self._own(anonymous_memory(size, "matchup")))
            matchup.write(row_UES)
        return PackMemory(shaping_fd, heartbeat_fd, self._eventfd(), matchup)

    def _fill_shaping(self, number: int, start: Start) -> None:
        """Write the initial shaping and frames of a pack's slots.

        The shaping versions must equal the learner's, because actors start episodes before the learner is ready.
        """
        names, loads = tuple(self._resolved.spec.shaping), start.slots[number]
        shaping = ShapingTable.map(
            names, self._resolved.plan.packs[number].slots, self._packs[number].shaping_fd
        )
        slot_members = [None if load is None else load.member for load in loads]
        versions = shaping_versions(start.learners[number] if start.learners else {}, slot_members)
        shaping.guard[:] = 0  # the guard is odd if a learner was killed during a write
        shaping.budget_frames[:] = self._resolved.config.full_frames
        for slot, load in enumerate(loads):
            values = start.unheld_values if load is None else load.values
            shaping.write(slot, versions[slot], {name: values[SHAPING + name] for name in names})
            shaping.frames[slot] = 0 if load is None else load.counts.frames

    def _actor(self, number: int, index: int, seed: np.random.SeedSequence) -> ActorRecord:
        """Create the mailboxes and the setup of an actor.

        number: index of the pack (policies of one device). index: index of the actor in this pack.
        """
        config, spec, pack = self._resolved.config, self._resolved.spec, self._resolved.plan.packs[number]
        shared, vector_envs = self._packs[number], pack.vector_envs_per_actor
        boxes = [Mailbox.create(spec, pack.rows, f"mailbox-{number}-{index}") for _ in range(vector_envs)]
        self._fds += [box.fd for box in boxes]
        first_vector_env = index * vector_envs
        setup = ActorSetup(
            spec=spec,
            options=self._resolved.options,
            policies=pack.slots,
            envs_per_policy=pack.envs_per_policy,
            seeds=tuple(int(x) for x in seed.generate_state(vector_envs)),
            mailbox_fds=tuple(box.fd for box in boxes),
            shaping_fd=shared.shaping_fd,
            wake_fd=self._eventfd(),
            ready_fd=shared.ready_fd,
            spread_phases=config.random_phases,
            matchup_fd=-1 if shared.matchup is None else shared.matchup.fd,
            matchup_shape=(0, 0, 0) if shared.matchup is None else shared.matchup.shape,
            first_vector_env=first_vector_env,
            first_row=sum(p.vector_envs * p.rows for p in self._resolved.plan.packs[:number])
            + first_vector_env * pack.rows,
            saved=tuple(self._start.vector_envs[len(self.actors) + index]) if self._start.vector_envs else (),
            lazy=config.mode == "async",
        )
        return ActorRecord(number, setup, boxes)

    def begin_anew(self, number: int, start: Start) -> None:
        """Reset the mailboxes and the shaping of a pack for new processes. Call this after the old ones have ended."""
        self._renewals += 1
        actors = [record for record in self.actors if record.pack == number]
        for record in actors:
            record.given += sum(int(box.header[ACTIONS]) for box in record.boxes)
            for box in record.boxes:
                box.begin_anew()
        seed = np.random.SeedSequence([self._resolved.config.seed, start.resumes, self._renewals, number])
        self.learners[number] = self._learner(number, actors, seed, start)

    def _learner(
        self, number: int, actors: Sequence[ActorRecord], seed: np.random.SeedSequence, start: Start
    ) -> LearnerSetup:
        pack, shared = self._resolved.plan.packs[number], self._packs[number]
        self._fill_shaping(number, start)
        assert self.pool is not None
        return LearnerSetup(
            config=self._resolved.config,
            spec=self._resolved.spec,
            plan=pack,
            seed=int(seed.generate_state(1)[0]),
            slots=tuple(start.slots[number]),
            unheld_values=start.unheld_values,
            mailbox_fds=tuple(fd for actor in actors for fd in actor.setup.mailbox_fds),
            wake_fds=tuple(actor.setup.wake_fd for actor in actors for _ in actor.boxes),
            ready_fd=shared.ready_fd,
            shaping_fd=shared.shaping_fd,
            layout=self.pool.layout,
            pool_fd=self.pool.fd,
            heartbeat_fd=shared.heartbeat_fd,
            full_frames=self._resolved.config.full_frames,
            schedule_frames=self._resolved.config.schedule_frames,
            continued=(start.learners[number] or None) if start.learners else None,
            seconds=start.seconds,
        )

    def environment_seconds(self) -> float:
        """Return the CPU-seconds of all environments in actors since the start of the fleet."""
        return sum(int(box.header[BUSY_NS]) for record in self.actors for box in record.boxes) / 1e9

    def actions_given(self, actor: int) -> int:
        """Return the number of vector env steps for which an actor received actions."""
        record = self.actors[actor]
        return record.given + sum(int(box.header[ACTIONS]) for box in record.boxes)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        table = self._packs[pack].matchup
        assert table is not None, "environments of one agent have no matchups"
        version: int = table.write(row_UES)
        return version

    def close(self) -> None:
        """Close all descriptors. Memory is freed with its last mapping. Safe to call twice."""
        if self._own_pool is not None:
            self._own_pool.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def member_layout(resolved: ResolvedRun, values: Values) -> tuple[ArrayLayout, NetNames]:
    """Return the layout of a member's arrays, and the positions of the parameters in the member's flat vector.

    values: hyperparameters of a member. All members have the same layout. The function builds a pack of one policy, and
    raises the errors of an invalid network.
    """
    pack = lone_pack(resolved.config, resolved.spec, resolved.plan.packs[0], values)
    arrays = {name: x.numpy() for name, x in pack.export_member(0).items()}
    return layout_of(arrays), net_names(pack)


def make_store(resolved: ResolvedRun, values: Values) -> tuple[Store, StatePool, NetNames]:
    """Create the store. Return the store, its pool, and the positions of the parameters in a member's flat vector.

    values: hyperparameters of a member.
    """
    layout, names = member_layout(resolved, values)
    pool = StatePool(layout)
    initialiser = CpuInitialiser(resolved.config, resolved.spec, resolved.plan.packs[0], values)
    return Store(pool, initialiser), pool, names
