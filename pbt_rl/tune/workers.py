"""Workers of `tune.run`, which run the members in this process or in several processes.

    run --tasks--> pool --one at a time--> worker --> the user's members
        <-results-      <-----results-----

A member never moves to another worker. States that are copied between workers are pickled and sent to the parent, which
sends them on.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import iscoroutinefunction, isgeneratorfunction
from multiprocessing import connection, spawn
from typing import Any, NoReturn, Protocol

from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.user_values import briefly, number_of
from pbt_rl.errors import ConfigError, RunFailed, place_of
from pbt_rl.processes.child import Child

WORKER = "pbt_rl.tune.worker"
END_SECONDS = 5.0
PICKLE = "pickle.dumps"


class Member(Protocol):
    """Interface of a member: an object that trains.

    A run is reproducible if each member draws all random numbers from a seeded generator that no other member uses.
    """

    def step(self, hypers: Mapping[str, Any]) -> None:
        """Train for one step.

        hypers: name -> value. With a space or a table, integers, choices and tuples are decoded. Otherwise, all values
        are floats.
        """

    def evaluate(self) -> float:
        """Return the current objective. Higher is better. This method must not change the member."""

    def state(self) -> Any:
        """Return the complete state of the member, without hyperparameters. The state must be picklable."""

    def load(self, state: Any) -> None:
        """Load a state of this or another member."""


@dataclass(frozen=True)
class Make:
    """Task: make a member. member: id of the member. index: argument of the factory."""

    member: int
    index: int


@dataclass(frozen=True)
class Train:
    """Task: train a member for `steps` steps (may be 0), and evaluate the member. The result is the objective."""

    member: int
    hypers: Mapping[str, Any]
    steps: int


@dataclass(frozen=True)
class Save:
    """Task: save a member. The result is the pickled state."""

    member: int


@dataclass(frozen=True)
class Load:
    """Task: load a pickled state into a member."""

    member: int
    state: bytes


@dataclass(frozen=True)
class End:
    """Message that ends a worker."""


Task = Make | Train | Save | Load
TaskChild = Child[Task | End, Any]
Queue = deque[tuple[int, Task]]
"""Unfinished tasks of one worker: (index of the result, task)."""


@dataclass(frozen=True)
class WorkerSetup:
    """First message to a worker. main: preparation data of multiprocessing's spawn method. factory: pickled factory."""

    main: dict[str, Any]
    factory: bytes


@dataclass(frozen=True)
class WorkerReady:
    """First message from a worker, after the factory is loaded."""


@dataclass(frozen=True)
class Failure:
    """Result of a failed task.

    The user's code raised an error or returned an unusable object, or the state of a member cannot be pickled.
    """

    traceback: str
    """Traceback of the error. Empty if the member's code returned an unusable object."""
    what: str = ""
    """One line with method, member, and the error or the unusable object."""
    refused: str = ""
    """Message of a `Refused` exception, which ends the run. Empty for other failures."""
    unpicklable: bool = False
    """True if the member's state cannot be pickled."""

    @property
    def cause(self) -> str:
        """The traceback, or `what` if there is no traceback."""
        return self.traceback or self.what


class Refused(KeyError):  # noqa: N818 - reads as what happened
    """Error of the user's code that ends the run.

    Either `step` reads an unknown name in `hypers`, or the factory returned the same object for two members. This class
    is a KeyError, because a dictionary raises KeyError for an unknown name.
    """


class Unusable(Exception):  # noqa: N818 - reads as what happened
    """Error: a method of a member, or the factory, returned an unusable object."""


class Hypers(dict[str, Any]):
    """Argument of `step`: a dictionary that raises Refused for an unknown name."""

    def __missing__(self, name: str) -> NoReturn:
        close = get_close_matches(name, self, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = ", ".join(map(repr, self))
        raise Refused(f"`step` reads hypers[{name!r}], which is not in the space: {hint}it has {known}")


class Worker:
    """Members of one process, and the execution of their tasks. make: factory of members."""

    def __init__(self, make: Callable[[int], Member]) -> None:
        self._make = make
        self._members: dict[int, Member] = {}
        self._method = ""
        """Name of the member's method that is running, or PICKLE."""

    def carry_out(self, task: Task) -> Any:
        """Carry out a task. Return the result, or a Failure for an error or an unusable object."""
        try:
            return self._carry_out(task)
        except Refused as error:
            return Failure(environment_traceback(error), refused=str(error.args[0]))
        except Unusable as error:
            return Failure("", f"{self._method} of member {task.member} returned {error}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - only this member is broken
            if self._method == PICKLE:
                what = f"state() of member {task.member} cannot be pickled: {error}"
                return Failure(environment_traceback(error), what, unpicklable=True)
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            what = f"{self._method} of member {task.member} raised {text}{place_of(error)}"
            return Failure(environment_traceback(error), what)

    def _carry_out(self, task: Task) -> Any:
        match task:
            case Make(member, index):
                self._method = "the factory"
                made = _whole(self._make(index))
                others = (other for other, its in self._members.items() if its is made and other != member)
                if (other := next(others, None)) is not None:
                    raise Refused(
                        f"members {other} and {member} are one object: make a new object for each index"
                    )
                self._members[member] = made
            case Train(member, hypers, steps):
                self._method = "step()"
                for _ in range(steps):
                    self._members[member].step(_copied(hypers))  # because `step` may change its argument
                self._method = "evaluate()"
                value = self._members[member].evaluate()
                try:
                    return number_of(value)
                except (TypeError, ValueError):
                    raise Unusable(f"{briefly(value)}: it must be one number") from None
            case Save(member):
                self._method = "state()"
                state = self._members[member].state()
                self._method = PICKLE
                return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
            case Load(member, pickled):
                self._method = "load()"
                self._members[member].load(pickle.loads(pickled))
        return None


def _copied(hypers: Mapping[str, Any]) -> Hypers:
    """Copy the values of a member, including nested dictionaries."""

    def copied(value: Any) -> Any:
        return {name: copied(part) for name, part in value.items()} if type(value) is dict else value

    return Hypers({name: copied(value) for name, value in hypers.items()})


def _whole(made: Any) -> Member:
    """Return the result of a factory as a member.

    Raises Unusable if a method of `Member` is missing, a coroutine or a generator.
    """
    methods = ("step", "evaluate", "state", "load")
    lacks = [name for name in methods if not callable(getattr(made, name, None))]
    if lacks:
        raise Unusable(
            f"a {type(made).__name__}, which lacks {', '.join(lacks)}: return an object with "
            f"{', '.join(methods)} (docs/reference/tune-run.md)"
        )
    for name in methods:
        method = getattr(made, name)
        if iscoroutinefunction(method) or isgeneratorfunction(method):
            raise Unusable(
                f"a {type(made).__name__}, whose {name} is a coroutine or a generator, which would never run"
            )
    member: Member = made
    return member


class Pool(Protocol):
    """Interface of workers that carry out tasks. The tasks of one member are carried out in order."""

    def carry_out(self, tasks: Sequence[Task]) -> list[Any]:
        """Return one result per task, in the order of the tasks."""

    def close(self) -> None:
        """End all workers."""


class LocalPool:
    """Pool of one worker, in this process."""

    def __init__(self, make: Callable[[int], Member]) -> None:
        self._worker = Worker(make)

    def carry_out(self, tasks: Sequence[Task]) -> list[Any]:
        """Return one result per task, in the order of the tasks."""
        return [self._worker.carry_out(task) for task in tasks]

    def close(self) -> None:
        """Do nothing, because there is no process."""


class ProcessPool:
    """Pool of W worker processes. Worker i runs the members i, i + W, i + 2 W...

    Raises ConfigError if the factory is from a notebook or cannot be pickled. Also raises ConfigError if the user's
    script creates a pool while a worker imports the script. Raises RunFailed if a worker dies.

    make: factory of members. workers: number of processes.
    """

    def __init__(self, make: Callable[[int], Member], workers: int) -> None:
        cannot = f"workers={workers} cannot be used:"
        of_main = getattr(make, "__module__", "") == "__main__"
        if of_main and not hasattr(sys.modules["__main__"], "__file__"):
            why = "other processes cannot import a factory from a notebook: move it to a module"
            raise ConfigError(f"{cannot} {why}")
        try:
            factory = pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            why = f"the factory cannot be pickled, give a function of a module ({error})"
            raise ConfigError(f"{cannot} {why}") from None
        # As in multiprocessing's spawn method, the child imports the user's script, which contains the factory.
        try:
            main = {k: v for k, v in spawn.get_preparation_data("member").items() if k != "authkey"}
        except RuntimeError:
            why = 'each worker imports your script: call tune.run below `if __name__ == "__main__":` there'
            raise ConfigError(f"{cannot} {why}") from None
        self._children: list[TaskChild] = []
        try:
            for number in range(workers):
                self._children.append(Child(WORKER, f"worker {number}", WorkerSetup(main, factory), ()))
            for child in self._children:
                self._receive(child)
        except BaseException:
            self.close()
            raise

    def carry_out(self, tasks: Sequence[Task]) -> list[Any]:
        """Return one result per task, in the order of the tasks.

        Each worker has at most one task at a time, because several tasks could fill the connection and block both ends.
        """
        queues: list[Queue] = [deque() for _ in self._children]
        for number, task in enumerate(tasks):
            queues[task.member % len(queues)].append((number, task))
        results: list[Any] = [None] * len(tasks)
        pairs = zip(self._children, queues, strict=True)
        busy: dict[object, tuple[TaskChild, Queue]] = {c.connection: (c, q) for c, q in pairs if q}
        for child, queue in busy.values():
            self._send(child, queue[0][1])
        while busy:
            for ready in connection.wait([child.connection for child, _ in busy.values()]):
                child, queue = busy[ready]
                number, task = queue.popleft()
                results[number] = self._receive(
                    child, f" in a task of member {task.member} ({type(task).__name__})"
                )
                if queue:
                    self._send(child, queue[0][1])
                else:
                    del busy[ready]
        return results

    def _send(self, child: TaskChild, task: Task) -> None:
        try:
            child.connection.send(task)
        except OSError:
            raise RunFailed(child.how_it_ended()) from None

    def _receive(self, child: TaskChild, doing: str = "") -> Any:
        try:
            return child.connection.recv()
        except (EOFError, OSError):
            raise RunFailed(f"{child.how_it_ended()}{doing}") from None

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        for child in self._children:
            with contextlib.suppress(OSError):
                child.connection.send(End())
        deadline = time.monotonic() + END_SECONDS
        for child in self._children:
            child.end(max(0.0, deadline - time.monotonic()))
        self._children = []
