"""An actor: a process that steps the environments of its units. It imports no torch.

    waits for    the eventfd that the learner raises when a unit's actions are written
    produces     one step in the unit's mailbox, then raises the learner's eventfd
    unblocked by the learner; ended by its parent (or by its death)

An actor that takes over from one that died finds its turn in the mailboxes' counters. Its first step is a
reset, which delivers `first` everywhere: learners already know that as a transition that does not count.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from pbt_rl.envs.base import EnvSetupError, EnvSpec, Unit, cpu_clock
from pbt_rl.envs.registry import EnvOptions, make_unit
from pbt_rl.mailbox import BUSY_NS, STEPS, Mailbox, ShapingTable
from pbt_rl.process import begin_child


@dataclass(frozen=True)
class ActorSetup:
    """What an actor is told. Descriptors are inherited."""

    spec: EnvSpec
    options: EnvOptions
    policies: int
    envs_per_policy: int
    seeds: tuple[int, ...]
    """One a unit."""
    mailbox_fds: tuple[int, ...]
    """One a unit."""
    shaping_fd: int
    wake_fd: int
    """Raised by the learner when actions are written."""
    ready_fd: int
    """Raised by us when a step is written."""

    @property
    def rows(self) -> int:
        """R of each unit."""
        return self.policies * self.envs_per_policy


class EpisodeSource:
    """What a unit asks for whenever an episode begins on a row: shaping, and how far the training has come."""

    def __init__(self, table: ShapingTable, envs_per_policy: int) -> None:
        self._table, self._envs = table, envs_per_policy

    def __call__(self, row: int) -> tuple[int, dict[str, float]]:
        """See `ShapingSource`."""
        return self._table.read(row // self._envs)

    def training_info(self, row: int) -> dict[str, Any]:
        """See `TrainingInfoInterface`."""
        policy = row // self._envs
        return {
            "frames": int(self._table.frames[policy]),
            "budget_frames": int(self._table.budget_frames[policy]),
        }


class UnitRunner:
    """One unit and its mailbox."""

    def __init__(self, unit: Unit, box: Mailbox, ready_fd: int) -> None:
        self._unit, self._box, self._ready_fd = unit, box, ready_fd
        self._started = False
        self._clock = cpu_clock(unit)

    def advance(self) -> bool:
        """Take one step if it is our turn; say whether it was."""
        if self._box.learner_has_turn:
            return False
        before = self._clock()
        if self._started:
            self._unit.step(self._box.action, self._box.step)
        else:
            self._unit.reset(self._box.step)
            self._started = True
        self._box.header[BUSY_NS] += self._clock() - before
        self._box.header[STEPS] += self._unit.rows
        self._box.publish_step(self._ready_fd)
        return True

    def close(self) -> None:
        """Release the environment."""
        self._unit.close()


class Actor:
    """The units of one actor process. In serial mode it lives in the supervisor's process instead."""

    def __init__(self, setup: ActorSetup) -> None:
        self._setup = setup
        table = ShapingTable.map(tuple(setup.spec.shaping), setup.policies, setup.shaping_fd)
        units = [
            make_unit(
                setup.spec.env_id,
                setup.rows,
                seed,
                setup.options,
                EpisodeSource(table, setup.envs_per_policy),
            )
            for seed in setup.seeds
        ]
        for unit in units:
            if unit.spec != setup.spec:
                raise EnvSetupError(
                    f"{setup.spec.env_id} is not the same each time that it is made: it was {setup.spec}, "
                    f"now {unit.spec}. Give it the same spaces and shaping always"
                )
        self._runners = [
            UnitRunner(unit, Mailbox(setup.spec, setup.rows, fd), setup.ready_fd)
            for unit, fd in zip(units, setup.mailbox_fds, strict=True)
        ]

    def turn(self) -> bool:
        """Advance every unit whose turn it is; say whether there was one."""
        return any([runner.advance() for runner in self._runners])  # noqa: C419 - each must have its turn

    def run(self) -> None:
        """Advance units as their actions come, for ever."""
        while True:
            if not self.turn():
                select.select([self._setup.wake_fd], [], [])
                os.eventfd_read(self._setup.wake_fd)

    def close(self) -> None:
        """Release the environments."""
        for runner in self._runners:
            runner.close()


def main() -> None:
    """Run as a child process until the parent ends it."""
    connection, setup = begin_child()
    try:
        Actor(setup).run()
    except EnvSetupError as error:
        connection.send(("user_error", str(error)))
    except Exception:  # noqa: BLE001 - whatever an environment raises is shown by the parent
        with contextlib.suppress(BrokenPipeError):
            connection.send(("error", traceback.format_exc()))
    sys.exit(1)


if __name__ == "__main__":
    main()
