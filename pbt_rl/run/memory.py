"""All shared memory of a run, and the setups of the processes that use it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.registry import EnvOptions
from pbt_rl.learner.build import build_pack
from pbt_rl.learner.learner import LearnerSetup
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.plan import PackPlan, Plan
from pbt_rl.wire.actor import ActorSetup
from pbt_rl.wire.mailbox import ACTIONS, BUSY_NS, Mailbox
from pbt_rl.wire.memory import anonymous_memory
from pbt_rl.wire.tables import MatchupTable, ShapingTable


@dataclass
class ActorRecord:
    """An actor's record: what outlives the process in it."""

    pack: int
    setup: ActorSetup
    boxes: list[Mailbox]
    restarts: int = 0


Matchups = Sequence[NDArray[np.int64]]
"""[U, E, S] rows for each pack, as the run begins; empty where an environment has one seat."""


class Memory:
    """Mailboxes, tables of shaping and matchups, eventfds and the exchange of a run, and the setups that name them."""

    def __init__(
        self,
        config: Config,
        options: EnvOptions,
        spec: EnvSpec,
        plan: Plan,
        values: list[Values],
        matchups: Matchups = (),
    ) -> None:
        self._fds: list[int] = []
        self._matchups: list[MatchupTable] = []
        self.actors: list[ActorRecord] = []
        self.learners: list[LearnerSetup] = []
        seeds = np.random.SeedSequence(config.seed)
        exchange_bytes = _member_bytes(config, spec, plan.packs[0], values)
        exchange_fd = self._own(anonymous_memory(exchange_bytes, "exchange"))
        for number, pack in enumerate(plan.packs):
            names, policies = tuple(spec.shaping), pack.slots
            shaping_fd = self._own(anonymous_memory(ShapingTable.size(names, policies), "shaping"))
            table = ShapingTable.map(names, policies, shaping_fd)
            table.budget_frames[:] = config.train_for_frames
            for p, member in enumerate(pack.members[:policies]):
                table.write(p, 0, {n: values[member][SHAPING + n] for n in names})
            matchup_fd, matchup_shape = -1, (0, 0, 0)
            if matchups:
                units, environments, seats = matchups[number].shape
                matchup_shape = (units, environments, seats)
                matchup_fd = self._own(anonymous_memory(MatchupTable.size(matchup_shape), "matchup"))
                self._matchups.append(MatchupTable.map(matchup_shape, matchup_fd))
                self._matchups[-1].write(matchups[number])
            ready_fd = self._own(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            pack_seed, *actor_seeds = seeds.spawn(1 + pack.actors)
            for index, actor_seed in enumerate(actor_seeds):
                wake_fd = self._own(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
                boxes = [
                    Mailbox.create(spec, pack.rows, f"{number}-{index}") for _ in range(pack.units_per_actor)
                ]
                self._fds += [box.fd for box in boxes]
                setup = ActorSetup(
                    spec=spec,
                    options=options,
                    policies=policies,
                    envs_per_policy=pack.envs_per_policy,
                    seeds=tuple(int(x) for x in actor_seed.generate_state(len(boxes))),
                    mailbox_fds=tuple(box.fd for box in boxes),
                    shaping_fd=shaping_fd,
                    wake_fd=wake_fd,
                    ready_fd=ready_fd,
                    warm_up_steps=tuple(
                        config.decorrelate_steps * (index * len(boxes) + unit) // (pack.actors * len(boxes))
                        for unit in range(len(boxes))
                    ),
                    matchup_fd=matchup_fd,
                    matchup_shape=matchup_shape,
                    first_unit=index * pack.units_per_actor,
                )
                self.actors.append(ActorRecord(number, setup, boxes))
            mine = [record for record in self.actors if record.pack == number]
            self.learners.append(
                LearnerSetup(
                    config=config,
                    spec=spec,
                    plan=pack,
                    seed=int(pack_seed.generate_state(1)[0]),
                    values=[values[m] for m in pack.members[:policies]],
                    mailbox_fds=tuple(fd for record in mine for fd in record.setup.mailbox_fds),
                    wake_fds=tuple(record.setup.wake_fd for record in mine for _ in record.boxes),
                    ready_fd=ready_fd,
                    shaping_fd=shaping_fd,
                    exchange_fd=exchange_fd,
                    exchange_bytes=exchange_bytes,
                )
            )

    def _own(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def environment_seconds(self) -> float:
        """CPU-seconds in environments, in total."""
        return sum(int(box.header[BUSY_NS]) for record in self.actors for box in record.boxes) / 1e9

    def steps_answered(self, actor: int) -> int:
        """Actions given to an actor's units."""
        return sum(int(box.header[ACTIONS]) for box in self.actors[actor].boxes)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """See Fleet."""
        return self._matchups[pack].write(row_UES)

    def close(self) -> None:
        """Close every descriptor; memory goes with the last mapping of it."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def _member_bytes(config: Config, spec: EnvSpec, plan: PackPlan, values: list[Values]) -> int:
    """Size of one member's state, found by building a pack of one; also the first to meet a bad model."""
    alone = replace(plan, members=plan.members[:1], slots=1, device="cpu")
    return build_pack(config, spec, alone, values[:1], 0).member_bytes()
