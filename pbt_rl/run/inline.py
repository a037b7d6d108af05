"""The fleet of serial mode: actors and the learner take turns in the supervisor's process."""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, cast

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.envs.traces import environment_traceback
from pbt_rl.errors import RunFailed, environment_code
from pbt_rl.learner.learner import Learner
from pbt_rl.run.fleet import GRACE_SECONDS, Event, LocalFleet, Received, log_folder
from pbt_rl.run.handlers import in_main_thread
from pbt_rl.run.memory import Matchups
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.stacks import StackDumps
from pbt_rl.run.start import Start
from pbt_rl.wire.actor import Actor
from pbt_rl.wire.messages import ChildFailed, FromLearner, PauseTraining, ToLearner

INSIST_SECONDS = 0.2


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


class InlineFleet(LocalFleet):
    """Serial mode: actors and the learner take turns in this process; the same seed gives the same bits."""

    def __init__(self, resolved: ResolvedRun, start: Start, matchups: Matchups = ()) -> None:
        super().__init__(resolved, start, matchups)
        there, back = deque[bytes](), deque[bytes]()
        self._ours = Line(there, back)
        theirs = cast("Connection[FromLearner | ChildFailed, ToLearner]", Line(back, there))
        self._learner = Learner(self._memory.learners[0], theirs)
        self._memory.started()
        self._env_id = resolved.config.env
        self._paused = False
        with environment_code(self._env_id):
            self._actors = [Actor(record.setup) for record in self._memory.actors]
        self._stacks = StackDumps(log_folder(resolved), list)

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See Fleet. Takes turns until the learner sends a message."""
        deadline = time.monotonic() + patience_seconds
        while not self._ours.poll() and time.monotonic() < deadline:
            for actor in () if self._paused else self._actors:
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
        self._paused = self._paused or isinstance(message, PauseTraining)
        self._ours.send(message)

    def restart_actor(self, actor: int) -> None:
        """Fail: no event asks for it, since an environment that raises ends a serial run."""
        raise AssertionError(actor)

    def silent_seconds(self, _pack: int) -> float:
        """Return 0: the learner runs in this process."""
        return 0.0

    @property
    def settled(self) -> bool:
        """See Fleet."""
        return self._learner.between_batches

    def save_units(self) -> list[Any]:
        """See Fleet."""
        units = [actor.save() for actor in self._actors]
        return [] if any(state is None for states in units for state in states) else units

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - the time is limited anyway
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
    """Raise _OutOfTimeError inside after this time, and again where it is caught there.

    In another thread than the main one there is no limit.
    """
    if not in_main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _OutOfTimeError

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, INSIST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
