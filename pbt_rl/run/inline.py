"""Fleet of serial mode: actors and learners run round-robin in the supervisor's process.

    a message for a pack  -> that pack handles it, without training     (the first such pack, then the next)
    no messages           -> one pack runs until it has learned from a batch, then the next one

All packs are therefore between two batches at each decision, and equal seeds give equal bits.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from pbt_rl.actors.actor import Actor
from pbt_rl.actors.messages import FromLearner, LearnerReport, PauseTraining, ToLearner
from pbt_rl.actors.store import StatePool
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.time_limits import close_in_time
from pbt_rl.errors import EnvSetupError, RunFailed, environment_code
from pbt_rl.learner.build import own_torch
from pbt_rl.learner.learner import Learner
from pbt_rl.processes.child import ChildFailed, StackDumps
from pbt_rl.record.journal import as_json_types
from pbt_rl.run.fleet import Event, LocalFleet, Notice, Received
from pbt_rl.run.memory import Matchups, Start
from pbt_rl.run.resolved import ResolvedRun

PAUSED_SECONDS = 0.001
"""Sleep of a paused run, because the thread that writes the checkpoint needs the interpreter."""


class Line:
    """One end of a connection within a thread; not a pipe, because a full pipe would deadlock the thread."""

    def __init__(self, there: deque[bytes], back: deque[bytes]) -> None:
        self._there, self._back = there, back

    def send(self, message: object) -> None:
        """Send a copy of a message."""
        self._there.append(pickle.dumps(message))

    def recv(self) -> Any:
        """Return the oldest message. Raises IndexError if there is none."""
        return pickle.loads(self._back.popleft())

    def poll(self) -> bool:
        """Check whether a message is available."""
        return bool(self._back)

    @property
    def unheard(self) -> bool:
        """True while the other end has unread messages."""
        return bool(self._there)


@dataclass(frozen=True)
class InlinePack:
    """Learner and its actors."""

    line: Line
    learner: Learner
    actors: list[Actor]


class InlineFleet(LocalFleet):
    """Actors and learners in this process, one after another; equal seeds give equal bits."""

    def __init__(
        self, resolved: ResolvedRun, start: Start, matchups: Matchups = (), pool: StatePool | None = None
    ) -> None:
        super().__init__(resolved, start, matchups, pool)
        self._env_id = resolved.config.env
        self._folder = _working_directory()
        """Working directory of the environments, kept separate because some change it."""
        self._notices: list[Notice] = []
        """Notices to yield."""
        self.packs = [self._start_pack(number) for number in range(len(resolved.plan.packs))]
        self._going = 0
        """Pack that trains next."""
        self._paused = False
        self._said_unsaved = False
        self._stacks = StackDumps(list)

    def _start_pack(self, number: int) -> InlinePack:
        there, back = deque[bytes](), deque[bytes]()
        theirs = cast("Connection[FromLearner | ChildFailed, ToLearner]", Line(back, there))
        with own_torch():  # environments of another pack may be there
            learner = Learner(self.memory.learners[number], theirs)
        with environment_code(self._env_id), self._there():
            setups = (record.setup for record in self.memory.actors if record.pack == number)
            actors = [
                Actor(setup, lambda text: self._notices.append(Notice(f"warning: {text}")))
                for setup in setups
            ]
        return InlinePack(Line(there, back), learner, actors)

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Switch to the working directory of the environments."""
        ours = _working_directory()
        os.fchdir(self._folder)
        try:
            yield
        finally:
            os.close(self._folder)
            self._folder = _working_directory()
            os.fchdir(ours)
            os.close(ours)

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """Run packs until a learner sends a message; without patience, only handle messages."""
        while self._notices:
            yield self._notices.pop(0)
        deadline = time.monotonic() + patience_seconds
        while not any(pack.line.poll() for pack in self.packs):
            asked = next((pack for pack in self.packs if pack.line.unheard), None)
            if asked is not None:
                self._learn(asked)
            elif time.monotonic() < deadline:
                self._go_on(self.packs[self._going])
            else:
                break
        for number, pack in enumerate(self.packs):
            while pack.line.poll():
                message = pack.line.recv()
                if number == self._going and isinstance(message, LearnerReport):
                    self._going = (number + 1) % len(self.packs)
                yield Received(number, message)

    def _go_on(self, pack: InlinePack) -> None:
        if self._paused:
            time.sleep(PAUSED_SECONDS)
        for actor in () if self._paused else pack.actors:
            try:
                with self._there():
                    actor.iterate()
            except EnvSetupError:
                raise
            except (Exception, SystemExit) as error:
                raise RunFailed(
                    f"{self._env_id} raised an error, which ends a run in serial mode (other modes restart the "
                    f"actor).\n{environment_traceback(error)}"
                ) from error
        self._learn(pack)

    @staticmethod
    def _learn(pack: InlinePack) -> None:
        """Run one step of a learner, isolated from torch modes and defaults that an environment has set."""
        with own_torch():
            pack.learner.iterate()

    def send(self, pack: int, message: ToLearner) -> None:
        self._paused = self._paused or isinstance(message, PauseTraining)
        self.packs[pack].line.send(message)

    def restart_actor(self, actor: int) -> None:
        """Fail, because an error of an environment ends a serial run."""
        raise AssertionError(actor)

    def kill(self, pack: int) -> None:
        """Fail, because learners run in this process."""
        raise AssertionError(pack)

    def replace_learner(self, pack: int, _start: Start) -> None:
        raise AssertionError(pack)

    def heartbeat_age_seconds(self, _pack: int) -> float:
        """Return 0, because learners run in this process."""
        return 0.0

    def learns(self) -> bool:
        """Return False, because views are not updated during learning."""
        return False

    @property
    def settled(self) -> bool:
        """True if all packs have made equal progress, because a resumed run starts with the first one."""
        return self._going == 0 and all(pack.learner.between_batches for pack in self.packs)

    def save_vector_envs(self) -> list[Any]:
        """Return the states; an empty list if an environment's `save_state` raises or does not return JSON types."""
        try:
            with self._there():
                vector_envs = [actor.save() for pack in self.packs for actor in pack.actors]
            _check_json(as_json_types(vector_envs))
        except Exception as error:  # noqa: BLE001 - user code: save the run without it
            if not self._said_unsaved:
                self._said_unsaved = True
                self._notices.append(
                    Notice(
                        f"the state of {self._env_id} cannot be saved, so a resumed run starts new episodes: its "
                        f"save_state() must return a dict of JSON types ({type(error).__name__}: {error})"
                    )
                )
            return []
        return [] if any(state is None for states in vector_envs for state in states) else vector_envs

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - the time is limited anyway
        """Close everything; leave an environment that does not close in time."""
        with self._there(), contextlib.ExitStack() as actors:
            for actor in (actor for pack in self.packs for actor in pack.actors):
                actors.callback(actor.close)
            if text := close_in_time(actors):
                print(f"pbt-rl: {text}", file=sys.stderr)
        os.close(self._folder)
        self._stacks.close()
        for pack in self.packs:
            pack.learner.close()
        self.memory.close()


def _working_directory() -> int:
    """Open a descriptor of the working directory, valid also after its deletion."""
    return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _check_json(states: Any) -> None:
    """Raise TypeError or ValueError if a JSON round trip changes the states, such as non-string keys."""
    if json.loads(json.dumps(states, allow_nan=False)) != states:
        raise TypeError("a key of a dict is not a string")
