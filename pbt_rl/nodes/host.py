"""The process beside a pack, on its node: a fleet of one pack, driven by the turns of the supervisor."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

from pbt_rl.nodes.messages import (
    Answer,
    Heard,
    HostSetup,
    Order,
    RestartActor,
    Send,
    SetMatchup,
    Turn,
)
from pbt_rl.record.net_names import NetNames
from pbt_rl.run.estimate import check_memory
from pbt_rl.run.fleet import ActorFailed, Event, LearnerLost, ProcessFleet, Received
from pbt_rl.run.inline import InlineFleet
from pbt_rl.run.limits import allow_open_files, descriptors_needed
from pbt_rl.run.start import Load, Start
from pbt_rl.wire.messages import MemberExported, MemberStaged
from pbt_rl.wire.snapshot import MemberSnapshot

OwnFleet = ProcessFleet | InlineFleet


class PackHost:
    """Holds the learner and the actors of one pack. Use it from one thread, the main one of its process.

    The kernel ends children whose parent's *thread* ends, so the fleet is made where turns are carried out.
    """

    def __init__(self) -> None:
        self._fleet: OwnFleet | None = None
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
            self._fleet = start_fleet(turn.setup)
            return None
        fleet = self._fleet
        assert fleet is not None, "the first turn has no setup"
        for order in turn.orders:
            _obey(fleet, order)
        heard = tuple(_heard(fleet, event) for event in fleet.events(turn.patience_seconds))
        return Answer(heard, fleet.environment_seconds(), fleet.silent_seconds(0))

    def close(self) -> None:
        """End the pack's processes."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None


def start_fleet(setup: HostSetup) -> OwnFleet:
    """Start a pack on this machine, in serial mode within this process. Raises ConfigError if it is too small."""
    with contextlib.suppress(OSError):  # on another file system it need not exist
        os.chdir(setup.folder)
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with contextlib.suppress(
            OSError
        ):  # Ray starts its workers at niceness 15; only root may take that back
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    # The run's folder is the supervisor's: children print into memory, and their last words come with their end.
    resolved = replace(setup.resolved, config=replace(setup.resolved.config, name=None))
    check_memory(resolved)
    allow_open_files(descriptors_needed(resolved.plan, len(setup.values), resolved.spec.seats))
    start = Start(
        setup.values,
        setup.generations,
        [setup.holders],
        [(snapshot.header.member, _loads(snapshot)) for snapshot in setup.snapshots],
        learners=[setup.learner],
        resumes=setup.resumes,
        elsewhere=setup.elsewhere,
        renewals=setup.renewals,
        seeds_before=setup.seeds_before,
    )
    own = InlineFleet if resolved.config.mode == "serial" else ProcessFleet
    return own(resolved, start, setup.matchups)


def _loads(snapshot: MemberSnapshot) -> Load:
    def load(_names: NetNames) -> MemberSnapshot:
        return snapshot

    return load


def _obey(fleet: OwnFleet, order: Order) -> None:
    match order:
        case Send(message, exchange):
            if exchange is not None:
                fleet.write_exchange(exchange)
            fleet.send(0, message)
        case RestartActor(actor):
            fleet.restart_actor(actor)
        case SetMatchup(rows):
            fleet.set_matchup(0, rows)


def _heard(fleet: OwnFleet, event: Event) -> Heard:
    match event:
        case Received(_, MemberExported()):
            return Heard(event, fleet.read_exchange())
        case Received(_, MemberStaged(entry, _)):
            return Heard(event, fleet.read_staged(entry))
        case ActorFailed(actor):
            return Heard(event, actions_given=fleet.actions_given(actor))
        case Received() | LearnerLost():
            return Heard(event)
    raise AssertionError(event)
