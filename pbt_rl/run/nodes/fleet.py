"""The fleet over a cluster: every pack is a `Station`, reached by turns.

    who               consumes                     produces                  waits for        is woken by
    supervisor        answers, states of nodes     turns with their orders   any answer       a host
    host of a pack    turns                        answers with events       its learner, at most the patience of a turn

One turn per host is in flight. That is order, back pressure and sign of life in one. What is lost on the way is asked
for again under its number; a host that cannot be reached for UNREACHABLE_SECONDS is dead.

In serial mode one turn is in flight in all, in the order of `run.inline`: the same seed gives the same bits as there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.actors.messages import LearnerReady, LearnerReport, Load, Saved, ToLearner
from pbt_rl.actors.store import StatePool
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.run.awake import AwakeClock
from pbt_rl.run.fleet import (
    GRACE_SECONDS,
    STARTS,
    ActorFailed,
    Event,
    LearnerLost,
    MachineLeaving,
    Notice,
    Received,
)
from pbt_rl.run.memory import Matchups, Start
from pbt_rl.run.nodes.engine import (
    Engine,
    Heard,
    HostDied,
    HostFailed,
    HostSetup,
    HostUnavailable,
    Node,
    RestartActor,
    Send,
    SetMatchup,
    State,
)
from pbt_rl.run.nodes.plan import cluster_run, free_places, packs_per_node, places_of
from pbt_rl.run.nodes.station import Station
from pbt_rl.run.resolved import ResolvedRun

UNREACHABLE_SECONDS = 30.0
DEATH_SECONDS = 30.0
"""So long the cluster may take to say whether a dead host's node is dead too."""
NODES_SECONDS = 1.0
"""Between two looks at the nodes."""
PATIENCE_SECONDS = 0.1
"""Of a turn at least: a decision waits for the end of the turn in flight."""
TURNS_PER_SECOND = 500
"""Of all hosts together at most, while nothing happens."""


class NodeFleet:
    """Packs on the nodes of a cluster. Use it from one thread.

    pool: of the states of the run, in the memory of this process; what a learner loads or saves goes there and back.
    """

    def __init__(
        self, engine: Engine, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool
    ) -> None:
        self._engine, self._resolved, self._pool = engine, resolved, pool
        self._awake = AwakeClock()
        self._next_look = 0.0
        self._nodes: Mapping[str, Node] = {}
        self._shunned = ""
        """The node that failed last."""
        self._gone: set[str] = set()
        """Nodes that are dead, which the cluster may list for some seconds more."""
        packs = resolved.plan.packs
        self._first_actor = [sum(pack.actors for pack in packs[:number]) for number in range(len(packs))]
        self._patience = max(PATIENCE_SECONDS, len(packs) / TURNS_PER_SECOND)
        self._stations = [
            Station(
                number,
                replace(
                    start,
                    slots=start.slots[number : number + 1],
                    learners=start.learners[number : number + 1],
                ),
                matchups[number] if matchups else None,
            )
            for number, pack in enumerate(packs)
        ]
        self._notices: list[Notice] = []
        self._serial = resolved.config.mode == "serial"
        self._going = 0
        """In serial mode, the pack that goes on."""
        self._share = packs_per_node(engine.nodes(), resolved.config.devices)
        self._place_all()

    # -- places ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the cluster for its nodes."""
        self._next_look = time.monotonic() + NODES_SECONDS
        self._nodes = {key: node for key, node in self._engine.nodes().items() if key not in self._gone}

    def _place_all(self) -> None:
        """Start hosts for packs that wait, as far as there are places."""
        self._look()
        for station in self._stations:
            if station.host is None:
                self._place(station)

    def _place(self, station: Station) -> None:
        taken = [one.place for one in self._stations if one.place is not None]
        free = free_places(
            places_of(self._nodes, self._resolved.config.devices, self._share), taken, self._shunned
        )
        if free:
            place = free[0]
            station.start_host(self._engine, place, self._setup(station))
            self._notices.append(Notice(f"learner {station.number} starts on {self._nodes[place.node].name}"))

    def _setup(self, station: Station) -> HostSetup:
        packs = self._resolved.plan.packs
        before = sum(1 + pack.actors for pack in packs[: station.number])
        start = replace(station.start, units=(), renewals=station.incarnation, seeds_before=before)
        entries = [load.entry for load in start.slots[0] if load is not None and load.entry is not None]
        return HostSetup(
            replace(self._resolved, plan=replace(self._resolved.plan, packs=(packs[station.number],))),
            start,
            self._pool.layout,
            {entry: self._state(entry) for entry in entries},
            () if station.rows is None else (station.rows,),
            Path.cwd(),
        )

    def _state(self, entry: int) -> State:
        """Return what lies in an entry: views, which hold until the learner has answered that it has read it."""
        return State(self._pool.views(entry), self._pool.counts(entry))

    # -- events ---------------------------------------------------------------------------------------------

    def events(self, patience_seconds: float) -> Iterator[Event]:
        self._awake.tick()
        if time.monotonic() >= self._next_look:
            yield from self._see_nodes()
        while self._notices:
            yield self._notices.pop(0)
        for station in self._served():
            # In serial mode a pack that was sent something hears it, and goes no further.
            patience = 0.0 if self._serial and station.orders else self._patience
            station.issue(self._engine, patience)
        calls = {station.call: station for station in self._stations if station.call is not None}
        for call in self._engine.wait(calls, patience_seconds):
            station = calls[call]
            if station.call is call:  # else it was fenced meanwhile
                yield from self._take(station)
        self._awake.tick()
        yield from self._overdue()

    def _served(self) -> Iterable[Station]:
        """Return the stations that may have a turn now."""
        if not self._serial:
            return self._stations
        there = [station for station in self._stations if station.host is not None]
        chosen = next((station for station in there if station.owes), None)
        chosen = chosen or next((station for station in there if not station.ready or station.orders), None)
        if chosen is None and there:
            chosen = min(there, key=lambda one: (one.number - self._going) % len(self._stations))
            self._going = chosen.number
        return [] if chosen is None else [chosen]

    def _see_nodes(self) -> Iterator[Event]:
        self._place_all()
        for station in self._stations:
            if station.place is None:
                continue
            node = self._nodes.get(station.place.node)
            if node is None:
                yield self._lost(station, "is gone")
            elif node.leaving and not station.leaving:
                station.leaving = True
                yield MachineLeaving(self._lost(station, "is being taken away"))

    def _lost(self, station: Station, how: str) -> LearnerLost:
        """Return the event that a pack has lost its node."""
        assert station.place is not None
        self._shunned = station.place.node
        text = f"the node of learner {station.number} ({self._shunned[:8]}) {how}"
        return LearnerLost(station.number, text, machine=True)

    def _take(self, station: Station) -> Iterator[Event]:
        """Take the answer to a turn."""
        incarnation = station.incarnation
        try:
            answer = self._engine.result(station.call)
        except HostUnavailable:
            station.unreachable()
            return
        except HostDied as error:
            station.unreachable()
            station.died = str(error) or "died"
            if error.node_gone:
                self._gone.add(station.place.node if station.place else "")
                yield self._lost(station, f"is gone: {station.died}")
            return
        except HostFailed as error:
            station.unreachable()
            station.died = str(error)
            text = f"the host of learner {station.number} has failed: {error}"
            yield LearnerLost(station.number, text, user_error=error.user_error)
            return
        station.answered(answer)
        if station.held is not None:
            yield station.held  # the host lives, so it was the learner alone
            return
        for heard in () if answer is None else answer.heard:
            lost = heard.event
            if station.incarnation != incarnation:
                return
            if isinstance(lost, LearnerLost) and not (lost.hung or lost.user_error):
                station.hold(replace(lost, pack=station.number))
            else:
                yield self._event(station, heard)

    def _event(self, station: Station, heard: Heard) -> Event:
        number, event = station.number, heard.event
        match event:
            case ActorFailed(actor):
                station.given[actor] = heard.actions_given
                return replace(event, actor=self._first_actor[number] + actor)
            case LearnerLost():
                return replace(event, pack=number)
        if isinstance(event.message, Saved):
            assert heard.state is not None
            self._pool.write(event.message.entry, heard.state.arrays, heard.state.counts)
        elif isinstance(event.message, LearnerReport) and number == self._going:
            self._going = (number + 1) % len(self._stations)
        elif isinstance(event.message, LearnerReady):
            station.ready = True
        return Received(number, event.message)

    def _overdue(self) -> Iterator[Event]:
        """Yield the loss of hosts that cannot be reached, or give no answer, for too long."""
        now = time.monotonic()
        for station in self._stations:
            if station.host is None:
                continue
            limit = self._resolved.config.learner_timeout_seconds * (1 if station.ready else STARTS)
            if station.unavailable_at is not None:
                seconds = self._awake.of_last(now - station.unavailable_at)
                if station.died and station.place is not None and station.place.node not in self._nodes:
                    yield self._lost(station, f"is gone: {station.died}")
                elif station.died and seconds > DEATH_SECONDS:
                    text = f"the host of learner {station.number} has died: {station.died}"
                    yield LearnerLost(station.number, text)
                elif not station.died and seconds > UNREACHABLE_SECONDS:
                    yield self._lost(station, f"could not be reached for {seconds:.0f} s")
            elif station.owes and (seconds := self._awake.of_last(now - station.heard_at)) > limit:
                yield self._lost(station, f"gave no answer for {seconds:.0f} s")

    # -- what the supervisor asks ---------------------------------------------------------------------------

    def send(self, pack: int, message: ToLearner) -> None:
        entry = message.entry if isinstance(message, Load) else None
        state = None if entry is None else self._state(entry)
        self._stations[pack].orders.append(Send(message, state))

    def restart_actor(self, actor: int) -> None:
        station, local = self._station_of(actor)
        station.orders.append(RestartActor(local))

    def actions_given(self, actor: int) -> int:
        """As of its last failure."""
        station, local = self._station_of(actor)
        return station.given.get(local, 0)

    def _station_of(self, actor: int) -> tuple[Station, int]:
        number = max(number for number, first in enumerate(self._first_actor) if first <= actor)
        return self._stations[number], actor - self._first_actor[number]

    def silent_seconds(self, pack: int) -> float:
        station = self._stations[pack]
        waited = time.monotonic() - station.heard_at if station.owes else 0.0
        return station.silent + self._awake.of_last(waited)

    def learns(self) -> bool:
        return False  # nodes do not report it

    def environment_seconds(self) -> float:
        return sum(station.environment_seconds for station in self._stations)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        station = self._stations[pack]
        station.rows = row_UES
        station.orders.append(SetMatchup(row_UES))
        station.matchup_version += 1
        return station.matchup_version

    @property
    def settled(self) -> bool:
        there = [station.number for station in self._stations if station.host is not None]
        return not self._serial or self._going <= min(there, default=self._going)

    def save_units(self) -> list[Any]:
        """Environments go on while members are saved."""
        return []

    # -- loss -----------------------------------------------------------------------------------------------

    def fence(self, pack: int) -> None:
        self._stations[pack].fence(self._engine)

    def replace_learner(self, pack: int, start: Start) -> None:
        station = self._stations[pack]
        station.orders.clear()
        station.start = replace(start, slots=start.slots[pack : pack + 1])
        self._look()
        self._place(station)
        if station.host is None:
            self._notices.append(Notice(f"learner {pack} waits for a node"))

    def waits(self, pack: int) -> bool:
        return self._stations[pack].host is None

    def close(self, *, at_once: bool = False) -> None:
        hosts = [station.host for station in self._stations if station.host is not None]
        self._engine.end(hosts, 0.0 if at_once else 2 * GRACE_SECONDS)


@dataclass(frozen=True)
class OverNodes:
    """A cluster as `run.train` uses it."""

    engine: Engine

    def resolve(self, config: Config) -> ResolvedRun:
        """Plan a run. Raises ConfigError or EnvSetupError."""
        return cluster_run(config, self.engine.nodes())

    def fleet(self, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool) -> NodeFleet:
        """Start its processes."""
        return NodeFleet(self.engine, resolved, start, matchups, pool)


@contextlib.contextmanager
def connected(config: Config) -> Iterator[OverNodes]:
    """Connect to the cluster that --nodes names, or start one. Raises ConfigError."""
    nodes = config.nodes
    try:
        from pbt_rl.run.nodes.ray_engine import RayEngine  # noqa: PLC0415 - an extra, of 300 MB
    except ImportError as error:
        raise ConfigError(
            f"--nodes {nodes} needs Ray, which is not installed: pip install 'pbt-rl[ray]'"
        ) from error
    engine = RayEngine(nodes.removeprefix("ray").removeprefix(":") or None)
    try:
        yield OverNodes(engine)
    finally:
        engine.close()
