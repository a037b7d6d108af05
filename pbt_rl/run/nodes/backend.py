"""Interface of a cluster backend, and its messages: requests to node workers, with one answer each.

`nodes.ray_backend` implements the interface with Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import ToLearner
from pbt_rl.actors.state_pool import ArrayLayout, Counts
from pbt_rl.run.fleet import ActorFailed, LearnerLost, Received
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class State:
    """Content of a pool entry, for a transfer between nodes."""

    arrays: Arrays
    counts: Counts


@dataclass(frozen=True)
class WorkerSetup:
    """Initial input of a node worker. The plan in `resolved` has one pack."""

    resolved: ResolvedRun
    start: Start
    layout: ArrayLayout
    states: Mapping[int, State]
    """Pool entry -> content. Members without an entry get initialised weights."""
    matchups: tuple[NDArray[np.int64], ...]
    """Rows [U, E, S]. Empty if environments have one agent."""
    folder: Path
    """Working directory of the supervisor, which may contain custom modules."""


@dataclass(frozen=True)
class Send:
    """Order to send a message to the learner. state: first written to the pool entry that the message names."""

    message: ToLearner
    state: State | None = None


@dataclass(frozen=True)
class RestartActor:
    """Order to replace an actor. actor: its index in the pack."""

    actor: int


@dataclass(frozen=True)
class SetMatchup:
    """Order to set the matchups. rows: [U, E, S]."""

    rows: NDArray[np.int64]


Order = Send | RestartActor | SetMatchup


@dataclass(frozen=True)
class Request:
    """Request to a node worker: execute orders, and wait at most `timeout_seconds` for events.

    number: counts the requests. If a number is repeated, the answer was lost. The worker then repeats the answer, and
    executes nothing.
    """

    number: int
    orders: tuple[Order, ...] = ()
    timeout_seconds: float = 0.0
    setup: WorkerSetup | None = None
    """Only in the first request."""


@dataclass(frozen=True)
class Heard:
    """Event on a node worker, which numbers its pack 0 and its actors from 0.

    state: state that the learner has saved. actions_given: actions that the vector envs of a failed actor received.
    """

    event: Received | LearnerLost | ActorFailed
    state: State | None = None
    actions_given: int = 0


@dataclass(frozen=True)
class Answer:
    """Answer to a request."""

    heard: tuple[Heard, ...]
    environment_seconds: float
    heartbeat_age_seconds: float
    """Heartbeat age of the learner (see `Fleet`)."""


class WorkerUnavailable(Exception):  # noqa: N818 - a state, not an error
    """A node worker is unreachable, but may answer later. The call may have been executed."""


class WorkerDied(Exception):  # noqa: N818 - as above
    """A node worker has died. node_gone: its node has died too."""

    def __init__(self, text: str, *, node_gone: bool = False) -> None:
        super().__init__(text)
        self.node_gone = node_gone


class WorkerFailed(Exception):  # noqa: N818 - as above
    """A node worker has raised an error. user_error: the user must fix the cause."""

    def __init__(self, text: str, *, user_error: bool) -> None:
        super().__init__(text)
        self.user_error = user_error


@dataclass(frozen=True)
class Place:
    """Resources for one pack: a share of a node's cores, and possibly a GPU."""

    node: str
    index: int
    cpus: float
    gpu: bool = False


@dataclass(frozen=True)
class Node:
    """Live node of a cluster. leaving: it will be removed soon."""

    name: str
    cpus: float
    gpus: int
    leaving: bool = False


class Backend(Protocol):
    """Cluster backend. Objects for node workers and calls are opaque. A worker executes its calls in sequence."""

    def nodes(self) -> Mapping[str, Node]:
        """Return the live nodes by id."""

    def start(self, place: Place) -> Any:
        """Start a node worker in a place, without waiting for it. If the worker never starts, its calls fail."""

    def call(self, worker: Any, request: Request) -> Any:
        """Send a request to a node worker. Return the call."""

    def wait(self, calls: Collection[Any], timeout_seconds: float) -> list[Any]:
        """Wait at most `timeout_seconds` for the end of a call. Return all ended calls."""

    def result(self, call: Any) -> Any:
        """Return the `Answer` of an ended call. Raises WorkerUnavailable, WorkerDied or WorkerFailed."""

    def end(self, workers: Collection[Any], timeout_seconds: float) -> None:
        """Shut node workers down, and kill them after `timeout_seconds`."""

    def close(self) -> None:
        """Disconnect from the cluster."""
