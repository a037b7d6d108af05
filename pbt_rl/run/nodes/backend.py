"""Interface of a cluster backend, and the messages to node workers: requests, with one answer each.

`nodes.ray_backend` implements the interface with Ray.

Axes: U vector envs of a pack, E environments of a vector env, S agents of an environment.
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
from pbt_rl.run.fleet import ActorFailed, LearnerLost, Notice, Received
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class State:
    """Content of an entry of the `StatePool`, for a transfer between nodes."""

    arrays: Arrays
    counts: Counts


@dataclass(frozen=True)
class WorkerSetup:
    """Initial input of a node worker. The plan in `resolved` has one pack."""

    resolved: ResolvedRun
    start: Start
    layout: ArrayLayout
    states: Mapping[int, State]
    """Number of an entry of the `StatePool` -> content. Members without an entry start with initialised weights."""
    matchups: tuple[NDArray[np.int64], ...]
    """Row of each agent, [U, E, S] (vector env, environment, agent). Empty if environments have one agent."""
    folder: Path
    """Working directory of the supervisor. Custom modules are imported from this directory."""


@dataclass(frozen=True)
class Send:
    """Command to send a message to the learner.

    state: content to write into the message's `StatePool` entry before sending. None: write nothing.
    """

    message: ToLearner
    state: State | None = None


@dataclass(frozen=True)
class RestartActor:
    """Command to replace an actor. actor: index in the pack."""

    actor: int


@dataclass(frozen=True)
class SetMatchup:
    """Command to assign the agents to the policies.

    rows: [U, E, S], row of agent s in environment e of vector env u. A row belongs to a policy.
    """

    rows: NDArray[np.int64]


Order = Send | RestartActor | SetMatchup


@dataclass(frozen=True)
class Request:
    """Request to a node worker: execute the commands in `orders`, and wait at most `timeout_seconds` for events.

    number: 0 for the first request, 1 for the second. If the answer is lost, the request is sent again with an equal
    number. The worker then repeats the answer, and does not execute the request again.
    """

    number: int
    orders: tuple[Order, ...] = ()
    timeout_seconds: float = 0.0
    setup: WorkerSetup | None = None
    """Setup of the worker, which only the first request contains."""


@dataclass(frozen=True)
class Heard:
    """Event on a node worker. In `event`, the pack has number 0, and the pack's actors are numbered from 0.

    state: if `event` contains `Saved`, the state that the learner has saved. actions_given: for a failed actor,
    `Fleet.actions_given`.
    """

    event: Received | LearnerLost | ActorFailed | Notice
    state: State | None = None
    actions_given: int = 0


@dataclass(frozen=True)
class Answer:
    """Answer to a request.

    heard: events since the last answer. environment_seconds: CPU-seconds of environments since the node worker's start.
    """

    heard: tuple[Heard, ...]
    environment_seconds: float
    heartbeat_age_seconds: float
    """Heartbeat age of the learner (see `Fleet.heartbeat_age_seconds`)."""


class WorkerUnavailable(Exception):  # noqa: N818 - a state, not an error
    """A node worker is unreachable, but may answer later. The request may have been executed."""


class WorkerDied(Exception):  # noqa: N818 - as above
    """A node worker has died. node_gone: True if its node has died too."""

    def __init__(self, text: str, *, node_gone: bool = False) -> None:
        super().__init__(text)
        self.node_gone = node_gone


class WorkerFailed(Exception):  # noqa: N818 - as above
    """A node worker has raised an error. user_error: True if the user must fix the cause."""

    def __init__(self, text: str, *, user_error: bool) -> None:
        super().__init__(text)
        self.user_error = user_error


@dataclass(frozen=True)
class Place:
    """Resources for one pack: a share of a node's cores, and possibly a GPU. index: number of the place on its node."""

    node: str
    index: int
    cpus: float
    gpu: bool = False


@dataclass(frozen=True)
class Node:
    """Live node of a cluster. leaving: True if the cluster will remove the node soon."""

    name: str
    cpus: float
    gpus: int
    leaving: bool = False


class Backend(Protocol):
    """Cluster backend. Handles of node workers and calls are opaque. A node worker executes its calls in sequence."""

    def nodes(self) -> Mapping[str, Node]:
        """Return the live nodes by id."""

    def start(self, place: Place) -> Any:
        """Start a node worker with the resources `place`, and return its handle without waiting.

        If the start fails, all calls of the node worker fail.
        """

    def call(self, worker: Any, request: Request) -> Any:
        """Send a request to a node worker. Return a handle for `wait` and `result`."""

    def wait(self, calls: Collection[Any], timeout_seconds: float) -> list[Any]:
        """Wait at most `timeout_seconds` until at least one call has ended. Return all ended calls."""

    def result(self, call: Any) -> Any:
        """Return the answer of an ended call, None for the first request.

        Raises WorkerUnavailable, WorkerDied or WorkerFailed if the worker does not answer.
        """

    def end(self, workers: Collection[Any], timeout_seconds: float) -> None:
        """Shut node workers down, and kill them after `timeout_seconds`."""

    def close(self) -> None:
        """Disconnect from the cluster."""
