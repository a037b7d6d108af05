"""All shared memory of a run, the setups of the processes that use it, and where they begin: fresh, or saved."""

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
from pbt_rl.actors.store import ArrayLayout, Counts, StatePool, anonymous_memory, layout_of
from pbt_rl.actors.tables import MatchupTable, ShapingTable
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.learner.build import Drawing, LearnerSetup, lone_pack, net_names
from pbt_rl.learner.continuation import shaping_versions
from pbt_rl.plan import Plan
from pbt_rl.population.store import Store
from pbt_rl.processes.polling import Heartbeat
from pbt_rl.record.checkpoints import NetNames
from pbt_rl.run.resolved import ResolvedRun


@dataclass(frozen=True)
class Start:
    """What the slots hold, and what each process continues from."""

    slots: Sequence[tuple[Load | None, ...]]
    """Of each pack: what its learner loads, from the pool."""
    unheld_values: Values
    """What a slot without a member is built with."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Of each pack, what its learner continues from; none if the plan is another one."""
    units: Sequence[Any] = ()
    """State of the environments of every unit, actor by actor; none if they cannot be saved."""
    resumes: int = 0
    """How often the run was resumed: the seeds of processes differ each time."""
    renewals: int = 0
    """How often the processes were started anew on another machine: their seeds differ each time."""
    seconds: float = 0.0
    """Seconds of training before."""
    seeds_before: int = 0
    """Seeds that the processes of packs on other machines take before those of this one."""

    @classmethod
    def fresh(cls, plan: Plan, values: Sequence[Values]) -> Start:
        """Begin anew: the first members of each pack hold its slots, with drawn weights. values: of every member."""
        return cls(
            [
                tuple(
                    Load(slot, member, 0, dict(values[member]), drawn=(member, 0), counts=Counts())
                    for slot, member in enumerate(pack.members[: pack.slots])
                )
                for pack in plan.packs
            ],
            values[0],
        )


Matchups = Sequence[NDArray[np.int64]]
"""[U, E, S] rows for each pack, as the run begins; empty if environments have one seat."""


@dataclass
class ActorRecord:
    """The part of an actor that outlives its process."""

    pack: int
    setup: ActorSetup
    boxes: list[Mailbox]
    restarts: int = 0
    given: int = 0
    """Actions that its units were given by learners which are gone."""


@dataclass(frozen=True)
class PackMemory:
    """Descriptors that the learner of a pack shares with its actors."""

    shaping_fd: int
    heartbeat_fd: int
    ready_fd: int
    matchup: Any
    """The table of matchups; None if environments have one seat."""


class Memory:
    """Mailboxes, tables of shaping and matchups, eventfds, and the setups that name them.

    pool: of states; one of its own, if left out.
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
        """Of the learner of each pack."""
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
        """Make the tables of a pack; `_learner` fills that of the shaping."""
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
        """Write the shaping and the frames of the members that hold a pack's slots at the start.

        Actors are there before their learner is: the episodes that begin meanwhile must be of a version that it knows.
        """
        names, loads = tuple(self._resolved.spec.shaping), start.slots[number]
        shaping = ShapingTable.map(
            names, self._resolved.plan.packs[number].slots, self._packs[number].shaping_fd
        )
        holders = [None if load is None else load.member for load in loads]
        versions = shaping_versions(start.learners[number] if start.learners else {}, holders)
        shaping.guard[:] = 0  # a learner that was killed while it wrote has left an odd one
        shaping.budget_frames[:] = self._resolved.config.train_for_frames
        for slot, load in enumerate(loads):
            values = start.unheld_values if load is None else load.values
            shaping.write(slot, versions[slot], {name: values[SHAPING + name] for name in names})
            shaping.frames[slot] = 0 if load is None else load.counts.frames

    def _actor(self, number: int, index: int, seed: np.random.SeedSequence) -> ActorRecord:
        """Make the mailboxes of an actor. number, index: of the pack, and of the actor among the pack's."""
        config, spec, pack = self._resolved.config, self._resolved.spec, self._resolved.plan.packs[number]
        shared, units = self._packs[number], pack.units_per_actor
        boxes = [Mailbox.create(spec, pack.rows, f"mailbox-{number}-{index}") for _ in range(units)]
        self._fds += [box.fd for box in boxes]
        first_unit = index * units
        setup = ActorSetup(
            spec=spec,
            options=self._resolved.options,
            policies=pack.slots,
            envs_per_policy=pack.envs_per_policy,
            seeds=tuple(int(x) for x in seed.generate_state(units)),
            mailbox_fds=tuple(box.fd for box in boxes),
            shaping_fd=shared.shaping_fd,
            wake_fd=self._eventfd(),
            ready_fd=shared.ready_fd,
            spread_phases=config.random_phases,
            matchup_fd=-1 if shared.matchup is None else shared.matchup.fd,
            matchup_shape=(0, 0, 0) if shared.matchup is None else shared.matchup.shape,
            first_unit=first_unit,
            first_row=sum(p.units * p.rows for p in self._resolved.plan.packs[:number])
            + first_unit * pack.rows,
            saved=tuple(self._start.units[len(self.actors) + index]) if self._start.units else (),
            grows=config.mode == "async",
        )
        return ActorRecord(number, setup, boxes)

    def begin_anew(self, number: int, start: Start) -> None:
        """Prepare a pack for a new learner and new actors, once those before are gone."""
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
            continued=(start.learners[number] or None) if start.learners else None,
            seconds=start.seconds,
        )

    def environment_seconds(self) -> float:
        """Return the CPU-seconds spent in environments, in total."""
        return sum(int(box.header[BUSY_NS]) for record in self.actors for box in record.boxes) / 1e9

    def actions_given(self, actor: int) -> int:
        """Return how many actions an actor's units were given, in total."""
        record = self.actors[actor]
        return record.given + sum(int(box.header[ACTIONS]) for box in record.boxes)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        table = self._packs[pack].matchup
        assert table is not None, "environments of one seat have no matchups"
        version: int = table.write(row_UES)
        return version

    def close(self) -> None:
        """Close every descriptor; memory goes with its last mapping. Safe to call twice."""
        if self._own_pool is not None:
            self._own_pool.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def member_layout(resolved: ResolvedRun, values: Values) -> tuple[ArrayLayout, NetNames]:
    """Return how a member's arrays lie. A pack of one is built for it, which also finds a bad model early."""
    pack = lone_pack(resolved.config, resolved.spec, resolved.plan.packs[0], values)
    arrays = {name: x.numpy() for name, x in pack.export_member(0).items()}
    return layout_of(arrays), net_names(pack)


def make_store(resolved: ResolvedRun, values: Values) -> tuple[Store, StatePool, NetNames]:
    """Return a store for a run, its memory, and where each parameter lies in a member's flat vector."""
    layout, names = member_layout(resolved, values)
    pool = StatePool(layout)
    draws = Drawing(resolved.config, resolved.spec, resolved.plan.packs[0], values)
    return Store(pool, draws), pool, names
