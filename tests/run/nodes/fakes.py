"""A cluster without processes: nodes come and go as a test says, workers answer what it has put into them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from pbt_rl.actors.state_pool import StatePool
from pbt_rl.config.command import parse_train
from pbt_rl.run.nodes.backend import Answer, Node
from pbt_rl.run.nodes.node_fleet import NodeFleet
from pbt_rl.run.nodes.node_worker import NodeWorker
from pbt_rl.run.nodes.places import cluster_run
from tests.helpers.plans import fresh

LAYOUT = (("param", "<f4", (3,)),)


@dataclass(eq=False)
class FakeWorker:
    """What a worker was asked, and what it answers next: a list of Heard, or an exception."""

    place: object
    requests: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    ended: bool = False


@dataclass
class FakeBackend:
    """See Backend."""

    alive: dict[str, Node] = field(default_factory=dict)
    workers: list[FakeWorker] = field(default_factory=list)
    silent: set = field(default_factory=set)
    """Workers whose calls never end."""

    @classmethod
    def of(cls, *names: str, cpus=2.0, gpus=0) -> FakeBackend:
        return cls({name: Node(name, cpus, gpus) for name in names})

    def nodes(self):
        return dict(self.alive)

    def start(self, place):
        self.workers.append(FakeWorker(place))
        return self.workers[-1]

    def call(self, worker, request):
        worker.requests.append(request)
        return (worker, request.number, len(worker.requests))

    def wait(self, calls, _timeout_seconds):
        return [call for call in calls if call[0] not in self.silent]

    def result(self, call):
        worker, number, _ = call
        if number == 0:
            return None
        given = worker.answers.pop(0) if worker.answers else []
        if isinstance(given, Exception):
            raise given
        return Answer(tuple(given), 1.0, 0.0)

    def end(self, workers, _timeout_seconds):
        for worker in workers:
            worker.ended = True

    def close(self):
        pass

    def on(self, node: str) -> FakeWorker:
        """Return the last worker of a node."""
        return next(worker for worker in reversed(self.workers) if worker.place.node == node)


@dataclass
class InProcessBackend:
    """A cluster whose workers live in this process, and carry a request out when they are waited for."""

    alive: dict[str, Node]
    calls: dict = field(default_factory=dict)

    def nodes(self):
        return dict(self.alive)

    def start(self, _place):
        return NodeWorker()

    def call(self, worker, request):
        call = object()
        self.calls[call] = (worker, pickle.dumps(request, protocol=5))
        return call

    def wait(self, calls, _timeout_seconds):
        return [*calls]

    def result(self, call):
        worker, request = self.calls.pop(call)
        return pickle.loads(pickle.dumps(worker.execute(pickle.loads(request))))

    def end(self, workers, _timeout_seconds):
        for worker in workers:
            worker.close()

    def close(self):
        pass


def make_fleet(backend: FakeBackend, *options: str) -> NodeFleet:
    words = "--env=toy/shaped --num-policies=4 --nodes=ray --devices=cpu,cpu --actors=2"
    config = parse_train([*words.split(), *options])
    run = cluster_run(config, backend.nodes())
    return NodeFleet(backend, run, fresh(run), (), StatePool(LAYOUT))
