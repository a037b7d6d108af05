"""Node worker: process that runs one pack on a node, and answers requests of the supervisor."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import replace

from pbt_rl.actors.messages import Acknowledgement, LearnerReady, Load, Save, Saved, SetValues, ToLearner
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.run.fleet import ActorFailed, Event, LearnerLost, Notice, ProcessFleet, Received
from pbt_rl.run.limits import check_start
from pbt_rl.run.nodes.backend import (
    Answer,
    Heard,
    Order,
    Request,
    RestartActor,
    Send,
    SetMatchup,
    State,
    WorkerSetup,
)
from pbt_rl.run.serial import SerialFleet

OwnFleet = ProcessFleet | SerialFleet


class NodeWorker:
    """Owner of the learner and the actors of one pack. All methods must be called from the main thread of its process.

    In other threads, the time limits of environments have no effect (`envs/time_limits.py`).
    """

    def __init__(self) -> None:
        self._fleet: OwnFleet | None = None
        self._pool: StatePool | None = None
        """Pool of this node, for states that the learner loads or has just saved."""
        self._started_from: list[int] = []
        self._loading: dict[int, deque[int | None]] = {}
        """Member -> `StatePool` entry of each unacknowledged message, oldest first. None: the message has no entry."""
        self._answered: tuple[int, Answer | None] = (-1, None)
        """Number of the last request, and its answer."""

    def execute(self, request: Request) -> Answer | None:
        """Execute a request, and return the answer. The first request starts the pack, and has the answer None.

        If the last request is repeated, return its answer again without executing the request.
        """
        if request.number != self._answered[0]:
            assert request.number == self._answered[0] + 1, (
                f"request {request.number} after {self._answered[0]}"
            )
            self._answered = (request.number, self._carry_out(request))
        return self._answered[1]

    def _carry_out(self, request: Request) -> Answer | None:
        if request.setup is not None:
            self._pool = _filled_pool(request.setup)
            self._started_from = [*request.setup.states]
            self._fleet = start_fleet(request.setup, self._pool)
            return None
        assert self._fleet is not None, "the first request has no setup"
        for order in request.orders:
            self._obey(self._fleet, order)
        heard = tuple(
            self._heard(self._fleet, event) for event in self._fleet.events(request.timeout_seconds)
        )
        return Answer(heard, self._fleet.environment_seconds(), self._fleet.heartbeat_age_seconds(0))

    def _obey(self, fleet: OwnFleet, order: Order) -> None:
        match order:
            case Send(message, state):
                self._make_room(message, state)
                fleet.send(0, message)
            case RestartActor(actor):
                fleet.restart_actor(actor)
            case SetMatchup(rows):
                fleet.set_matchup(0, rows)

    def _make_room(self, message: ToLearner, state: State | None) -> None:
        """Prepare the `StatePool` entry of a message: write the state to load, or allocate memory for a state to save.

        An entry has the same number here as in the supervisor's pool.
        """
        pool = self._pool
        assert pool is not None
        if isinstance(message, Load | Save) and message.entry is not None:
            pool.grow(message.entry + 1)
        if isinstance(message, Load) and message.member is not None:
            self._loading.setdefault(message.member, deque()).append(message.entry)
            if state is not None and message.entry is not None:
                pool.write(message.entry, state.arrays, state.counts)
        if isinstance(message, SetValues):
            self._loading.setdefault(message.member, deque()).append(None)

    def _heard(self, fleet: OwnFleet, event: Event) -> Heard:
        pool = self._pool
        assert pool is not None
        match event:
            case Received(_, Saved(_, entry)):
                state = State(pool.read(entry), pool.counts(entry))
                pool.clear(entry)
                return Heard(event, state)
            case Received(_, Acknowledgement(member)):
                entry_read = self._loading[member].popleft()
                # Several members may load copies of one state.
                loading = any(entry_read in entries for entries in self._loading.values())
                if entry_read is not None and not loading:
                    pool.clear(entry_read)
                return Heard(event)
            case Received(_, LearnerReady()):
                for entry in self._started_from:
                    pool.clear(entry)
                self._started_from = []
                return Heard(event)
            case ActorFailed(actor):
                return Heard(event, actions_given=fleet.actions_given(actor))
            case Received() | LearnerLost() | Notice():
                return Heard(event)
        raise AssertionError(event)

    def close(self) -> None:
        """End the pack's processes."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _filled_pool(setup: WorkerSetup) -> StatePool:
    pool = StatePool(setup.layout)
    for entry, state in setup.states.items():
        pool.grow(entry + 1)
        pool.write(entry, state.arrays, state.counts)
    return pool


def start_fleet(setup: WorkerSetup, pool: StatePool) -> OwnFleet:
    """Start a pack on this machine. Raises ConfigError if the machine is too small for the pack (see `check_start`)."""
    with contextlib.suppress(OSError):  # the folder may be missing on this node
        os.chdir(setup.folder)
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with contextlib.suppress(OSError):  # Ray starts workers at niceness 15, which only root may lower
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    # Without a name, children log to memory, because the run's folder is on the supervisor's machine.
    resolved = replace(setup.resolved, config=replace(setup.resolved.config, name=None))
    check_start(resolved)
    own = SerialFleet if resolved.config.mode == "serial" else ProcessFleet
    return own(resolved, setup.start, setup.matchups, pool)
