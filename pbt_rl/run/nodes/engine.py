"""What a cluster must be able to do for a population, and what crosses: one turn to a host, one answer back.

`nodes.ray_engine` does it by Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import ToLearner
from pbt_rl.actors.store import ArrayLayout, Counts
from pbt_rl.run.fleet import ActorFailed, LearnerLost, Received
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class State:
    """What lies in an entry of a pool, on its way to that of another node."""

    arrays: Arrays
    counts: Counts


@dataclass(frozen=True)
class HostSetup:
    """What a host begins with. The plan in `resolved` has its one pack."""

    resolved: ResolvedRun
    start: Start
    layout: ArrayLayout
    """Of the arrays of a state."""
    states: Mapping[int, State]
    """Entry of the pool -> what lies there. Weights that do not lie in the pool are drawn."""
    matchups: tuple[NDArray[np.int64], ...]
    """Rows [U, E, S], if environments have several seats."""
    folder: Path
    """Working directory of the supervisor, where modules of the user may lie."""


@dataclass(frozen=True)
class Send:
    """Send a message to the learner. state: written into the entry of the pool first that the message names."""

    message: ToLearner
    state: State | None = None


@dataclass(frozen=True)
class RestartActor:
    """Replace an actor. actor: among those of the pack."""

    actor: int


@dataclass(frozen=True)
class SetMatchup:
    """Seat these rows, [U, E, S]."""

    rows: NDArray[np.int64]


Order = Send | RestartActor | SetMatchup


@dataclass(frozen=True)
class Turn:
    """Carry out orders, then wait for something to happen, at most this long.

    number: rises by one per turn. A turn that comes twice was not heard of: it is answered again, not carried out.
    """

    number: int
    orders: tuple[Order, ...] = ()
    patience_seconds: float = 0.0
    setup: HostSetup | None = None
    """In the first turn."""


@dataclass(frozen=True)
class Heard:
    """Something that has happened, with pack 0 and an actor's number on this host.

    state: what was saved. actions_given: to the units of an actor that failed.
    """

    event: Received | LearnerLost | ActorFailed
    state: State | None = None
    actions_given: int = 0


@dataclass(frozen=True)
class Answer:
    """The answer to a turn."""

    heard: tuple[Heard, ...]
    environment_seconds: float
    silent_seconds: float
    """See Fleet."""


class HostUnavailable(Exception):  # noqa: N818 - a state, not an error
    """A host cannot be reached now; it may answer later. Whether it has carried out the call is unknown."""


class HostDied(Exception):  # noqa: N818 - as above
    """A host will never answer again: its process or its node is gone. node_gone: known to be gone with its node."""

    def __init__(self, text: str, *, node_gone: bool = False) -> None:
        super().__init__(text)
        self.node_gone = node_gone


class HostFailed(Exception):  # noqa: N818 - as above
    """A host has raised an error. user_error: one that only the user can mend."""

    def __init__(self, text: str, *, user_error: bool) -> None:
        super().__init__(text)
        self.user_error = user_error


@dataclass(frozen=True)
class Place:
    """Room for one pack: a GPU with its share of the node's cores, or the cores of a whole node."""

    node: str
    """Its id in the cluster."""
    index: int
    """Among the places of the node."""
    cpus: float
    gpu: bool = False


@dataclass(frozen=True)
class Node:
    """A node that is alive. leaving: it will be taken away soon."""

    name: str
    cpus: float
    gpus: int
    leaving: bool = False


class Engine(Protocol):
    """A cluster. Hosts and calls are opaque; calls of one host are carried out one after the other."""

    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes that are alive, by id."""

    def start(self, place: Place) -> Any:
        """Begin to start a host in a place; return it. It may never come up: a call then says so."""

    def call(self, host: Any, turn: Turn) -> Any:
        """Begin to have a turn carried out; return the call."""

    def wait(self, calls: Collection[Any], patience_seconds: float) -> list[Any]:
        """Wait until one of the calls has ended, at most this long; return all that have."""

    def result(self, call: Any) -> Any:
        """Return the Answer of a call that has ended. Raises HostUnavailable, HostDied or HostFailed."""

    def end(self, hosts: Collection[Any], patience_seconds: float) -> None:
        """Let hosts end in order, at most this long, and kill them then."""

    def close(self) -> None:
        """Leave the cluster."""
