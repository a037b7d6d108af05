"""The fleet: every process of a run, and the anonymous memory between them.

It knows how processes start, die and are replaced; what they say is passed on. In serial mode the same setups
run inline (`InlineFleet`), turn by turn in the supervisor's process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.registry import EnvOptions
from pbt_rl.learner.learner import Learner
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import Plan
from pbt_rl.run.memory import Matchups, Memory
from pbt_rl.wire.actor import Actor
from pbt_rl.wire.mailbox import HEARTBEAT_NS
from pbt_rl.wire.process import Child

GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Event:
    """Something happened in the fleet. `index`: of the pack (message, learner_died) or the actor."""

    kind: Literal["message", "learner_died", "actor_died", "actor_hung"]
    index: int
    content: Any
    """The message; or in words how it ended, with a traceback where there is one."""
    user_error: bool = False
    """An actor broke a contract that only its user can mend."""


class Fleet(Protocol):
    """What the supervisor needs of the processes."""

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """Wait for something to happen, at most so long, and say what."""

    def send(self, pack: int, message: tuple[Any, ...]) -> None:
        """Say something to a learner."""

    def restart_actor(self, actor: int) -> None:
        """Replace an actor that died or hangs."""

    def environment_seconds(self) -> float:
        """CPU-seconds that all environments took, in total."""

    def steps_answered(self, actor: int) -> int:
        """How many actions an actor's units were given, in total: 0 says that it never got to work."""

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """Have a pack's environments played by these rows, [U, E, S]; returns the version of the matchup."""

    def close(self) -> None:
        """End every process and release all memory."""


class ProcessFleet:
    """Actors and learners as processes."""

    def __init__(
        self,
        config: Config,
        options: EnvOptions,
        spec: EnvSpec,
        plan: Plan,
        values: list[Values],
        matchups: Matchups = (),
    ) -> None:
        self._memory = Memory(config, options, spec, plan, values, matchups)
        self._timeout = config.actor_timeout_seconds
        self._learners: list[Child] = []
        self._actors: list[Child] = []
        self._hang_check = time.monotonic()
        try:
            for number, setup in enumerate(self._memory.learners):
                fds = {
                    *setup.mailbox_fds,
                    *setup.wake_fds,
                    setup.ready_fd,
                    setup.shaping_fd,
                    setup.exchange_fd,
                }
                label = f"learner {number} ({setup.plan.device})"
                self._learners.append(Child("pbt_rl.learner.learner", label, setup, sorted(fds)))
            for index in range(len(self._memory.actors)):
                self._actors.append(self._start_actor(index))
        except BaseException:
            self.close()
            raise

    def _start_actor(self, index: int) -> Child:
        record = self._memory.actors[index]
        for box in record.boxes:
            box.header[HEARTBEAT_NS] = time.monotonic_ns()
        setup = record.setup
        fds = [*setup.mailbox_fds, setup.shaping_fd, setup.wake_fd, setup.ready_fd]
        if setup.matchup_fd >= 0:
            fds.append(setup.matchup_fd)
        return Child("pbt_rl.wire.actor", f"actor {index}", setup, fds)

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See Fleet. A death is told after all that the process still said."""
        sources: dict[Any, tuple[list[Child], int]] = {}
        for children in (self._learners, self._actors):
            for i, child in enumerate(children):
                sources[child.connection] = sources[child.sentinel] = (children, i)
        for source in wait(list(sources), patience_seconds):
            children, i = sources[source]
            child = children[i]
            if source is child.connection:
                yield from self._messages(children, i)
            elif child.exit_code() is not None:
                yield from self._messages(children, i)
                yield self._death(children, i, child.how_it_ended())
        if time.monotonic() - self._hang_check > 1.0:
            self._hang_check = time.monotonic()
            yield from self._hung_actors()

    def _messages(self, children: list[Child], index: int) -> Iterator[Event]:
        child = children[index]
        try:
            while child.connection.poll():
                message = child.connection.recv()
                if message[0] in ("error", "user_error"):
                    child.last_words = message[1]
                    child.user_error = message[0] == "user_error"
                else:
                    yield Event("message", index, message)
        except (EOFError, ConnectionError):
            child.exit_code_soon()

    def _death(self, children: list[Child], index: int, ending: str) -> Event:
        child = children[index]
        text = child.last_words or ending
        kind: Literal["learner_died", "actor_died"] = (
            "learner_died" if children is self._learners else "actor_died"
        )
        return Event(kind, index, text, child.user_error)

    def _hung_actors(self) -> Iterator[Event]:
        for index, record in enumerate(self._memory.actors):
            # The oldest of its units may wait for the others, but all of them are never this old at once.
            seconds = [box.seconds_with_actor() for box in record.boxes]
            if min(seconds) > self._timeout or max(seconds) > self._timeout * len(seconds):
                yield Event("actor_hung", index, f"actor {index} took no step for {max(seconds):.0f} s")

    def send(self, pack: int, message: tuple[Any, ...]) -> None:
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

    def steps_answered(self, actor: int) -> int:
        """See Fleet."""
        return self._memory.steps_answered(actor)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """See Fleet."""
        return self._memory.set_matchup(pack, row_UES)

    def close(self) -> None:
        """See Fleet. Learners are asked first; actors hold nothing that is worth waiting for."""
        for child in self._learners:
            try:
                child.connection.send(("stop",))
            except OSError:
                continue
        for child in self._actors:
            child.end(0)
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._learners:
            child.end(max(0.0, deadline - time.monotonic()))
        self._actors, self._learners = [], []
        self._memory.close()


class InlineFleet:
    """Serial mode: actors and the learner take turns in this process; the same seed gives the same bits."""

    def __init__(
        self,
        config: Config,
        options: EnvOptions,
        spec: EnvSpec,
        plan: Plan,
        values: list[Values],
        matchups: Matchups = (),
    ) -> None:
        self._memory = Memory(config, options, spec, plan, values, matchups)
        self._ours: Connection[Any, Any]
        self._ours, theirs = Pipe()
        self._learner = Learner(self._memory.learners[0], theirs)
        self._actors = [Actor(record.setup) for record in self._memory.actors]

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See Fleet. Takes turns until the learner says something."""
        deadline = time.monotonic() + patience_seconds
        while not self._ours.poll() and time.monotonic() < deadline:
            for actor in self._actors:
                actor.turn()
            self._learner.turn()
        while self._ours.poll():
            yield Event("message", 0, self._ours.recv())

    def send(self, pack: int, message: tuple[Any, ...]) -> None:
        """See Fleet."""
        assert pack == 0, "serial mode has one pack"
        self._ours.send(message)

    def restart_actor(self, actor: int) -> None:
        """Never asked for: an environment that raises ends a serial run with its traceback."""
        raise AssertionError(actor)

    def environment_seconds(self) -> float:
        """See Fleet."""
        return self._memory.environment_seconds()

    def steps_answered(self, actor: int) -> int:
        """See Fleet."""
        return self._memory.steps_answered(actor)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        """See Fleet."""
        return self._memory.set_matchup(pack, row_UES)

    def close(self) -> None:
        """See Fleet."""
        for actor in self._actors:
            actor.close()
        self._memory.close()
