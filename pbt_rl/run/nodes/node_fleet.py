"""Fleet in a cluster. Each pack is a `RemotePack` with a node worker, which receives requests.

    process        consumes                   produces               waits for
    supervisor     answers, states of nodes   requests, commands     any answer
    node worker    requests                   answers with events    its learner, at most the timeout of the request

Each node worker has at most one request in flight. Requests provide ordering, back pressure and the heartbeat. If a
request or its answer is lost, the request is repeated with an equal number. If a node worker is unreachable for
UNREACHABLE_SECONDS, its node counts as lost.

In serial mode, node workers start in parallel. Afterwards only one node worker at a time has a request in flight, and
packs train in the order of `run.serial`.
With equal packs, on equal machines, serial runs with and without --nodes therefore give equal bits (see `run.serial`).
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
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.run.clocks import ScheduledClock
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
from pbt_rl.run.nodes.backend import (
    Backend,
    Heard,
    Node,
    RestartActor,
    Send,
    SetMatchup,
    State,
    WorkerDied,
    WorkerFailed,
    WorkerSetup,
    WorkerUnavailable,
)
from pbt_rl.run.nodes.places import cluster_run, free_places, packs_per_node, places_of
from pbt_rl.run.nodes.remote_pack import RemotePack
from pbt_rl.run.resolved import ResolvedRun

UNREACHABLE_SECONDS = 30.0
DEATH_SECONDS = 30.0
"""Seconds to wait, after the death of a node worker, for the cluster's report that its node has died."""
NODES_SECONDS = 1.0
TIMEOUT_SECONDS = 0.1
"""Minimum timeout of a request. The timeout is short, because decisions wait for the end of the request in flight. In
serial mode, the timeout of a request with commands is 0."""
REQUESTS_PER_SECOND = 500
"""Maximum rate of requests without commands and without events, summed over all node workers."""


class NodeFleet:
    """Fleet of packs on the nodes of a cluster. Not thread-safe.

    pool: states of the run, in the memory of this process. States are copied to and from the nodes.
    """

    def __init__(
        self, backend: Backend, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool
    ) -> None:
        self._backend, self._resolved, self._pool = backend, resolved, pool
        self._clock = ScheduledClock()
        self._next_look = 0.0
        self._nodes: Mapping[str, Node] = {}
        self._shunned = ""
        """Id of the node that failed last. Places on other nodes are preferred."""
        self._gone: set[str] = set()
        """Ids of dead nodes, which the cluster may still list for some seconds."""
        packs = resolved.plan.packs
        self._first_actor = [sum(pack.actors for pack in packs[:number]) for number in range(len(packs))]
        self._timeout = max(TIMEOUT_SECONDS, len(packs) / REQUESTS_PER_SECOND)
        self._remote_packs = [
            RemotePack(
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
        """Serial mode: the pack that trains next."""
        self._share = packs_per_node(backend.nodes(), resolved.config.devices)
        self._place_all()

    # -- places ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the list of live nodes from the cluster."""
        self._next_look = time.monotonic() + NODES_SECONDS
        self._nodes = {key: node for key, node in self._backend.nodes().items() if key not in self._gone}

    def _place_all(self) -> None:
        """Start node workers for packs without a node worker, while there are free places."""
        self._look()
        for remote in self._remote_packs:
            if remote.worker is None:
                self._place(remote)

    def _place(self, remote: RemotePack) -> None:
        taken = [one.place for one in self._remote_packs if one.place is not None]
        free = free_places(
            places_of(self._nodes, self._resolved.config.devices, self._share), taken, self._shunned
        )
        if free:
            place = free[0]
            remote.start_worker(self._backend, place, self._setup(remote))
            self._notices.append(Notice(f"learner {remote.number} starts on {self._nodes[place.node].name}"))

    def _setup(self, remote: RemotePack) -> WorkerSetup:
        packs = self._resolved.plan.packs
        before = sum(1 + pack.actors for pack in packs[: remote.number])
        start = replace(remote.start, vector_envs=(), renewals=remote.incarnation, seeds_before=before)
        entries = [load.entry for load in start.slots[0] if load is not None and load.entry is not None]
        return WorkerSetup(
            replace(self._resolved, plan=replace(self._resolved.plan, packs=(packs[remote.number],))),
            start,
            self._pool.layout,
            {entry: self._state(entry) for entry in entries},
            () if remote.rows is None else (remote.rows,),
            Path.cwd(),
        )

    def _state(self, entry: int) -> State:
        """Return views of a `StatePool` entry. The views are valid until the learner has acknowledged the load."""
        return State(self._pool.views(entry), self._pool.counts(entry))

    # -- events ---------------------------------------------------------------------------------------------

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        self._clock.tick()
        if time.monotonic() >= self._next_look:
            yield from self._see_nodes()
        while self._notices:
            yield self._notices.pop(0)
        for remote in self._served():
            # In serial mode a pack does not train during a request with orders.
            timeout = 0.0 if self._serial and remote.orders else self._timeout
            remote.issue(self._backend, timeout)
        calls = {remote.call: remote for remote in self._remote_packs if remote.call is not None}
        for call in self._backend.wait(calls, timeout_seconds):
            remote = calls[call]
            if remote.call is call:  # otherwise the worker was killed in the meantime
                yield from self._take(remote)
        self._clock.tick()
        yield from self._overdue()

    def _served(self) -> Iterable[RemotePack]:
        """Return the packs that may get a request now."""
        if not self._serial:
            return self._remote_packs
        there = [remote for remote in self._remote_packs if remote.worker is not None]
        chosen = next((remote for remote in there if remote.owes), None)
        chosen = chosen or next((remote for remote in there if not remote.ready or remote.orders), None)
        if chosen is None and there:
            chosen = min(there, key=lambda one: (one.number - self._going) % len(self._remote_packs))
            self._going = chosen.number
        return [] if chosen is None else [chosen]

    def _see_nodes(self) -> Iterator[Event]:
        self._place_all()
        for remote in self._remote_packs:
            if remote.place is None:
                continue
            node = self._nodes.get(remote.place.node)
            if node is None:
                yield self._lost(remote, "is gone")
            elif node.leaving and not remote.leaving:
                remote.leaving = True
                yield MachineLeaving(self._lost(remote, "is being taken away"))

    def _lost(self, remote: RemotePack, how: str) -> LearnerLost:
        assert remote.place is not None
        self._shunned = remote.place.node
        text = f"the node of learner {remote.number} ({self._shunned[:8]}) {how}"
        return LearnerLost(remote.number, text, machine=True)

    def _take(self, remote: RemotePack) -> Iterator[Event]:
        incarnation = remote.incarnation
        try:
            answer = self._backend.result(remote.call)
        except WorkerUnavailable:
            remote.unreachable()
            return
        except WorkerDied as error:
            remote.unreachable()
            remote.died = str(error) or "died"
            if error.node_gone:
                self._gone.add(remote.place.node if remote.place else "")
                yield self._lost(remote, f"is gone: {remote.died}")
            return
        except WorkerFailed as error:
            remote.unreachable()
            remote.died = str(error)
            text = f"the node worker of learner {remote.number} has failed: {error}"
            yield LearnerLost(remote.number, text, user_error=error.user_error)
            return
        remote.answered(answer)
        if remote.held is not None:
            yield remote.held  # the node worker has answered: only the learner has died
            return
        for heard in () if answer is None else answer.heard:
            lost = heard.event
            if remote.incarnation != incarnation:
                return
            if isinstance(lost, LearnerLost) and not (lost.hung or lost.user_error):
                remote.hold(replace(lost, pack=remote.number))
            else:
                yield self._event(remote, heard)

    def _event(self, remote: RemotePack, heard: Heard) -> Event:
        number, event = remote.number, heard.event
        match event:
            case ActorFailed(actor):
                remote.given[actor] = heard.actions_given
                return replace(event, actor=self._first_actor[number] + actor)
            case LearnerLost():
                return replace(event, pack=number)
            case Notice():
                return event
        if isinstance(event.message, Saved):
            assert heard.state is not None
            self._pool.write(event.message.entry, heard.state.arrays, heard.state.counts)
        elif isinstance(event.message, LearnerReport) and number == self._going:
            self._going = (number + 1) % len(self._remote_packs)
        elif isinstance(event.message, LearnerReady):
            remote.ready = True
        return Received(number, event.message)

    def _overdue(self) -> Iterator[Event]:
        """Yield an event for each node worker that has died, is unreachable, or has not answered in time."""
        now = time.monotonic()
        for remote in self._remote_packs:
            if remote.worker is None:
                continue
            limit = self._resolved.config.learner_timeout_seconds * (1 if remote.ready else STARTS)
            if remote.unavailable_at is not None:
                seconds = self._clock.of_last(now - remote.unavailable_at)
                if remote.died and remote.place is not None and remote.place.node not in self._nodes:
                    yield self._lost(remote, f"is gone: {remote.died}")
                elif remote.died and seconds > DEATH_SECONDS:
                    text = f"the node worker of learner {remote.number} has died: {remote.died}"
                    yield LearnerLost(remote.number, text)
                elif not remote.died and seconds > UNREACHABLE_SECONDS:
                    yield self._lost(remote, f"could not be reached for {seconds:.0f} s")
            elif remote.owes and (seconds := self._clock.of_last(now - remote.heard_at)) > limit:
                yield self._lost(remote, f"gave no answer for {seconds:.0f} s")

    # -- requests of the supervisor -------------------------------------------------------------------------

    def send(self, pack: int, message: ToLearner) -> None:
        entry = message.entry if isinstance(message, Load) else None
        state = None if entry is None else self._state(entry)
        self._remote_packs[pack].orders.append(Send(message, state))

    def restart_actor(self, actor: int) -> None:
        remote, local = self._remote_pack_of(actor)
        remote.orders.append(RestartActor(local))

    def actions_given(self, actor: int) -> int:
        """Return the number of vector env steps for which the actor had received actions at its last failure."""
        remote, local = self._remote_pack_of(actor)
        return remote.given.get(local, 0)

    def _remote_pack_of(self, actor: int) -> tuple[RemotePack, int]:
        number = max(number for number, first in enumerate(self._first_actor) if first <= actor)
        return self._remote_packs[number], actor - self._first_actor[number]

    def heartbeat_age_seconds(self, pack: int) -> float:
        remote = self._remote_packs[pack]
        waited = time.monotonic() - remote.heard_at if remote.owes else 0.0
        return remote.heartbeat_age + self._clock.of_last(waited)

    def learns(self) -> bool:
        return False  # nodes do not report this

    def environment_seconds(self) -> float:
        return sum(remote.environment_seconds for remote in self._remote_packs)

    def set_matchup(self, pack: int, row_UES: NDArray[np.int64]) -> int:
        remote = self._remote_packs[pack]
        remote.rows = row_UES
        remote.orders.append(SetMatchup(row_UES))
        remote.matchup_version += 1
        return remote.matchup_version

    @property
    def settled(self) -> bool:
        there = [remote.number for remote in self._remote_packs if remote.worker is not None]
        return not self._serial or self._going <= min(there, default=self._going)

    def save_vector_envs(self) -> list[Any]:
        """Return an empty list, because node workers do not send these states."""
        return []

    # -- loss -----------------------------------------------------------------------------------------------

    def kill(self, pack: int) -> None:
        self._remote_packs[pack].kill(self._backend)

    def replace_learner(self, pack: int, start: Start) -> None:
        remote = self._remote_packs[pack]
        remote.orders.clear()
        remote.start = replace(start, slots=start.slots[pack : pack + 1])
        self._look()
        self._place(remote)
        if remote.worker is None:
            self._notices.append(Notice(f"learner {pack} waits for a node"))

    def waits(self, pack: int) -> bool:
        return self._remote_packs[pack].worker is None

    def close(self, *, at_once: bool = False) -> None:
        workers = [remote.worker for remote in self._remote_packs if remote.worker is not None]
        self._backend.end(workers, 0.0 if at_once else 2 * GRACE_SECONDS)


@dataclass(frozen=True)
class OverNodes:
    """Connected cluster, on which runs are planned and started."""

    backend: Backend

    def resolve(self, config: Config) -> ResolvedRun:
        """Plan a run. Raises ConfigError or EnvSetupError if the run cannot be planned."""
        return cluster_run(config, self.backend.nodes())

    def fleet(self, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool) -> NodeFleet:
        """Start the processes of a run."""
        return NodeFleet(self.backend, resolved, start, matchups, pool)


@contextlib.contextmanager
def connected(config: Config) -> Iterator[OverNodes]:
    """Connect to the cluster of --nodes, or start a cluster. The context yields the connection.

    Raises ConfigError if Ray is not installed or the cluster cannot be reached.
    """
    nodes = config.nodes
    try:
        from pbt_rl.run.nodes.ray_backend import RayBackend  # noqa: PLC0415 - an optional extra of 300 MB
    except ImportError as error:
        raise ConfigError(
            f"--nodes {nodes} needs Ray, which is not installed: pip install 'pbt-rl[ray]'"
        ) from error
    backend = RayBackend(nodes.removeprefix("ray").removeprefix(":") or None)
    try:
        yield OverNodes(backend)
    finally:
        backend.close()
