"""The process beside a pack, on its node: a fleet of one pack, driven by the turns of the supervisor."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import replace

from pbt_rl.actors.messages import Acknowledgement, LearnerReady, Load, Save, Saved, SetValues, ToLearner
from pbt_rl.actors.store import StatePool
from pbt_rl.run.fleet import ActorFailed, Event, LearnerLost, ProcessFleet, Received
from pbt_rl.run.inline import InlineFleet
from pbt_rl.run.limits import check_start
from pbt_rl.run.nodes.engine import (
    Answer,
    Heard,
    HostSetup,
    Order,
    RestartActor,
    Send,
    SetMatchup,
    State,
    Turn,
)

OwnFleet = ProcessFleet | InlineFleet


class PackHost:
    """Holds the learner and the actors of one pack. Use it from one thread, the main one of its process.

    The kernel ends children whose parent's *thread* ends, so the fleet is made where turns are carried out.
    """

    def __init__(self) -> None:
        self._fleet: OwnFleet | None = None
        self._pool: StatePool | None = None
        """The part of the run's pool that is here: what is on its way to the learner and from it."""
        self._started_from: list[int] = []
        self._loading: dict[int, deque[int | None]] = {}
        """Member -> entries of what its learner was sent and has not answered, oldest first; None without one."""
        self._answered: tuple[int, Answer | None] = (-1, None)
        """Number of the last turn, and its answer."""

    def turn(self, turn: Turn) -> Answer | None:
        """Carry out a turn; the first one starts the pack, and has no answer."""
        if turn.number != self._answered[0]:
            assert turn.number == self._answered[0] + 1, f"turn {turn.number} after {self._answered[0]}"
            self._answered = (turn.number, self._carry_out(turn))
        return self._answered[1]

    def _carry_out(self, turn: Turn) -> Answer | None:
        if turn.setup is not None:
            self._pool = _filled_pool(turn.setup)
            self._started_from = [*turn.setup.states]
            self._fleet = start_fleet(turn.setup, self._pool)
            return None
        assert self._fleet is not None, "the first turn has no setup"
        for order in turn.orders:
            self._obey(self._fleet, order)
        heard = tuple(self._heard(self._fleet, event) for event in self._fleet.events(turn.patience_seconds))
        return Answer(heard, self._fleet.environment_seconds(), self._fleet.silent_seconds(0))

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
        """Lay out what a message loads, and have room for what it saves. Entries have the supervisor's numbers."""
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
                if entry_read is not None:
                    pool.clear(entry_read)
                return Heard(event)
            case Received(_, LearnerReady()):
                for entry in self._started_from:
                    pool.clear(entry)
                self._started_from = []
                return Heard(event)
            case ActorFailed(actor):
                return Heard(event, actions_given=fleet.actions_given(actor))
            case Received() | LearnerLost():
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


def _filled_pool(setup: HostSetup) -> StatePool:
    pool = StatePool(setup.layout)
    for entry, state in setup.states.items():
        pool.grow(entry + 1)
        pool.write(entry, state.arrays, state.counts)
    return pool


def start_fleet(setup: HostSetup, pool: StatePool) -> OwnFleet:
    """Start a pack on this machine, in serial mode within this process. Raises ConfigError if it is too small."""
    with contextlib.suppress(OSError):  # on another file system it need not exist
        os.chdir(setup.folder)
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with contextlib.suppress(OSError):  # Ray's workers begin at niceness 15; only root may take that back
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    # The run's folder is the supervisor's: children print into memory, and their last words come with their end.
    resolved = replace(setup.resolved, config=replace(setup.resolved.config, name=None))
    check_start(resolved)
    own = InlineFleet if resolved.config.mode == "serial" else ProcessFleet
    return own(resolved, setup.start, setup.matchups, pool)
