"""One pack, seen from the supervisor: where it runs, its turn in flight, and the orders that wait for the next one.

    waiting    no place for it                     -> place() ->
    starting   its host starts the processes       -> LearnerReady ->
    serving    one turn is always in flight        -> fence() -> waiting

A host that was fenced is never heard again: its calls are forgotten with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.run.fleet import LearnerLost
from pbt_rl.run.memory import Start
from pbt_rl.run.nodes.engine import Answer, Engine, HostSetup, Order, Place, Turn

RETRY_SECONDS = 0.5
"""Between two tries of a turn that a host could not be reached for."""
HOLD_SECONDS = 3.0
"""Within this time the processes of a node that is taken away die, in any order."""


@dataclass(eq=False)
class Station:
    """A pack in a cluster."""

    number: int
    start: Start
    """Where its processes begin when there is a place."""
    rows: NDArray[np.int64] | None
    """Its matchups, [U, E, S]."""
    matchup_version: int = 1
    incarnation: int = 0
    """Hosts that it had before."""
    place: Place | None = None
    host: Any = None
    call: Any = None
    """In flight."""
    ready: bool = False
    """Its learner has started."""
    leaving: bool = False
    """It was said that its node will be taken away."""
    orders: list[Order] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    """Actor that failed -> actions that its units were given."""
    heard_at: float = 0.0
    """`time.monotonic()` of the last answer, or of the turn that was begun since."""
    silent: float = 0.0
    """Seconds for which the learner had given no sign at the last answer."""
    unavailable_at: float | None = None
    """Since when the host cannot be reached."""
    retry_at: float = 0.0
    died: str = ""
    """How the host died, as long as it is not known whether its node did, since `unavailable_at`."""
    held: LearnerLost | None = None
    """Its learner has died, perhaps as the first of all on the node: the next answer says that the host lives."""
    _held_until: float = 0.0
    _turn: Turn | None = None
    _number: int = 0
    _seconds_before: float = 0.0
    _seconds: float = 0.0

    @property
    def environment_seconds(self) -> float:
        """CPU-seconds of its environments, of all incarnations."""
        return self._seconds_before + self._seconds

    def start_host(self, engine: Engine, place: Place, setup: HostSetup) -> None:
        """Start a host in a place."""
        assert self.host is None, f"pack {self.number} has a host"
        self.place, self.host = place, engine.start(place)
        self.heard_at = time.monotonic()
        self._turn, self._number = Turn(0, setup=setup), 0
        self.call = engine.call(self.host, self._turn)

    def fence(self, engine: Engine) -> None:
        """Kill the host and forget what it was asked."""
        if self.host is not None:
            engine.end([self.host], 0.0)
            self.incarnation += 1
        self.place = self.host = self.call = self._turn = None
        self.ready = self.leaving = False
        self.unavailable_at, self.died, self.held = None, "", None
        self._seconds_before, self._seconds = self.environment_seconds, 0.0
        self.orders.clear()
        self.given.clear()

    def issue(self, engine: Engine, patience_seconds: float) -> None:
        """Send the next turn, or the last one again, unless one is in flight."""
        if self.host is None or self.call is not None or self.died:
            return
        if self.held is not None and time.monotonic() < self._held_until:
            return
        if self._turn is None:
            self._number += 1
            self._turn = Turn(self._number, tuple(self.orders), patience_seconds)
            self.orders.clear()
            self.heard_at = time.monotonic()
        elif time.monotonic() < self.retry_at:
            return
        self.call = engine.call(self.host, self._turn)

    @property
    def owes(self) -> bool:
        """A turn was begun, and its answer is not there yet."""
        return self._turn is not None

    def answered(self, answer: Answer | None) -> None:
        """Note that the turn in flight has come back."""
        self.call = self._turn = None
        self.heard_at, self.unavailable_at = time.monotonic(), None
        if answer is not None:
            self._seconds, self.silent = answer.environment_seconds, answer.silent_seconds

    def hold(self, lost: LearnerLost) -> None:
        """Note that the learner has died; for HOLD_SECONDS nothing is asked of the host."""
        self.held, self._held_until = lost, time.monotonic() + HOLD_SECONDS

    def unreachable(self) -> None:
        """Note that the turn in flight did not reach the host, or its answer did not come back."""
        now = time.monotonic()
        self.call, self.retry_at = None, now + RETRY_SECONDS
        self.unavailable_at = self.unavailable_at or now
