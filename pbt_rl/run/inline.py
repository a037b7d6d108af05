"""The fleet of serial mode: actors and learners take turns in the supervisor's process.

    what was sent to a pack  -> that pack hears it, and goes no further     (the first such pack, then the next)
    nothing waits            -> one pack goes on until it has learned from a batch, then the next one

So all packs rest between two batches whenever a decision is made, and the same seed gives the same bits.
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
"""A turn of a paused run: the thread that writes the checkpoint needs the interpreter."""


class Line:
    """One end of a connection within a thread. A pipe holds little: who fills it would wait for itself to empty it."""

    def __init__(self, there: deque[bytes], back: deque[bytes]) -> None:
        self._there, self._back = there, back

    def send(self, message: object) -> None:
        """Hand a message over; the other end gets a copy."""
        self._there.append(pickle.dumps(message))

    def recv(self) -> Any:
        """Return the oldest message. Raises IndexError if there is none."""
        return pickle.loads(self._back.popleft())

    def poll(self) -> bool:
        """Whether a message is there."""
        return bool(self._back)

    @property
    def unheard(self) -> bool:
        """Whether the other end has still to hear something."""
        return bool(self._there)


@dataclass(frozen=True)
class InlinePack:
    """A learner and its actors."""

    line: Line
    learner: Learner
    actors: list[Actor]


class InlineFleet(LocalFleet):
    """Serial mode: actors and learners take turns in this process; the same seed gives the same bits."""

    def __init__(
        self, resolved: ResolvedRun, start: Start, matchups: Matchups = (), pool: StatePool | None = None
    ) -> None:
        super().__init__(resolved, start, matchups, pool)
        self._env_id = resolved.config.env
        self._folder = _working_directory()
        """The working directory of the environments, as it would be in a process of their own: some change theirs."""
        self._notices: list[Notice] = []
        """Not told yet."""
        self.packs = [self._start_pack(number) for number in range(len(resolved.plan.packs))]
        self._going = 0
        """The pack that goes on."""
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
        """Be in the working directory of the environments inside."""
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
        """Packs take turns until a learner sends a message; without patience, to hear what was sent."""
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
                    actor.turn()
            except EnvSetupError:
                raise
            except (Exception, SystemExit) as error:
                raise RunFailed(
                    f"{self._env_id} raised, and in serial mode it has no process that could be replaced (in the "
                    f"others an actor is restarted).\n{environment_traceback(error)}"
                ) from error
        self._learn(pack)

    @staticmethod
    def _learn(pack: InlinePack) -> None:
        """Let a learner have its turn. Modes and defaults of torch that an environment has set are not its own."""
        with own_torch():
            pack.learner.turn()

    def send(self, pack: int, message: ToLearner) -> None:
        self._paused = self._paused or isinstance(message, PauseTraining)
        self.packs[pack].line.send(message)

    def restart_actor(self, actor: int) -> None:
        """Fail: no event asks for it, since an environment that raises ends a serial run."""
        raise AssertionError(actor)

    def fence(self, pack: int) -> None:
        """Fail, as learners run in this process: the run ends with them."""
        raise AssertionError(pack)

    def replace_learner(self, pack: int, _start: Start) -> None:
        raise AssertionError(pack)

    def silent_seconds(self, _pack: int) -> float:
        """Return 0: learners run in this process."""
        return 0.0

    def learns(self) -> bool:
        """Return False: nobody looks while they learn."""
        return False

    @property
    def settled(self) -> bool:
        """All packs have gone equally far: a run that is continued begins with the first one."""
        return self._going == 0 and all(pack.learner.between_batches for pack in self.packs)

    def save_units(self) -> list[Any]:
        """Environments whose `save_state` raises, or returns what is not JSON, cost no checkpoint."""
        try:
            with self._there():
                units = [actor.save() for pack in self.packs for actor in pack.actors]
            _check_json(as_json_types(units))
        except Exception as error:  # noqa: BLE001 - a user's code: the run is saved without it
            if not self._said_unsaved:
                self._said_unsaved = True
                self._notices.append(
                    Notice(
                        f"the state of {self._env_id} cannot be saved, so that a resumed run begins new episodes: its "
                        f"save_state() must return a dict of JSON types ({type(error).__name__}: {error})"
                    )
                )
            return []
        return [] if any(state is None for states in units for state in states) else units

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - the time is limited anyway
        """An environment that is not closed in time is left."""
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
    """Return a descriptor of it, which serves if it is deleted meanwhile, too."""
    return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _check_json(states: Any) -> None:
    """Raise TypeError or ValueError for what JSON does not give back, such as keys of dicts that are no texts."""
    if json.loads(json.dumps(states, allow_nan=False)) != states:
        raise TypeError("a key of a dict is not a text")
