"""The fleet of processes: its events, replacements, the hang check and the end, with tiny children of its own."""

import os
import signal
import time

import pytest

from pbt_rl.cli.train import parse_train
from pbt_rl.plan import Machine
from pbt_rl.run import fleet as module
from pbt_rl.run.fleet import ActorFailed, LearnerDied, ProcessFleet, Received
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.wire import process
from pbt_rl.wire.mailbox import ACTIONS, HEARTBEAT_NS, OBSERVATIONS
from pbt_rl.wire.messages import ExportMember, LearnerReady, MemberExported

LEARNER = """
from pbt_rl.wire.messages import ExportMember, LearnerReady, MemberExported, StopLearner
from pbt_rl.wire.process import begin_child, send_failure

connection, setup = begin_child()
connection.send(LearnerReady())
while True:
    match connection.recv():
        case ExportMember(member, None):
            connection.send(MemberExported(member))
        case ExportMember(member, _):
            connection.send(MemberExported(member))
            send_failure(connection, "the learner of the test gives up", user_error=False)
            raise SystemExit(1)
        case StopLearner():
            raise SystemExit(0)
"""
ACTOR = """
import time
from pbt_rl.wire.process import begin_child, send_failure

connection, setup = begin_child()
if setup.spec.env_id.endswith("nan"):
    send_failure(connection, "no such level", user_error=True)
    raise SystemExit(1)
if not setup.spec.env_id.endswith("hanging"):
    try:
        connection.recv()
    except EOFError:
        raise SystemExit(0) from None
time.sleep(120)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a fleet of an environment, its processes replaced by the scripts above."""
    (tmp_path / "fake_learner.py").write_text(LEARNER)
    (tmp_path / "fake_actor_child.py").write_text(ACTOR)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(module.__file__).split("/pbt_rl/")[0]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def child(name, *arguments):
        return process.Child("fake_learner" if name.endswith("learner") else "fake_actor_child", *arguments)

    monkeypatch.setattr(module, "Child", child)
    fleets = []

    def make(env="toy/identity", *options):
        config, _ = parse_train([f"--env={env}", "--num-policies=2", "--actors=2", "--devices=cpu", *options])
        resolved = ResolvedRun.resolve(config, Machine(2, 0))
        fleets.append(ProcessFleet(resolved, resolved.controller().initial(2)))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


def until(fleet, kind, seconds=60):
    """Collect events until there is one of a kind."""
    found, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        found += fleet.events(0.1)
        if any(isinstance(event, kind) for event in found):
            return found
    raise AssertionError(found)


def test_messages_go_both_ways(start):
    fleet = start()
    assert until(fleet, Received) == [Received(0, LearnerReady())]
    fleet.send(0, ExportMember(1, None))
    assert until(fleet, Received) == [Received(0, MemberExported(1))]


def test_a_death_comes_after_all_messages_and_with_the_error_that_was_sent(start):
    fleet = start()
    fleet.send(0, ExportMember(1, 5))
    assert until(fleet, LearnerDied) == [
        Received(0, LearnerReady()),
        Received(0, MemberExported(1)),
        LearnerDied(0, "the learner of the test gives up"),
    ]


def test_a_killed_actor_is_reported_once_and_replaced_with_other_seeds(start):
    fleet = start()
    until(fleet, Received)
    seeds = fleet._memory.actors[1].setup.seeds
    os.kill(fleet._actors[1].pid, signal.SIGKILL)
    (failed,) = until(fleet, ActorFailed)
    assert failed == ActorFailed(1, "actor 1 was killed by SIGKILL")
    dead = fleet._actors[1]
    fleet.restart_actor(1)
    assert dead.connection.closed
    assert [e for _ in range(5) for e in fleet.events(0.05)] == []
    assert fleet._actors[1].exit_code() is None
    assert not set(seeds) & set(fleet._memory.actors[1].setup.seeds)
    assert fleet._memory.actors[0].restarts == 0


def test_an_error_of_the_user_is_marked(start):
    events = until(start("toy/nan"), ActorFailed)
    assert next(e for e in events if isinstance(e, ActorFailed)) in [
        ActorFailed(i, "no such level", user_error=True) for i in range(2)
    ]


def test_an_actor_hangs_when_none_of_its_units_moves(start, monkeypatch):
    monkeypatch.setattr(module, "HANG_CHECK_SECONDS", 0.0)
    fleet = start("toy/identity", "--actor-timeout-seconds=50")
    until(fleet, Received)
    long_ago = time.monotonic_ns() - int(60e9)
    first, second = fleet._memory.actors[0].boxes
    first.header[HEARTBEAT_NS] = long_ago
    assert list(fleet.events(0.0)) == [], "one unit waits for the other"
    second.header[HEARTBEAT_NS] = long_ago
    (hung,) = fleet.events(0.0)
    assert hung == ActorFailed(0, "actor 0 took no step for 60 s", hung=True)
    second.header[OBSERVATIONS] = second.header[ACTIONS] + 1
    assert list(fleet.events(0.0)) == [], "the learner has the turn"


def test_close_stops_learners_and_actors_in_order_and_leaves_no_process(start, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 30.0)
    fleet = start()
    until(fleet, Received)
    children = [*fleet._learners, *fleet._actors]
    fleet.close()
    assert [child.exit_code() for child in children] == [0, 0, 0]
    assert all(child.connection.closed for child in children)


def test_close_kills_who_does_not_end(start, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    fleet = start("toy/hanging")
    until(fleet, Received)
    actors = fleet._actors
    began = time.monotonic()
    fleet.close()
    assert time.monotonic() - began < 5
    assert [actor.exit_code() for actor in actors] == [-signal.SIGKILL] * 2
