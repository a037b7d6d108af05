"""An actor: a process that steps the environments of its units. It imports no torch.

    waits for    the eventfd that the learner raises when a unit's actions are written
    produces     one step in the unit's mailbox, then raises the learner's eventfd
    unblocked by the learner; ended by its parent, which hangs up, or kills it (or by the parent's death)

An actor that takes over from one that died finds its turn in the mailboxes' counters. Its first step is a
reset, which delivers `first` everywhere: a learner already takes that as a transition that does not count.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pbt_rl.actors.child import begin_child, send_failure
from pbt_rl.actors.mailbox import BUSY_NS, HEARTBEAT_NS, STEPS, Mailbox
from pbt_rl.actors.messages import Remarked
from pbt_rl.actors.polling import AdaptivePoller
from pbt_rl.actors.tables import MatchupTable, ShapingTable
from pbt_rl.envs.base import (
    EnvSetupError,
    EnvSpec,
    SavesState,
    Seated,
    SpreadsPhases,
    Unit,
    cpu_clock,
    random_actions,
)
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.growing import Growth
from pbt_rl.envs.registry import EnvOptions, make_unit


@dataclass(frozen=True)
class ActorSetup:
    """The first message to an actor. Descriptors are inherited."""

    spec: EnvSpec
    options: EnvOptions
    policies: int
    """P: slots of the pack."""
    envs_per_policy: int
    seeds: tuple[int, ...]
    """One per unit."""
    mailbox_fds: tuple[int, ...]
    """One per unit."""
    shaping_fd: int
    wake_fd: int
    """Raised by the learner when actions are written."""
    ready_fd: int
    """Raised by the actor when a step is written."""
    warm_up_steps: tuple[int, ...]
    """One per unit: random steps that it takes before its first step counts."""
    spread_phases: bool = False
    """Units that can cut their rows' first episodes short (`SpreadsPhases`)."""
    matchup_fd: int = -1
    """Of the table of matchups of environments of several seats; -1 for others."""
    matchup_shape: tuple[int, int, int] = (0, 0, 0)
    first_unit: int = 0
    """Number of the actor's first unit among those of the pack."""
    first_row: int = 0
    """Number of the actor's first row among those of the run."""
    saved: tuple[dict[str, Any], ...] = ()
    """States of the units, to continue from, or none: then they begin with a reset."""
    cores: tuple[int, ...] = ()
    """Cores that the process stays on; empty: any."""
    grows: bool = False
    """Units may begin without all their rows, which are then made while the run goes on (see `Growth`)."""

    @property
    def rows(self) -> int:
        """R of each unit."""
        return self.policies * self.envs_per_policy

    @property
    def fds(self) -> list[int]:
        """Return all descriptors, for the process to inherit."""
        matchup = [self.matchup_fd] if self.matchup_fd >= 0 else []
        return [*self.mailbox_fds, self.shaping_fd, self.wake_fd, self.ready_fd, *matchup]


UNCOUNTED_VERSION = -1
"""Shaping version of episodes that begin while a unit plays at random, or are cut short: it counts for no member."""


class EpisodeSource:
    """Gives a unit, for every episode that begins on a row, the shaping and how far the training has come."""

    def __init__(
        self,
        table: ShapingTable,
        envs_per_policy: int,
        pulse: memoryview,
        *,
        lets_grow: bool,
        begins_empty: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._table, self.envs_per_policy = table, envs_per_policy
        self.lets_grow, self.begins_empty = lets_grow, begins_empty
        self._tell = tell
        self.pulse = pulse
        """See `envs/episodes.py`."""
        self.uncounted = False
        """Episodes that begin now are played at random, or cut short."""

    def __call__(self, row: int) -> tuple[int, dict[str, float]]:
        """See `ShapingSource`."""
        shaping_version, values = self._table.read(row // self.envs_per_policy)
        return (UNCOUNTED_VERSION if self.uncounted else shaping_version), values

    def remark(self, text: str) -> None:
        """See `Remarks`. One unit speaks for all of its run, whose environments are alike."""
        if self._tell is not None:
            self._tell(text)

    def training_info(self, row: int) -> dict[str, Any]:
        """See `TrainingInfoInterface`."""
        slot = row // self.envs_per_policy
        return {
            "frames": int(self._table.frames[slot]),
            "budget_frames": int(self._table.budget_frames[slot]),
        }


class UnitRunner:
    """One unit and its mailbox."""

    def __init__(
        self,
        unit: Unit,
        box: Mailbox,
        ready_fd: int,
        source: EpisodeSource,
        warm_up_steps: int,
        spreads: bool,
        seed: int,
    ) -> None:
        self._unit, self._box, self._ready_fd = unit, box, ready_fd
        self._source, self._warm_up_steps, self._seed = source, warm_up_steps, seed
        self._spreads = spreads
        self._started = False
        self._clock = cpu_clock(unit)

    def advance(self) -> bool:
        """Take one step if it is the actor's turn; return whether it was."""
        if self._box.learner_has_turn:
            return False
        before = self._clock()
        if self._started:
            self._unit.step(self._box.action, self._box.step)
        else:
            self._start()
            self._started = True
        self._box.header[BUSY_NS] += self._clock() - before
        self._box.header[STEPS] += self._unit.rows
        self._box.publish_step(self._ready_fd)
        return True

    def _start(self) -> None:
        """Reset, then play at random for `warm_up_steps`; the step that results is `first`, as after a reset."""
        step, rng = self._box.step, np.random.default_rng(self._seed)
        cut = self._spreads and isinstance(self._unit, SpreadsPhases) and self._unit.spread_phases(rng)
        self._source.uncounted = cut or self._warm_up_steps > 0
        self._box.header[HEARTBEAT_NS] = time.monotonic_ns()
        self._unit.reset(step)
        for _ in range(self._warm_up_steps):
            self._unit.step(random_actions(self._unit.spec, step, rng), step)
            self._box.header[HEARTBEAT_NS] = time.monotonic_ns()
        self._source.uncounted = False
        if self._warm_up_steps:
            step.first[:] = True
            for array_R in (step.reward, step.terminated, step.truncated, step.episode_done):
                array_R[:] = 0

    def save(self) -> dict[str, Any] | None:
        """Return the unit's state; None if it cannot be saved, or was not reset yet."""
        return self._unit.save_state() if self._started and isinstance(self._unit, SavesState) else None

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, instead of beginning with a reset."""
        assert isinstance(self._unit, SavesState)
        self._unit.restore_state(state)
        self._started = True

    def close(self) -> None:
        """Release the environment."""
        self._unit.close()


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Actor:
    """The units of one actor process. In serial mode it lives in the supervisor's process instead."""

    def __init__(self, setup: ActorSetup, tell: Callable[[str], None] = _print_warning) -> None:
        """tell: is told what an environment does wrong though nothing breaks."""
        self._setup = setup
        table = ShapingTable.map(tuple(setup.spec.shaping), setup.policies, setup.shaping_fd)
        boxes = [Mailbox(setup.spec, setup.rows, fd) for fd in setup.mailbox_fds]
        sources = [
            EpisodeSource(
                table,
                setup.envs_per_policy,
                box.pulse,
                lets_grow=setup.grows,
                begins_empty=number > 0,
                tell=tell if setup.first_row == 0 and number == 0 else None,
            )
            for number, box in enumerate(boxes)
        ]
        units = [
            make_unit(
                setup.spec.env_id,
                setup.rows,
                seed,
                replace(setup.options, first_row=setup.first_row + number * setup.rows),
                source,
            )
            for number, (seed, source) in enumerate(zip(setup.seeds, sources, strict=True))
        ]
        for unit in units:
            if unit.spec != setup.spec:
                raise EnvSetupError(
                    f"{setup.spec.env_id} differs each time that it is made: it was {setup.spec}, "
                    f"now {unit.spec}. Give it the same spaces and shaping every time"
                )
        if setup.matchup_fd >= 0:
            matchups = MatchupTable.map(setup.matchup_shape, setup.matchup_fd)
            for number, unit in enumerate(units, start=setup.first_unit):
                assert isinstance(unit, Seated), "units of several seats follow matchups"
                unit.follow(functools.partial(matchups.read, number))
        self._runners = [
            UnitRunner(unit, box, setup.ready_fd, source, steps, setup.spread_phases, seed)
            for unit, box, source, steps, seed in zip(
                units, boxes, sources, setup.warm_up_steps, setup.seeds, strict=True
            )
        ]
        for runner, state in zip(self._runners, setup.saved, strict=bool(setup.saved)):
            runner.restore(state)
        self._growth = Growth(units)

    def save(self) -> list[dict[str, Any] | None]:
        """Return the states of the units; None for one that cannot be saved."""
        return [runner.save() for runner in self._runners]

    def turn(self) -> bool:
        """Advance every unit whose turn it is; return whether there was one."""
        begun = [runner for number, runner in enumerate(self._runners) if self._growth.steps(number)]
        return any([runner.advance() for runner in begun])  # noqa: C419 - each must have its turn

    def run(self, parent: Connection[Any, Any]) -> None:
        """Advance units as their actions arrive, until the parent hangs up."""
        answers = AdaptivePoller(self._setup.wake_fd, parent.fileno())
        answered = False
        while True:
            busy = self.turn()
            made = self._growth.turn()
            if busy and not made:
                continue
            seconds = 0.0 if made else self._growth.waits_seconds
            ready = answers.wait(None if seconds is None else 1000 * seconds)
            if parent.fileno() in ready:
                return
            if ready:
                os.eventfd_read(self._setup.wake_fd)
                if not answered:
                    answered = True
                    self._growth.note_answer()

    def close(self) -> None:
        """Release the environments. What they raise is printed."""
        for runner in self._runners:
            try:
                runner.close()
            except Exception:  # noqa: BLE001 - nothing depends on it any more
                traceback.print_exc()


def main() -> None:
    """Run as a child process until the parent hangs up or kills it. Environments are closed if it hangs up."""
    connection, setup = begin_child()
    if setup.cores:
        os.sched_setaffinity(0, setup.cores)
    try:
        actor = Actor(setup, lambda text: connection.send(Remarked(text)))
        actor.run(connection)
        actor.close()
        sys.exit(0)
    except EnvSetupError as error:
        send_failure(connection, str(error), user_error=True)
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is shown by the parent
        traceback.print_exc()  # the log has our frames, too
        send_failure(connection, environment_traceback(error), user_error=False)
    sys.exit(1)


if __name__ == "__main__":
    main()
