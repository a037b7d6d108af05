"""The fleet: every process of a run, and the anonymous memory between them.

It starts processes, notices how they end, replaces them, and passes all messages but failures on unread. In serial
mode the same setups run inline (`InlineFleet`), turn by turn in the supervisor's process.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import FrameType
from typing import Any, Never, Protocol

import numpy as np
from numpy.typing import NDArray

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.envs.traces import environment_traceback
from pbt_rl.errors import RunFailed, environment_code
from pbt_rl.learner.learner import Learner
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.net_names import NetNames
from pbt_rl.run.memory import Matchups, Memory
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.stacks import StackDumps
from pbt_rl.run.start import Start
from pbt_rl.wire.actor import Actor
from pbt_rl.wire.messages import FromLearner, LearnerReady, StopLearner, ToLearner
from pbt_rl.wire.process import Child
from pbt_rl.wire.snapshot import SnapshotMemory

GRACE_SECONDS = 3.0
"""At the end learners stop and environments are closed within this time, all at once; then they are killed."""
INSIST_SECONDS = 0.2
HANG_CHECK_SECONDS = 1.0

LearnerChild = Child[ToLearner, FromLearner]
ActorChild = Child[Never, Never]
"""Steps and actions go through mailboxes: an actor receives its setup, and sends an error if it fails."""


@dataclass(frozen=True)
class Received:
    """A learner has sent a message."""

    pack: int
    message: FromLearner


@dataclass(frozen=True)
class LearnerDied:
    """A learner process has ended. text: the error that it sent, else how it ended."""

    pack: int
    text: str


@dataclass(frozen=True)
class ActorFailed:
    """An actor process has ended, or takes no step any more.

    text: the error that it sent, else how it ended or for how long it has hung.
    """

    actor: int
    text: str
    user_error: bool = False
    """The environment broke a contract that only its user can mend."""
    hung: bool = False


Event = Received | LearnerDied | ActorFailed


class Fleet(Protocol):
    """The processes of a run, as the supervisor uses them."""

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """Wait for something to happen, at most for this long; yield what has happened."""

    def send(self, pack: int, message: ToLearner) -> None:
        """Send a message to a learner."""

    def restart_actor(self, actor: int) -> None:
        """Replace an actor that died or hangs."""

    def environment_seconds(self) -> float:
        """Return the CPU-seconds that all environments took, in total."""

    def actions_given(self, actor: int) -> int:
        """Return how many actions an actor's units were given, in total: 0 if it never became usable."""

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """Seat these rows, [U, E, S], in a pack's environments; returns the version of the matchup."""

    def staging(self, pack: int) -> SnapshotMemory:
        """Return the memory in which a learner lays members for a checkpoint."""

    @property
    def names(self) -> NetNames:
        """Where each parameter lies in a member's flat vector."""

    @property
    def settled(self) -> bool:
        """Whether a run that stops now can be continued as if it had not: in serial mode between two batches only."""

    def save_units(self) -> list[Any]:
        """Return the states of all units, actor by actor; nothing if they cannot be saved."""

    def close(self) -> None:
        """End every process and release all memory."""


class ProcessFleet:
    """Actors and learners as processes."""

    def __init__(self, resolved: ResolvedRun, start: Start, matchups: Matchups = ()) -> None:
        self._memory = Memory(resolved, start, matchups)
        self._logs = _log_folder(resolved)
        self._stacks = StackDumps(self._logs, lambda: [*self._learners, *self._actors])
        self._timeout = resolved.config.actor_timeout_seconds
        self._learners: list[LearnerChild] = []
        self._actors: list[ActorChild] = []
        self._hang_check = time.monotonic()
        self._ready = 0
        try:
            for number, setup in enumerate(self._memory.learners):
                label = f"learner {number} ({setup.plan.device})"
                log = self._log(f"learner_{number}")
                self._learners.append(
                    Child("pbt_rl.learner.learner", label, setup, setup.fds, log, self._stacks.fd)
                )
            for index in range(len(self._memory.actors)):
                self._actors.append(self._start_actor(index))
        except BaseException:
            self.close()
            raise

    def _start_actor(self, index: int) -> ActorChild:
        record = self._memory.actors[index]
        for box in record.boxes:
            box.begin_life()
        log, stacks_fd = self._log(f"actor_{index}"), self._stacks.fd
        return Child("pbt_rl.wire.actor", f"actor {index}", record.setup, record.setup.fds, log, stacks_fd)

    def _log(self, name: str) -> Path | None:
        return None if self._logs is None else self._logs / f"{name}.log"

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See Fleet. A death is reported after all messages that the process sent."""
        children: list[LearnerChild | ActorChild] = [*self._learners, *self._actors]
        sources = {source: child for child in children for source in (child.connection, child.sentinel)}
        ready = set(wait(sources, patience_seconds))
        for pack, learner in enumerate(self._learners):
            if ready & {learner.connection, learner.sentinel}:
                for message in learner.messages():
                    self._note_ready(message)
                    yield Received(pack, message)
                if learner.sentinel in ready:
                    yield LearnerDied(pack, learner.ending().text)
        for index, actor in enumerate(self._actors):
            if ready & {actor.connection, actor.sentinel}:
                yield from actor.messages()
                if actor.sentinel in ready:
                    ending = actor.ending()
                    yield ActorFailed(index, ending.text, user_error=ending.user_error)
        if time.monotonic() - self._hang_check > HANG_CHECK_SECONDS:
            self._hang_check = time.monotonic()
            yield from self._hung_actors()

    def _note_ready(self, message: FromLearner) -> None:
        """Release what the learners started from once all of them have it."""
        if isinstance(message, LearnerReady):
            self._ready += 1
            if self._ready == len(self._learners):
                self._memory.started()

    def _hung_actors(self) -> Iterator[ActorFailed]:
        for index, record in enumerate(self._memory.actors):
            # It serves its units in turn: while one of them shows signs of life, the others wait.
            seconds = min([box.seconds_silent() for box in record.boxes])
            has_work = not all(box.learner_has_turn for box in record.boxes)
            if has_work and seconds > self._timeout:
                text = f"actor {index} took no step for {seconds:.0f} s"
                yield ActorFailed(index, text, hung=True)

    def send(self, pack: int, message: ToLearner) -> None:
        """See Fleet."""
        self._learners[pack].connection.send(message)

    def restart_actor(self, actor: int) -> None:
        """See Fleet. Its successor continues at the mailboxes' counters, with seeds of its own."""
        self._actors[actor].end(0)
        record = self._memory.actors[actor]
        record.restarts += 1
        seeds = tuple((seed + record.restarts) % 2**32 for seed in record.setup.seeds)
        record.setup = replace(record.setup, seeds=seeds)
        self._actors[actor] = self._start_actor(actor)

    def environment_seconds(self) -> float:
        """See Fleet."""
        return self._memory.environment_seconds()

    def actions_given(self, actor: int) -> int:
        """See Fleet."""
        return self._memory.actions_given(actor)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """See Fleet."""
        return self._memory.set_matchup(pack, row_UES)

    def staging(self, pack: int) -> SnapshotMemory:
        """See Fleet."""
        return self._memory.staging[pack]

    @property
    def names(self) -> NetNames:
        """See Fleet."""
        return self._memory.names

    settled = True

    def save_units(self) -> list[Any]:
        """See Fleet. Environments go on while members are saved."""
        return []

    def close(self) -> None:
        """See Fleet. Learners stop and actors close their environments, at once and for a limited time."""
        children: list[LearnerChild | ActorChild] = [*self._learners, *self._actors]
        for learner in self._learners:
            with contextlib.suppress(OSError):
                learner.connection.send(StopLearner())
        for actor in self._actors:
            actor.hang_up()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in children:
            if not child.wait(deadline):
                child.kill()
        for child in children:
            child.end(0.0)
        self._actors, self._learners = [], []
        self._stacks.close()
        self._memory.close()


class InlineFleet:
    """Serial mode: actors and the learner take turns in this process; the same seed gives the same bits."""

    def __init__(self, resolved: ResolvedRun, start: Start, matchups: Matchups = ()) -> None:
        self._memory = Memory(resolved, start, matchups)
        self._ours: Connection[ToLearner, FromLearner]
        self._ours, theirs = Pipe()
        self._learner = Learner(self._memory.learners[0], theirs)
        self._memory.started()
        self._env_id = resolved.config.env
        with environment_code(self._env_id):
            self._actors = [Actor(record.setup) for record in self._memory.actors]
        self._stacks = StackDumps(_log_folder(resolved), list)

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See Fleet. Takes turns until the learner sends a message."""
        deadline = time.monotonic() + patience_seconds
        while not self._ours.poll() and time.monotonic() < deadline:
            for actor in self._actors:
                self._advance(actor)
            self._learner.turn()
        while self._ours.poll():
            yield Received(0, self._ours.recv())

    def _advance(self, actor: Actor) -> None:
        try:
            actor.turn()
        except EnvSetupError:
            raise
        except (Exception, SystemExit) as error:
            raise RunFailed(
                f"{self._env_id} raised, and in serial mode it has no process that could be replaced (in the others "
                f"an actor is restarted).\n{environment_traceback(error)}"
            ) from error

    def send(self, pack: int, message: ToLearner) -> None:
        """See Fleet."""
        assert pack == 0, "serial mode has one pack"
        self._ours.send(message)

    def restart_actor(self, actor: int) -> None:
        """Fail: no event asks for it, since an environment that raises ends a serial run."""
        raise AssertionError(actor)

    def environment_seconds(self) -> float:
        """See Fleet."""
        return self._memory.environment_seconds()

    def actions_given(self, actor: int) -> int:
        """See Fleet."""
        return self._memory.actions_given(actor)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """See Fleet."""
        return self._memory.set_matchup(pack, row_UES)

    def staging(self, pack: int) -> SnapshotMemory:
        """See Fleet."""
        return self._memory.staging[pack]

    @property
    def names(self) -> NetNames:
        """See Fleet."""
        return self._memory.names

    @property
    def settled(self) -> bool:
        """See Fleet."""
        return self._learner.between_batches

    def save_units(self) -> list[Any]:
        """See Fleet."""
        units = [actor.save() for actor in self._actors]
        return [] if any(state is None for states in units for state in states) else units

    def close(self) -> None:
        """See Fleet. An environment that is not closed in time is left."""
        try:
            with _at_most(GRACE_SECONDS):
                for actor in self._actors:
                    actor.close()
        except _OutOfTimeError:
            print(f"pbt-rl: environments were not closed within {GRACE_SECONDS:.0f} s", file=sys.stderr)
        self._stacks.close()
        self._memory.close()


class _OutOfTimeError(BaseException):
    """Not an Exception: it is meant to pass through an environment's `close`."""


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise _OutOfTimeError inside after this time, and again where it is caught there. Main thread only."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _OutOfTimeError

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, INSIST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _log_folder(resolved: ResolvedRun) -> Path | None:
    """Return where the processes of a run print to; None if it has no folder."""
    config = resolved.config
    return RunFolder(config.out / config.name).logs if config.name else None
