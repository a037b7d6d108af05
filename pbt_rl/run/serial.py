"""Training loop and fleet of serial mode. Actors and learners run in the supervisor's process.

    if there are messages for packs    the packs handle the messages in order, without training
    otherwise                          the loop continues: each pack in turn learns from a batch

At each decision, all packs are between two batches. On one machine, equal options and seeds therefore give equal bits,
if the environments are reproducible and no option depends on the time (such as --train-for-seconds).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol, cast

from pbt_rl.actors.actor import Actor
from pbt_rl.actors.messages import FromLearner, LearnerReport, PauseTraining, ToLearner
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.controllers.decisions import Decision
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.time_limits import close_in_time
from pbt_rl.errors import EnvSetupError, RunFailed, end_fork, environment_code
from pbt_rl.learner.build import network_errors, own_torch
from pbt_rl.learner.learner import Learner
from pbt_rl.processes.child import ChildFailed, StackDumps
from pbt_rl.record.journal import as_json_types
from pbt_rl.run.clocks import Every
from pbt_rl.run.fleet import Event, LocalFleet, Notice, Received
from pbt_rl.run.memory import Matchups, Start
from pbt_rl.run.resolved import ResolvedRun

PAUSE_SECONDS = 0.1
"""Interval of yields to the supervisor during the collection of rollouts, in seconds."""


def train_serially(packs: Sequence[SerialPack], supervisor: Compares) -> Iterator[bool]:
    """Train all packs in one thread: the loop of `--mode serial`.

    At each yield, the supervisor delivers messages, updates displays, and saves the run. The supervisor ends the run by
    not requesting the next element. The loop yields True after the last pack of an iteration: a run that is saved at
    this point resumes bit for bit, if its environments save their states (docs/operate.md).
    """
    pause = Every(PAUSE_SECONDS)
    while True:
        for pack in packs:
            learner = pack.learner
            sampler, trainer, updater = learner.sampler, learner.trainer, learner.trainer.updater

            # Collect: step environments and run inference until the rollouts fill a batch.
            with pack.torch():
                learner.resume()
            while learner.holds_members and not trainer.has_batch:
                pack.step_environments()
                with pack.torch():
                    sampler.run_inference()
                if pause.due():
                    yield False

            reports = []
            with pack.torch():
                while trainer.has_batch:
                    batch = trainer.take_batch()
                    # Targets: compute the advantages of each group of policies that share optimiser steps.
                    for group in trainer.targets(batch):
                        # Update: take optimiser steps over epochs of minibatches, and publish the new weights.
                        for slots in updater.steps(group):
                            trainer.publish(slots)
                    trainer.end_batch(batch)
                    reports.append(learner.report())

            for report in reports or [learner.report()]:
                # Compare: if a comparison is due, the controller decides on copies and new values of members.
                decisions = supervisor.compare(pack, report)
                # Exchange: learners receive messages to save, load and change members.
                # All learners handle these messages before any of them trains.
                supervisor.exchange(decisions)
            yield pack is packs[-1]


class Compares(Protocol):
    """Interface of the training loop to the supervisor."""

    def compare(self, pack: SerialPack, report: LearnerReport) -> Sequence[Decision]:
        """Report the population to the controller, and return the controller's decisions."""

    def exchange(self, decisions: Sequence[Decision]) -> None:
        """Send decisions to the learners."""


class Forward:
    """Sender of reports to a supervisor in another process (`--nodes`). This supervisor compares the members."""

    def compare(self, pack: SerialPack, report: LearnerReport) -> Sequence[Decision]:
        pack.learner.send(report)
        return ()

    def exchange(self, decisions: Sequence[Decision]) -> None:
        """Do nothing, because the supervisor sends decisions as messages."""


class Line:
    """One end of a connection within a thread, made of queues. (A full pipe would block the thread.)

    there: queue of the messages that this end sends. back: queue of the messages that this end receives.
    """

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
        """True while the receiver has not read all messages that this end has sent."""
        return bool(self._there)


@dataclass(frozen=True)
class SerialPack:
    """Learner of a pack, with its actors.

    line: the supervisor's end of the connection to the learner. folder: working directory of the environments.
    process: id of the process that made this object.
    """

    number: int
    line: Line
    learner: Learner
    actors: list[Actor]
    folder: EnvironmentFolder
    env_id: str
    process: int = field(default_factory=os.getpid, init=False)

    def step_environments(self) -> None:
        """Step each environment whose action is ready.

        Raises RunFailed if an environment raises an error, and EnvSetupError if it violates its interface.
        """
        for actor in self.actors:
            try:
                with self.folder.entered():
                    actor.iterate()
            except EnvSetupError:
                raise
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                end_fork(self.process, error)
                raise RunFailed(
                    f"{self.env_id} raised an error, which ends a run in serial mode (other modes restart the "
                    f"actor).\n{environment_traceback(error)}"
                ) from error
        self.learner.clock.tick(trains=self.learner.sampler.has_stepped)

    @contextlib.contextmanager
    def torch(self) -> Iterator[None]:
        """Isolate the learner from an environment's torch modes and defaults. Convert network errors to ConfigError."""
        with own_torch(), network_errors():
            yield


class EnvironmentFolder:
    """Separate working directory for the environments. (Some environments change the working directory.)"""

    def __init__(self) -> None:
        self._theirs = _working_directory()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Switch to the directory of the environments. At the exit, store their new directory and switch back."""
        ours = _working_directory()
        os.fchdir(self._theirs)
        try:
            yield
        finally:
            os.close(self._theirs)
            self._theirs = _working_directory()
            os.fchdir(ours)
            os.close(ours)

    def close(self) -> None:
        """Close the descriptor of the directory."""
        os.close(self._theirs)


class SerialFleet(LocalFleet):
    """Fleet whose actors and learners run sequentially in this process.

    supervisor: supervisor that compares members. None: reports are sent to a supervisor in another process.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        start: Start,
        matchups: Matchups = (),
        pool: StatePool | None = None,
        supervisor: Compares | None = None,
    ) -> None:
        super().__init__(resolved, start, matchups, pool)
        self._env_id = resolved.config.env
        self._folder = EnvironmentFolder()
        self._notices: list[Notice] = []
        self.packs = [self._start_pack(number) for number in range(len(resolved.plan.packs))]
        self._training = train_serially(self.packs, supervisor or Forward())
        self.settled = True
        """True after an iteration over all packs. During training, a checkpoint begins only then, because a resume
        starts at pack 0."""
        self._paused = False
        self._said_unsaved = False
        self._stacks = StackDumps(list)

    def _start_pack(self, number: int) -> SerialPack:
        there, back = deque[bytes](), deque[bytes]()
        theirs = cast("Connection[FromLearner | ChildFailed, ToLearner]", Line(back, there))
        with own_torch():  # environments of another pack may have changed torch defaults
            learner = Learner(self.memory.learners[number], theirs)
        with environment_code(self._env_id), self._folder.entered():
            setups = (record.setup for record in self.memory.actors if record.pack == number)
            actors = [
                Actor(setup, lambda text: self._notices.append(Notice(f"warning: {text}")))
                for setup in setups
            ]
        return SerialPack(number, Line(there, back), learner, actors, self._folder, self._env_id)

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Yield messages of the learners. If there are none, let a learner handle its messages, or else train.

        Training continues until `train_serially` yields. Do not train if `timeout_seconds` is 0, or after
        `PauseTraining`.
        Raises RunFailed or EnvSetupError for an error of an environment, and ConfigError for an error of a network.
        """
        while self._notices:
            yield self._notices.pop(0)
        if not any(pack.line.poll() for pack in self.packs):
            self._go_on(timeout_seconds)
        for number, pack in enumerate(self.packs):
            while pack.line.poll():
                yield Received(number, pack.line.recv())

    def _go_on(self, timeout_seconds: float) -> None:
        asked = next((pack for pack in self.packs if pack.line.unheard), None)
        if asked is not None:
            with asked.torch():
                asked.learner.iterate()
        elif self._paused:
            time.sleep(timeout_seconds)
        elif timeout_seconds > 0:
            self.settled = next(self._training)

    def send(self, pack: int, message: ToLearner) -> None:
        self._paused = self._paused or isinstance(message, PauseTraining)
        self.packs[pack].line.send(message)

    def restart_actor(self, actor: int) -> None:
        """Raise AssertionError, because an error of an environment ends a serial run."""
        raise AssertionError(actor)

    def kill(self, pack: int) -> None:
        """Raise AssertionError, because learners run in this process."""
        raise AssertionError(pack)

    def replace_learner(self, pack: int, _start: Start) -> None:
        raise AssertionError(pack)

    def heartbeat_age_seconds(self, _pack: int) -> float:
        """Return 0, because learners run in this process."""
        return 0.0

    def learns(self) -> bool:
        """Always False: one process does all work, so the display is never updated during an optimiser step."""
        return False

    def save_vector_envs(self) -> list[Any]:
        """Return the states of all vector envs, in one list per actor.

        Empty before the first step, if an environment has no `save_state`, or if `save_state` fails or does not return
        JSON types.
        """
        try:
            with self._folder.entered():
                vector_envs = [actor.save() for pack in self.packs for actor in pack.actors]
            _check_json(as_json_types(vector_envs))
        except Exception as error:  # noqa: BLE001 - user code; the run is saved without these states
            if not self._said_unsaved:
                self._said_unsaved = True
                self._notices.append(
                    Notice(
                        f"the state of {self._env_id} cannot be saved, and a resumed run would start new episodes: "
                        f"its save_state() must return a dict of JSON types ({type(error).__name__}: {error})"
                    )
                )
            return []
        return [] if any(state is None for states in vector_envs for state in states) else vector_envs

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - the time is limited anyway
        """Close all environments and learners. Print a warning if an environment does not close in time."""
        with self._folder.entered(), contextlib.ExitStack() as actors:
            for actor in (actor for pack in self.packs for actor in pack.actors):
                actors.callback(actor.close)
            if text := close_in_time(actors):
                print(f"pbt-rl: {text}", file=sys.stderr)
        self._folder.close()
        self._stacks.close()
        for pack in self.packs:
            pack.learner.close()
        self.memory.close()


def _working_directory() -> int:
    """Return a descriptor of the working directory. The descriptor stays valid if the directory is deleted."""
    return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _check_json(states: Any) -> None:
    """Raise TypeError or ValueError if a JSON round trip fails or changes the states."""
    if json.loads(json.dumps(states, allow_nan=False)) != states:
        raise TypeError("a key of a dict is not a string")
