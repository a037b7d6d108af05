"""A cluster without processes: nodes come and go as a test says, hosts answer what it has put into them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from pbt_rl.actors.store import StatePool
from pbt_rl.config.command import parse_train
from pbt_rl.run.nodes.engine import Answer, Node
from pbt_rl.run.nodes.fleet import NodeFleet
from pbt_rl.run.nodes.host import PackHost
from pbt_rl.run.nodes.plan import cluster_run
from tests.helpers.plans import fresh

LAYOUT = (("param", "<f4", (3,)),)


@dataclass(eq=False)
class FakeHost:
    """What a host was asked, and what it answers next: a list of Heard, or an exception."""

    place: object
    requests: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    ended: bool = False


@dataclass
class FakeEngine:
    """See Engine."""

    alive: dict[str, Node] = field(default_factory=dict)
    hosts: list[FakeHost] = field(default_factory=list)
    silent: set = field(default_factory=set)
    """Hosts whose calls never end."""

    @classmethod
    def of(cls, *names: str, cpus=2.0, gpus=0) -> FakeEngine:
        return cls({name: Node(name, cpus, gpus) for name in names})

    def nodes(self):
        return dict(self.alive)

    def start(self, place):
        self.hosts.append(FakeHost(place))
        return self.hosts[-1]

    def call(self, host, request):
        host.requests.append(request)
        return (host, request.number, len(host.requests))

    def wait(self, calls, _patience_seconds):
        return [call for call in calls if call[0] not in self.silent]

    def result(self, call):
        host, number, _ = call
        if number == 0:
            return None
        given = host.answers.pop(0) if host.answers else []
        if isinstance(given, Exception):
            raise given
        return Answer(tuple(given), 1.0, 0.0)

    def end(self, hosts, _patience_seconds):
        for host in hosts:
            host.ended = True

    def close(self):
        pass

    def on(self, node: str) -> FakeHost:
        """Return the last host of a node."""
        return next(host for host in reversed(self.hosts) if host.place.node == node)


@dataclass
class InProcessEngine:
    """A cluster whose hosts live in this process, and carry a request out when they are waited for."""

    alive: dict[str, Node]
    calls: dict = field(default_factory=dict)

    def nodes(self):
        return dict(self.alive)

    def start(self, _place):
        return PackHost()

    def call(self, host, request):
        call = object()
        self.calls[call] = (host, pickle.dumps(request, protocol=5))
        return call

    def wait(self, calls, _patience_seconds):
        return [*calls]

    def result(self, call):
        host, request = self.calls.pop(call)
        return pickle.loads(pickle.dumps(host.execute(pickle.loads(request))))

    def end(self, hosts, _patience_seconds):
        for host in hosts:
            host.close()

    def close(self):
        pass


def make_fleet(engine: FakeEngine, *options: str) -> NodeFleet:
    words = "--env=toy/shaped --num-policies=4 --nodes=ray --devices=cpu,cpu --actors=2"
    config = parse_train([*words.split(), *options])
    run = cluster_run(config, engine.nodes())
    return NodeFleet(engine, run, fresh(run), (), StatePool(LAYOUT))
