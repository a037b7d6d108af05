"""Fleet: learners and actors of a run, and their shared memory.

A fleet starts processes, detects their end, replaces ended processes, and forwards messages. In serial mode,
`run.serial` runs actors and learners in the supervisor's process instead.

Axes: U vector envs of a pack, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Never, Protocol

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import EnvironmentWarning, FromLearner, LearnerReady, StopLearner, ToLearner
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.envs.first_trial import environment_output
from pbt_rl.processes.child import LEARNER, Child, StackDumps, Waiting
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.clocks import GAP_SECONDS, ScheduledClock, SchedulingDelay
from pbt_rl.run.memory import Matchups, Memory, Start
from pbt_rl.run.resolved import ResolvedRun

GRACE_SECONDS = 3.0
"""Seconds for learners to stop and for environments to close at the end. Afterwards their processes are killed."""
HANG_CHECK_SECONDS = 1.0
ROOM_SECONDS = 0.01
"""Polling interval while a learner's connection is full."""
STARTS = 5
"""Factor on a learner's timeout until the learner is ready, because imports and compilation take long."""

LearnerChild = Child[ToLearner, FromLearner]
ActorChild = Child[Never, EnvironmentWarning]
"""Handle of an actor process, which sends warnings and errors. Steps and actions go through mailboxes instead."""


@dataclass(frozen=True)
class Received:
    """Event: a message from a learner."""

    pack: int
    message: FromLearner


@dataclass(frozen=True)
class LearnerLost:
    """Event: a learner process has ended or hangs, or its machine is lost or will leave.

    text: error of the learner, or a description of the end. hung: True if the process lives but makes no progress.
    user_error: True if the user must fix the cause.
    machine: True if the machine of the learner is lost or will leave.
    """

    pack: int
    text: str
    hung: bool = False
    user_error: bool = False
    machine: bool = False

    @property
    def kind(self) -> str:
        """Kind of loss in the journal: machine, hung or died."""
        return "machine" if self.machine else "hung" if self.hung else "died"


@dataclass(frozen=True)
class MachineLeaving:
    """Event: the cluster will soon remove the machine of a pack.

    lost: the loss of the pack's learner, to handle after a checkpoint.
    """

    lost: LearnerLost


@dataclass(frozen=True)
class ActorFailed:
    """Event: an actor process has ended or hangs.

    actor: number of the actor, counted over all packs. text: error of the actor, or a description of the end.
    """

    actor: int
    text: str
    user_error: bool = False
    """True if the environment cannot be made or violates its interface. The user must fix the environment."""
    hung: bool = False
    killed: bool = False
    """True if SIGKILL ended the process before it sent an error, for example when memory was full."""


@dataclass(frozen=True)
class Notice:
    """Event: a message for the user."""

    text: str


Event = Received | LearnerLost | MachineLeaving | ActorFailed | Notice


class Fleet(Protocol):
    """Interface of the supervisor to the processes of a run: on this machine, in this process, or in a cluster.

    Actors are numbered over all packs.
    """

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Wait for events, and yield them. timeout_seconds: maximum wait. In serial mode, train instead of waiting."""

    def send(self, pack: int, message: ToLearner) -> None:
        """Send a message to a learner."""

    def restart_actor(self, actor: int) -> None:
        """Replace an actor that died or hangs."""

    def kill(self, pack: int) -> None:
        """Kill a learner and its actors, and drop their messages."""

    def replace_learner(self, pack: int, start: Start) -> None:
        """Start a new learner and new actors. Call this after `kill`. With --nodes, they start when a machine is free.

        start: initial state, of which only the part for this pack is used.
        """

    def waits(self, pack: int, /) -> bool:
        """Check whether a pack is waiting for a machine."""

    def heartbeat_age_seconds(self, pack: int, /) -> float:
        """Return the seconds since a learner's last heartbeat.

        Time in which this process was stopped does not count. Waits of the learner for a core are deducted, up to three
        quarters of the time. With --nodes, the node worker measures this time, and the time without an answer of the
        node worker is added. A learner in serial mode has no heartbeat: its age is 0.
        """

    def learns(self) -> bool:
        """Check whether a learner on this machine has a batch to learn from."""

    def environment_seconds(self) -> float:
        """Return the CPU-seconds of all environments in actors since the start of the fleet."""

    def actions_given(self, actor: int) -> int:
        """Return the number of vector env steps for which an actor received actions. 0 if no vector env could be reset.

        With --nodes: the number at the actor's last failure.
        """

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """Set the matchups of a pack, and return their version.

        row_UES: [U, E, S] (vector env, environment, agent), row of each agent.
        """

    @property
    def settled(self) -> bool:
        """True if a checkpoint may begin now. In serial mode: only between two iterations over all packs."""

    def save_vector_envs(self) -> list[Any]:
        """Return the states of all vector envs, in one list per actor. Empty if they cannot be saved."""

    def close(self, *, at_once: bool = False) -> None:
        """End all processes and release all memory. at_once: kill the processes without waiting."""


StartsFleet = Callable[[ResolvedRun, Start, Matchups, StatePool], Fleet]
"""Function that starts the processes of a run, which load members from the `StatePool` and save members to it."""


class LocalFleet:
    """Base class of the fleets on this machine, which share memory with learners and actors.

    Arguments: see `Memory`.
    """

    def __init__(
        self, resolved: ResolvedRun, start: Start, matchups: Matchups = (), pool: StatePool | None = None
    ) -> None:
        self.memory = Memory(resolved, start, matchups, pool)

    def environment_seconds(self) -> float:
        return self.memory.environment_seconds()

    def actions_given(self, actor: int) -> int:
        return self.memory.actions_given(actor)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        return self.memory.set_matchup(pack, row_UES)

    def waits(self, _pack: int) -> bool:
        """Return False, because this machine is always available."""
        return False


class ProcessFleet(LocalFleet):
    """Fleet of actor and learner processes.

    spare: idle process that becomes the first learner. None: start a process for each learner.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        start: Start,
        matchups: Matchups = (),
        pool: StatePool | None = None,
        spare: Waiting[Any, Any] | None = None,
    ) -> None:
        super().__init__(resolved, start, matchups, pool)
        self._spare = spare
        self._logs = log_folder(resolved)
        self._stacks = StackDumps(lambda: [*self.learners, *self.actors])
        self._timeout = resolved.config.actor_timeout_seconds
        self._learner_timeout = resolved.config.learner_timeout_seconds
        self._clock = ScheduledClock()
        self._delays = defaultdict[str, SchedulingDelay](SchedulingDelay)
        """Label of a child process -> the child's waits for a CPU core."""
        self.learners: list[LearnerChild] = []
        self.actors: list[ActorChild] = []
        """Actors, in the order of `memory.actors`."""
        self._hang_check = time.monotonic()
        self._ready: set[int] = set()
        """Packs whose learner has completed its start."""
        try:
            for pack in range(len(self.memory.learners)):
                self.learners.append(self._start_learner(pack))
            for index in range(len(self.memory.actors)):
                self.actors.append(self._start_actor(index))
        except BaseException:
            self.close()
            raise

    def _start_learner(self, pack: int) -> LearnerChild:
        self.memory.heartbeats[pack].note_start()
        setup = self.memory.learners[pack]
        label = f"learner {pack} ({setup.plan.device})"
        log = self._log(f"learner_{pack}")
        spare, self._spare = self._spare, None
        if spare is not None and spare.exit_code() is None:
            spare.set_up(label, setup, setup.fds, log)
            begun: LearnerChild = spare
            return begun
        return Child(LEARNER, label, setup, setup.fds, log)

    def _start_actor(self, index: int) -> ActorChild:
        record = self.memory.actors[index]
        for box in record.boxes:
            box.begin_life()
        log = self._log(f"actor_{index}")
        return Child("pbt_rl.actors.actor", f"actor {index}", record.setup, record.setup.fds, log)

    def _log(self, name: str) -> Path | None:
        return None if self._logs is None else self._logs / f"{name}.log"

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Wait for events, and yield them. The messages of a process come before the event of its end."""
        self._clock.tick()
        learners, actors = [*self.learners], [*self.actors]
        children: list[LearnerChild | ActorChild] = [*learners, *actors]
        children = [child for child in children if not child.connection.closed]  # closed: a restart failed
        sources = {source: child for child in children for source in (child.connection, child.sentinel)}
        full = [learner.flush() for learner in learners]
        ready = set(wait(sources, min(timeout_seconds, ROOM_SECONDS) if any(full) else timeout_seconds))
        # Compare children, not descriptors, because a new child may get the descriptors of an ended child.
        heard = {child for child in children if ready & {child.connection, child.sentinel}}
        ended = {child for child in heard if child.sentinel in ready}
        for pack, learner in enumerate(learners):
            if learner in heard:
                for message in learner.messages():
                    if isinstance(message, LearnerReady):
                        self._ready.add(pack)
                    yield Received(pack, message)
                if learner in ended:
                    ending = learner.ending()
                    yield LearnerLost(pack, ending.text, user_error=ending.user_error)
        for index, actor in enumerate(actors):
            if actor in heard and actor is self.actors[index]:  # otherwise it was replaced with its learner
                yield from (Notice(f"warning: {one.text}") for one in actor.messages())
                if actor in ended:
                    ending = actor.ending()
                    actor.end(0)  # the event comes once, even if the actor is not restarted
                    text = environment_output(ending.text)
                    yield ActorFailed(index, text, user_error=ending.user_error, killed=ending.killed)
        self._clock.tick()
        if time.monotonic() - self._hang_check > HANG_CHECK_SECONDS:
            self._hang_check = time.monotonic()
            yield from self._hung_learners()
            yield from self._hung_actors()

    def heartbeat_age_seconds(self, pack: int) -> float:
        """Return the seconds since a learner's last heartbeat, without time in which this process was stopped.

        Most of the time in which the learner waited for a CPU core is excluded, too (`SchedulingDelay`).
        """
        return self._heartbeat_age(self.learners[pack], self.memory.heartbeats[pack].heartbeat_age_seconds)

    def learns(self) -> bool:
        """Check whether a learner has a batch to learn from."""
        return any(heartbeat.learns for heartbeat in self.memory.heartbeats)

    def _heartbeat_age(self, child: LearnerChild | ActorChild, seconds: float) -> float:
        """Return the heartbeat age of a child without its waits for a CPU core. seconds: age with these waits."""
        counted = self._clock.of_last(seconds)
        if counted < GAP_SECONDS:
            return counted
        try:
            return self._delays[child.label].deduct(seconds, counted, child.pid)
        except OSError:  # the process has ended, which the next events report
            return counted

    def _hung_learners(self) -> Iterator[LearnerLost]:
        for pack, learner in enumerate(self.learners):
            seconds = self.heartbeat_age_seconds(pack)
            if seconds > self._learner_timeout * (1 if pack in self._ready else STARTS):
                doing = "made no progress" if pack in self._ready else "was not ready"
                limit = f"--learner-timeout-seconds {self._learner_timeout:g}"
                yield LearnerLost(pack, f"{learner.label} {doing} for {seconds:.0f} s ({limit})", hung=True)

    def _hung_actors(self) -> Iterator[ActorFailed]:
        for index, record in enumerate(self.memory.actors):
            # An actor steps its vector envs sequentially. Their newest heartbeat is therefore the actor's heartbeat.
            seconds = self._heartbeat_age(
                self.actors[index], min([box.heartbeat_age_seconds() for box in record.boxes])
            )
            has_work = not all(box.learner_has_turn for box in record.boxes)
            if has_work and seconds > self._timeout:
                text = f"actor {index} took no step for {seconds:.0f} s"
                yield ActorFailed(index, text, hung=True)

    def send(self, pack: int, message: ToLearner) -> None:
        """Send a message to a learner. If the learner has just ended, the message is lost."""
        self.learners[pack].post(message)

    def restart_actor(self, actor: int) -> None:
        """Restart an actor with new seeds. The counters of its mailboxes continue."""
        self.actors[actor].end(0)
        record = self.memory.actors[actor]
        record.restarts += 1
        seeds = tuple((seed + record.restarts) % 2**32 for seed in record.setup.seeds)
        record.setup = replace(record.setup, seeds=seeds)
        self.actors[actor] = self._start_actor(actor)

    def kill(self, pack: int) -> None:
        own: list[LearnerChild | ActorChild] = [self.learners[pack]]
        own += [self.actors[actor] for actor in self._actors_of(pack)]
        for child in own:
            child.kill()
        for child in own:
            child.end(0)

    def replace_learner(self, pack: int, start: Start) -> None:
        """Restart a learner and its actors. Mailboxes and shaping are reset, and matchups are kept."""
        self.memory.begin_anew(pack, start)
        self._ready.discard(pack)
        self.learners[pack] = self._start_learner(pack)
        for actor in self._actors_of(pack):
            self.restart_actor(actor)

    def _actors_of(self, pack: int) -> list[int]:
        return [index for index, record in enumerate(self.memory.actors) if record.pack == pack]

    settled = True

    def save_vector_envs(self) -> list[Any]:
        """Return an empty list, because environments are stepped during a checkpoint."""
        return []

    def close(self, *, at_once: bool = False) -> None:
        """Stop learners and close environments in parallel. After GRACE_SECONDS, kill the remaining processes."""
        children: list[LearnerChild | ActorChild] = [*self.learners, *self.actors]
        for learner in self.learners:
            learner.post(StopLearner())
        for actor in self.actors:
            actor.hang_up()
        deadline = time.monotonic() + (0.0 if at_once else GRACE_SECONDS)
        for child in children:
            if not child.wait(deadline):
                child.kill()
        for child in children:
            child.end(0.0)
        self.actors, self.learners = [], []
        self._stacks.close()
        self.memory.close()


def log_folder(resolved: ResolvedRun) -> Path | None:
    """Return the log folder of a run's processes. None if the run has no folder."""
    config = resolved.config
    return RunFolder(config.out / config.name).logs if config.name else None
