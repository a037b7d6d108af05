"""The fleet: every process of a run, and the anonymous memory between them.

It starts processes, notices how they end, replaces them, and passes all messages but failures on unread. In serial
mode the same setups run inline (`run.inline`), turn by turn in the supervisor's process.
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

from pbt_rl.actors.messages import FromLearner, LearnerReady, Remarked, StopLearner, ToLearner
from pbt_rl.actors.store import StatePool
from pbt_rl.processes.child import LEARNER, Child, StackDumps, Waiting
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.awake import GAP_SECONDS, AwakeClock, Starved
from pbt_rl.run.memory import Matchups, Memory, Start
from pbt_rl.run.resolved import ResolvedRun

GRACE_SECONDS = 3.0
"""At the end learners stop and environments are closed within this time, all at once; then they are killed."""
HANG_CHECK_SECONDS = 1.0
ROOM_SECONDS = 0.01
"""Between two looks whether a learner has room again for what it was sent."""
STARTS = 5
"""So many times its timeout a learner may take to start: imports, compilation, a large pack."""

LearnerChild = Child[ToLearner, FromLearner]
ActorChild = Child[Never, Remarked]
"""Steps and actions go through mailboxes: an actor receives its setup, and sends remarks, and an error if it fails."""


@dataclass(frozen=True)
class Received:
    """A learner has sent a message."""

    pack: int
    message: FromLearner


@dataclass(frozen=True)
class LearnerLost:
    """A learner process has ended, or makes no progress any more.

    text: the error that it sent, else how it ended or for how long it has hung. user_error: only the user can mend it.
    machine: it is lost with its machine, so that nothing is wrong with it.
    """

    pack: int
    text: str
    hung: bool = False
    user_error: bool = False
    machine: bool = False

    @property
    def kind(self) -> str:
        """For the journal."""
        return "machine" if self.machine else "hung" if self.hung else "died"


@dataclass(frozen=True)
class MachineLeaving:
    """The machine of a pack will be taken away soon. lost: what will be said then."""

    lost: LearnerLost


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
    killed: bool = False
    """It was killed from outside (SIGKILL), which is no fault of the environment."""


@dataclass(frozen=True)
class Notice:
    """Something that a user may want to know."""

    text: str


Event = Received | LearnerLost | MachineLeaving | ActorFailed | Notice


class Fleet(Protocol):
    """The processes of a run, as the supervisor uses them: on this machine, in this process, or over a cluster."""

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """Wait for something to happen, at most for this long; yield what has happened."""

    def send(self, pack: int, message: ToLearner) -> None:
        """Send a message to a learner."""

    def restart_actor(self, actor: int) -> None:
        """Replace an actor that died or hangs."""

    def fence(self, pack: int) -> None:
        """Kill a learner and its actors: nothing that they do or have sent reaches anybody from now on."""

    def replace_learner(self, pack: int, start: Start) -> None:
        """Start a learner and its actors anew, once they are fenced."""

    def waits(self, pack: int, /) -> bool:
        """Return whether there is no machine for a pack now."""

    def silent_seconds(self, pack: int, /) -> float:
        """Return for how long a learner has shown no sign of life."""

    def learns(self) -> bool:
        """Return whether any learner of this machine has a batch to learn from."""

    def environment_seconds(self) -> float:
        """Return the CPU-seconds that all environments took, in total."""

    def actions_given(self, actor: int) -> int:
        """Return how many actions an actor's units were given, in total: 0 if it never became usable."""

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """Seat these rows, [U, E, S], in a pack's environments; returns the version of the matchup."""

    @property
    def settled(self) -> bool:
        """Whether a run that stops now can be continued as if it had not: in serial mode between two batches only."""

    def save_units(self) -> list[Any]:
        """Return the states of all units, actor by actor; nothing if they cannot be saved."""

    def close(self, *, at_once: bool = False) -> None:
        """End every process and release all memory. at_once: learners get no time to end by themselves."""


StartsFleet = Callable[[ResolvedRun, Start, Matchups, StatePool], Fleet]
"""Starts the processes of a run; they load from the pool, and save into it."""


class LocalFleet:
    """What the fleets of this machine answer from the memory that they share with their learners and actors."""

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
        """Return False: the machine stays."""
        return False


class ProcessFleet(LocalFleet):
    """Actors and learners as processes. spare: becomes the first learner."""

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
        self._awake = AwakeClock()
        self._starved = defaultdict[str, Starved](Starved)
        """By the label of a child."""
        self.learners: list[LearnerChild] = []
        """Of each pack."""
        self.actors: list[ActorChild] = []
        """In the order of `memory.actors`."""
        self._hang_check = time.monotonic()
        self._ready: set[int] = set()
        """Packs whose learner has started."""
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

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """A death is reported after all messages that the process sent."""
        self._awake.tick()
        learners, actors = [*self.learners], [*self.actors]
        children: list[LearnerChild | ActorChild] = [*learners, *actors]
        children = [child for child in children if not child.connection.closed]  # one could not be restarted
        sources = {source: child for child in children for source in (child.connection, child.sentinel)}
        full = [learner.flush() for learner in learners]
        ready = set(wait(sources, min(patience_seconds, ROOM_SECONDS) if any(full) else patience_seconds))
        # Children, not descriptors: one that is started below may be given the numbers of one that has ended.
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
            if actor in heard and actor is self.actors[index]:  # else it went with its learner
                yield from (Notice(f"warning: {one.text}") for one in actor.messages())
                if actor in ended:
                    ending = actor.ending()
                    yield ActorFailed(index, ending.text, user_error=ending.user_error, killed=ending.killed)
        self._awake.tick()
        if time.monotonic() - self._hang_check > HANG_CHECK_SECONDS:
            self._hang_check = time.monotonic()
            yield from self._hung_learners()
            yield from self._hung_actors()

    def silent_seconds(self, pack: int) -> float:
        """Time in which this process did not run, or the learner waited for a processor, counts less."""
        return self._silence(self.learners[pack], self.memory.heartbeats[pack].silent_seconds)

    def learns(self) -> bool:
        """Return whether any learner has a batch to learn from."""
        return any(heartbeat.learns for heartbeat in self.memory.heartbeats)

    def _silence(self, child: LearnerChild | ActorChild, seconds: float) -> float:
        """Return how much of a child's silence counts against it: on a starved machine less than passed."""
        counted = self._awake.of_last(seconds)
        if counted < GAP_SECONDS:
            return counted
        try:
            return self._starved[child.label].of_silence(seconds, counted, child.pid)
        except OSError:  # it never began, and is about to be seen to end
            return counted

    def _hung_learners(self) -> Iterator[LearnerLost]:
        for pack, learner in enumerate(self.learners):
            seconds = self.silent_seconds(pack)
            if seconds > self._learner_timeout * (1 if pack in self._ready else STARTS):
                doing = "made no progress" if pack in self._ready else "was not ready"
                limit = f"--learner-timeout-seconds {self._learner_timeout:g}"
                yield LearnerLost(pack, f"{learner.label} {doing} for {seconds:.0f} s ({limit})", hung=True)

    def _hung_actors(self) -> Iterator[ActorFailed]:
        for index, record in enumerate(self.memory.actors):
            # It serves its units in turn: while one of them shows signs of life, the others wait.
            seconds = self._silence(self.actors[index], min([box.seconds_silent() for box in record.boxes]))
            has_work = not all(box.learner_has_turn for box in record.boxes)
            if has_work and seconds > self._timeout:
                text = f"actor {index} took no step for {seconds:.0f} s"
                yield ActorFailed(index, text, hung=True)

    def send(self, pack: int, message: ToLearner) -> None:
        """One that has just ended hears nothing; its end is an event."""
        self.learners[pack].post(message)

    def restart_actor(self, actor: int) -> None:
        """Its successor continues at the mailboxes' counters, with seeds of its own."""
        self.actors[actor].end(0)
        record = self.memory.actors[actor]
        record.restarts += 1
        seeds = tuple((seed + record.restarts) % 2**32 for seed in record.setup.seeds)
        record.setup = replace(record.setup, seeds=seeds)
        self.actors[actor] = self._start_actor(actor)

    def fence(self, pack: int) -> None:
        own: list[LearnerChild | ActorChild] = [self.learners[pack]]
        own += [self.actors[actor] for actor in self._actors_of(pack)]
        for child in own:
            child.kill()
        for child in own:
            child.end(0)

    def replace_learner(self, pack: int, start: Start) -> None:
        """Mailboxes and shaping begin anew; matchups stay."""
        self.memory.begin_anew(pack, start)
        self._ready.discard(pack)
        self.learners[pack] = self._start_learner(pack)
        for actor in self._actors_of(pack):
            self.restart_actor(actor)

    def _actors_of(self, pack: int) -> list[int]:
        return [index for index, record in enumerate(self.memory.actors) if record.pack == pack]

    settled = True

    def save_units(self) -> list[Any]:
        """Environments go on while members are saved."""
        return []

    def close(self, *, at_once: bool = False) -> None:
        """Learners stop and actors close their environments, at once and for a limited time."""
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
    """Return where the processes of a run print to; None if it has no folder."""
    config = resolved.config
    return RunFolder(config.out / config.name).logs if config.name else None
