"""Actor: a process that steps vector envs. It does not import torch.

    waits for    the learner's signal (an eventfd) that actions are written to a mailbox
    produces     a step in the mailbox, and a signal to the learner (another eventfd)
    ends         when its parent closes the connection, kills the actor or dies, or when an environment raises an error

A restarted actor reads the counters of the mailboxes to find the mailboxes that wait for a step. The first step of a
restarted actor is a reset: `first` (episode start) is True in all rows. The learner masks the transition of a reset.
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

from pbt_rl.actors.mailbox import BUSY_NS, HEARTBEAT_NS, STEPS, Mailbox
from pbt_rl.actors.messages import EnvironmentWarning
from pbt_rl.actors.shared_tables import MatchupTable, ShapingTable
from pbt_rl.envs.base import EnvSpec, FollowsMatchups, SavesState, SpreadsPhases, cpu_clock
from pbt_rl.envs.conventions import converted_pictures, once
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.lazy_construction import LazyConstruction
from pbt_rl.envs.lookup import EnvOptions, make_vector_env
from pbt_rl.envs.step_warnings import Watch
from pbt_rl.errors import EnvSetupError, end_fork
from pbt_rl.processes.child import begin_child, send_failure
from pbt_rl.processes.polling import AdaptivePoller


@dataclass(frozen=True)
class ActorSetup:
    """First message to an actor. The actor's process inherits the file descriptors in the fields `..._fd(s)`."""

    spec: EnvSpec
    options: EnvOptions
    policies: int
    """P: number of slots in the pack."""
    envs_per_policy: int
    """Rows of a slot in each vector env."""
    seeds: tuple[int, ...]
    """Seed of each vector env."""
    mailbox_fds: tuple[int, ...]
    """Mailbox of each vector env."""
    shaping_fd: int
    """Shared memory with the shaping of the pack's slots."""
    wake_fd: int
    """Eventfd that the learner writes when actions are in a mailbox."""
    ready_fd: int
    """Eventfd that the actor writes when a step is in a mailbox."""
    spread_phases: bool = False
    """True to truncate the first episodes of the rows at random steps, if the vector env implements `SpreadsPhases`."""
    matchup_fd: int = -1
    """Shared memory with the pack's `MatchupTable`, or -1 for single-agent environments."""
    matchup_shape: tuple[int, int, int] = (0, 0, 0)
    """Numbers (U, E, S) of the pack's vector envs, environments of a vector env, and agents of an environment."""
    first_vector_env: int = 0
    """Index of the actor's first vector env within the pack."""
    first_row: int = 0
    """Index of the actor's first row within the run."""
    saved: tuple[dict[str, Any], ...] = ()
    """Saved state of each vector env. Empty if the vector envs start with a reset."""
    lazy: bool = False
    """True if vector envs may start before all their rows exist (`envs/lazy_construction.py`)."""

    @property
    def rows(self) -> int:
        """Number of rows R per vector env."""
        return self.policies * self.envs_per_policy

    @property
    def fds(self) -> list[int]:
        """All descriptors that the process inherits."""
        matchup = [self.matchup_fd] if self.matchup_fd >= 0 else []
        return [*self.mailbox_fds, self.shaping_fd, self.wake_fd, self.ready_fd, *matchup]


UNCOUNTED_VERSION = -1
"""Shaping version of episodes that `spread_phases` truncates. These episodes do not count for the objective."""


@dataclass(eq=False)
class EpisodeSource:
    """Reader of the reward weights of a vector env's members (a `ShapingSource`), with more data of the vector env."""

    table: ShapingTable
    envs_per_policy: int
    """Rows of a slot in the vector env. Rows are ordered by slot."""
    heartbeat: memoryview
    """Heartbeat cells in the mailbox (`envs/episode_book.py`)."""
    may_be_lazy: bool
    """True if the vector env may start before all its rows exist (`envs/lazy_construction.py`)."""
    begins_empty: bool = False
    """True if a vector env with `may_be_lazy` is constructed without any row."""
    warn: Callable[[str], None] | None = None
    """Callback for warnings about environment bugs. Only the first vector env of a run warns, because all vector envs
    have the same code."""
    uncounted: bool = False
    """True while the vector env starts episodes that `spread_phases` truncates."""

    def __call__(self, row: int) -> tuple[int, dict[str, float]]:
        """Return (shaping version, name -> weight) for a row's next episode."""
        shaping_version, values = self.table.read(row // self.envs_per_policy)
        return (UNCOUNTED_VERSION if self.uncounted else shaping_version), values

    def training_info(self, row: int) -> dict[str, Any]:
        """Return `frames` (of the row's member so far) and `budget_frames` (expected at the end of the run)."""
        slot = row // self.envs_per_policy
        frames, budget = int(self.table.frames[slot]), int(self.table.budget_frames[slot])
        return {"frames": frames, "budget_frames": budget}


def _naming_check(tell: Callable[[str], None], env_id: str) -> Callable[[str], None]:
    """Return a function that passes warnings to `tell`. The first warning names the command that lists all findings."""
    more = [f". Run `pbt-rl envs check {env_id}` for all findings"]
    return lambda text: tell(text + (more.pop() if more else ""))


class VectorEnvRunner:
    """Vector env of an actor, with its mailbox.

    The constructor raises EnvSetupError if the spec of the vector env differs from `setup.spec`.

    number: index of the vector env within the actor. tell: receives warnings about environment bugs.
    """

    def __init__(
        self, setup: ActorSetup, number: int, table: ShapingTable, tell: Callable[[str], None]
    ) -> None:
        self._box = Mailbox(setup.spec, setup.rows, setup.mailbox_fds[number])
        speaks = (
            once(_naming_check(tell, setup.spec.env_id)) if setup.first_row == 0 and number == 0 else None
        )
        self._watch = None if speaks is None else Watch(speaks, converted_pictures(setup.spec))
        self._source = EpisodeSource(
            table,
            setup.envs_per_policy,
            self._box.heartbeat,
            may_be_lazy=setup.lazy,
            begins_empty=number > 0,
            warn=speaks,
        )
        self._ready_fd, self._seed, self._spreads = setup.ready_fd, setup.seeds[number], setup.spread_phases
        options = replace(setup.options, first_row=setup.first_row + number * setup.rows)
        self.vector_env = make_vector_env(setup.spec.env_id, setup.rows, self._seed, options, self._source)
        if self.vector_env.spec != setup.spec:
            raise EnvSetupError(
                f"the spec of {setup.spec.env_id} changed between two constructions: first {setup.spec}, "
                f"then {self.vector_env.spec}. Return equal spaces and equal default shaping each time"
            )
        if setup.matchup_fd >= 0:
            matchups = MatchupTable.map(setup.matchup_shape, setup.matchup_fd)
            assert isinstance(self.vector_env, FollowsMatchups), (
                "a vector env with several agents must implement FollowsMatchups"
            )
            self.vector_env.follow(functools.partial(matchups.read, setup.first_vector_env + number))
        self._started = bool(setup.saved)  # if False, the first advance() resets
        if setup.saved:
            assert isinstance(self.vector_env, SavesState)
            self.vector_env.restore_state(setup.saved[number])
        self._clock = cpu_clock(self.vector_env)

    def advance(self) -> bool:
        """Step the vector env if its actions are ready. Return True if it was stepped.

        The first step is a reset, unless the actor got a saved state.
        """
        if self._box.learner_has_turn:
            return False
        before, began = self._clock(), time.perf_counter()
        if self._started:
            self.vector_env.step(self._box.action, self._box.step)
            if self._watch is not None:
                self._watch.note(self._box.step, time.perf_counter() - began)
        else:
            self._start()
            self._started = True
        self._box.header[BUSY_NS] += self._clock() - before
        self._box.header[STEPS] += self.vector_env.rows
        self._box.publish_step(self._ready_fd)
        return True

    def _start(self) -> None:
        """Reset the vector env. If `spread_phases` is set, first make the vector env truncate its first episodes."""
        rng = np.random.default_rng(self._seed)
        cut = (
            self._spreads
            and isinstance(self.vector_env, SpreadsPhases)
            and self.vector_env.spread_phases(rng)
        )
        self._source.uncounted = cut
        self._box.header[HEARTBEAT_NS] = time.monotonic_ns()
        self.vector_env.reset(self._box.step)
        self._source.uncounted = False

    def save(self) -> dict[str, Any] | None:
        """Return the state of the vector env. Return None before the first reset, or if the state cannot be saved."""
        return (
            self.vector_env.save_state()
            if self._started and isinstance(self.vector_env, SavesState)
            else None
        )


class Actor:
    """All vector envs of an actor. In serial mode the actor runs in the supervisor's process."""

    def __init__(self, setup: ActorSetup, tell: Callable[[str], None]) -> None:
        """Construct the vector envs. tell: called with warnings about environment bugs that raise no error."""
        self._setup = setup
        table = ShapingTable.map(tuple(setup.spec.shaping), setup.policies, setup.shaping_fd)
        self._runners = [VectorEnvRunner(setup, number, table, tell) for number in range(len(setup.seeds))]
        self._construction = LazyConstruction([runner.vector_env for runner in self._runners])

    def save(self) -> list[dict[str, Any] | None]:
        """Return the state of each vector env, or None for a vector env whose state cannot be saved."""
        return [runner.save() for runner in self._runners]

    def iterate(self) -> bool:
        """Step each vector env whose actions are ready. Return True if a vector env was stepped."""
        begun = [runner for number, runner in enumerate(self._runners) if self._construction.steps(number)]
        return any([runner.advance() for runner in begun])  # noqa: C419 - a generator would stop at the first True

    def run(self, parent: Connection[Any, Any]) -> None:
        """Step vector envs when their actions arrive, until the parent closes the connection."""
        answers = AdaptivePoller(self._setup.wake_fd, parent.fileno())
        answered = False
        while True:
            busy = self.iterate()
            made = self._construction.iterate()
            if busy and not made:
                continue
            seconds = 0.0 if made else self._construction.waits_seconds
            ready = answers.wait(None if seconds is None else 1000 * seconds)
            if parent.fileno() in ready:
                return
            if ready:
                os.eventfd_read(self._setup.wake_fd)
                if not answered:
                    answered = True
                    self._construction.note_answer()

    def close(self) -> None:
        """Close all environments, and print their exceptions."""
        for runner in self._runners:
            try:
                runner.vector_env.close()
            except (Exception, SystemExit):  # noqa: BLE001 - the actor ends anyway
                traceback.print_exc()


def main() -> None:
    """Run an actor as a child process. When the parent closes the connection, close the environments and exit."""
    connection, setup = begin_child()
    process = os.getpid()
    try:
        actor = Actor(setup, lambda text: connection.send(EnvironmentWarning(text)))
        actor.run(connection)
        actor.close()
    except EnvSetupError as error:
        send_failure(connection, str(error), user_error=True)
    except BaseException as error:  # noqa: BLE001 - the parent shows all exceptions of an environment
        end_fork(process, error)
        traceback.print_exc()  # the log also has the stack frames of pbt_rl
        send_failure(connection, environment_traceback(error), user_error=False)
    else:
        sys.exit(0)
    sys.exit(1)


if __name__ == "__main__":
    main()
