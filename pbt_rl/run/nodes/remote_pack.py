"""State of a remote pack on the supervisor's machine: place, request in flight, and commands for the next request.

    waiting    there is no free place                      -> start_worker() ->
    starting   the node worker starts the pack's processes -> LearnerReady ->
    running    the learner of the pack trains              -> kill() -> waiting

After `kill`, answers of the killed node worker are ignored.

Axes: U vector envs of a pack, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.run.fleet import LearnerLost
from pbt_rl.run.memory import Start
from pbt_rl.run.nodes.backend import Answer, Backend, Order, Place, Request, WorkerSetup

RETRY_SECONDS = 0.5
"""Delay before the repetition of a request to an unreachable node worker."""
HOLD_SECONDS = 3.0
"""Pause of requests after the death of a learner. (The processes of a removed node die within this time.)"""


@dataclass(eq=False)
class RemotePack:
    """State of a pack in a cluster."""

    number: int
    start: Start
    """Initial state for the next start of the pack's processes."""
    rows: NDArray[np.int64] | None
    """Row of each agent in the present matchups, [U, E, S] (vector env, environment, agent). None if environments have
    one agent."""
    matchup_version: int = 1
    incarnation: int = 0
    """Number of killed node workers of this pack."""
    place: Place | None = None
    worker: Any = None
    call: Any = None
    """Handle of the request in flight (`Backend.call`)."""
    ready: bool = False
    leaving: bool = False
    """True after the supervisor was notified that the node will leave."""
    orders: list[Order] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    """Failed actor -> number of vector env steps for which it had received actions."""
    heard_at: float = 0.0
    """`time.monotonic()` of the last answer or new request. A repeated request does not change this time."""
    heartbeat_age: float = 0.0
    """Heartbeat age of the learner in seconds, at the last answer."""
    unavailable_at: float | None = None
    """`time.monotonic()` of the first failed request since the last answer. None if the last request succeeded."""
    retry_at: float = 0.0
    died: str = ""
    """Cause of the node worker's death, or its error. Empty while the node worker lives without an error."""
    held: LearnerLost | None = None
    """Death of the learner, which is reported after the next answer. (An answer shows that the node is alive.)"""
    _held_until: float = 0.0
    _request: Request | None = None
    _number: int = 0
    _seconds_before: float = 0.0
    _seconds: float = 0.0

    @property
    def environment_seconds(self) -> float:
        """CPU-seconds of the pack's environments, summed over all its node workers."""
        return self._seconds_before + self._seconds

    def start_worker(self, backend: Backend, place: Place, setup: WorkerSetup) -> None:
        """Start a node worker with the resources of `place`."""
        assert self.worker is None, f"pack {self.number} has a worker"
        self.place, self.worker = place, backend.start(place)
        self.heard_at = time.monotonic()
        self._request, self._number = Request(0, setup=setup), 0
        self.call = backend.call(self.worker, self._request)

    def kill(self, backend: Backend) -> None:
        """Kill the node worker, and drop its request and the commands for the next request."""
        if self.worker is not None:
            backend.end([self.worker], 0.0)
            self.incarnation += 1
        self.place = self.worker = self.call = self._request = None
        self.ready = self.leaving = False
        self.unavailable_at, self.died, self.held = None, "", None
        self._seconds_before, self._seconds = self.environment_seconds, 0.0
        self.orders.clear()
        self.given.clear()

    def issue(self, backend: Backend, timeout_seconds: float) -> None:
        """Send the next request, or repeat a lost request.

        Do nothing while a call is in flight, during a pause, or without a living node worker.
        """
        if self.worker is None or self.call is not None or self.died:
            return
        if self.held is not None and time.monotonic() < self._held_until:
            return
        if self._request is None:
            self._number += 1
            self._request = Request(self._number, tuple(self.orders), timeout_seconds)
            self.orders.clear()
            self.heard_at = time.monotonic()
        elif time.monotonic() < self.retry_at:
            return
        self.call = backend.call(self.worker, self._request)

    @property
    def owes(self) -> bool:
        """True if a request has no answer yet."""
        return self._request is not None

    def answered(self, answer: Answer | None) -> None:
        """Record the answer to the request in flight."""
        self.call = self._request = None
        self.heard_at, self.unavailable_at = time.monotonic(), None
        if answer is not None:
            self._seconds, self.heartbeat_age = answer.environment_seconds, answer.heartbeat_age_seconds

    def hold(self, lost: LearnerLost) -> None:
        """Record the death of the learner, and send no request for HOLD_SECONDS. (The whole node is possibly dying.)"""
        self.held, self._held_until = lost, time.monotonic() + HOLD_SECONDS

    def unreachable(self) -> None:
        """Record that the request in flight, or the answer to this request, was lost."""
        now = time.monotonic()
        self.call, self.retry_at = None, now + RETRY_SECONDS
        self.unavailable_at = self.unavailable_at or now
