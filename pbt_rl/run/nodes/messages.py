"""What crosses between the supervisor and the hosts of its packs: one turn there, one answer back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import Load, ToLearner
from pbt_rl.actors.store import ArrayLayout, Counts
from pbt_rl.controllers.hypers import Values
from pbt_rl.run.fleet import ActorFailed, LearnerLost, Received
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
    slots: tuple[Load | None, ...]
    """What each slot holds. Weights that do not lie in the pool are drawn."""
    unheld_values: Values
    """What a slot without a member is built with."""
    layout: ArrayLayout
    """Of the arrays of a state."""
    states: Mapping[int, State]
    """Entry of the pool -> what lies there."""
    learner: Mapping[str, Any]
    """What the learner continues from besides its members."""
    matchups: tuple[NDArray[np.int64], ...]
    """Rows [U, E, S], if environments have several seats."""
    resumes: int
    renewals: int
    seeds_before: int
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
