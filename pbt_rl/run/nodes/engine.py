"""What a cluster must be able to do for a population. `nodes.ray_engine` does it by Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pbt_rl.run.nodes.messages import Turn


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
