"""The fleet of processes: its events, replacements, the hang check and the end, with tiny children of its own."""

import os
import signal
import threading
import time

import pytest

from pbt_rl.actors.mailbox import ACTIONS, HEARTBEAT_NS, OBSERVATIONS
from pbt_rl.actors.messages import LearnerReady, Save, Saved
from pbt_rl.envs.episode_book import AT_ONCE, ROW
from pbt_rl.processes.child import Child
from pbt_rl.processes.polling import MAIN_NS, TRAINER_NS
from pbt_rl.run import clocks
from pbt_rl.run import fleet as module
from pbt_rl.run.fleet import ActorFailed, LearnerLost, ProcessFleet, Received
from tests.helpers.plans import fresh, resolved

LEARNER = """
from pbt_rl.processes.child import begin_child, send_failure
from pbt_rl.actors.messages import LearnerReady, Save, Saved, StopLearner

connection, setup = begin_child()
connection.send(LearnerReady())
while True:
    match connection.recv():
        case Save(_, key, 0):
            connection.send(Saved(key, 0))
        case Save(_, key, entry):
            connection.send(Saved(key, entry))
            send_failure(connection, "the learner of the test gives up", user_error=False)
            raise SystemExit(1)
        case StopLearner():
            raise SystemExit(0)
"""
ACTOR = """
import time
from pbt_rl.processes.child import begin_child, send_failure

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
        return Child("fake_learner" if name.endswith("learner") else "fake_actor_child", *arguments)

    monkeypatch.setattr(module, "Child", child)
    fleets = []

    def make(env="toy/identity", *options):
        run = resolved(env, "--num-policies=2", "--actors=2", "--devices=cpu", *options)
        fleets.append(ProcessFleet(run, fresh(run)))
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


def test_messages_go_both_ways_and_a_death_comes_after_all_of_them(start):
    fleet = start()
    assert until(fleet, Received) == [Received(0, LearnerReady())]
    fleet.send(0, Save(1, 1, 0))
    assert until(fleet, Received) == [Received(0, Saved(1, 0))]
    fleet.send(0, Save(1, 1, 5))
    lost = LearnerLost(0, "the learner of the test gives up")
    assert until(fleet, LearnerLost) == [Received(0, Saved(1, 5)), lost], "with the error that was sent"


def test_a_learner_that_reads_nothing_for_a_while_keeps_nobody_and_misses_nothing(start):
    fleet = start()
    until(fleet, Received)
    messages = [Save(1, member, 0) for member in range(1000)]
    os.kill(fleet.learners[0].pid, signal.SIGSTOP)
    sending = threading.Thread(target=lambda: [fleet.send(0, one) for one in messages], daemon=True)
    sending.start()
    sending.join(10)
    kept = sending.is_alive()
    os.kill(fleet.learners[0].pid, signal.SIGCONT)
    assert not kept
    found, deadline = [], time.monotonic() + 60
    while len(found) < len(messages) and time.monotonic() < deadline:
        found += fleet.events(0.1)
    assert found == [Received(0, Saved(one.key, 0)) for one in messages]


def test_a_killed_actor_is_reported_once_and_replaced_with_other_seeds(start):
    fleet = start()
    until(fleet, Received)
    seeds = fleet.memory.actors[1].setup.seeds
    os.kill(fleet.actors[1].pid, signal.SIGKILL)
    (failed,) = until(fleet, ActorFailed)
    assert (failed.actor, failed.killed, "SIGKILL" in failed.text) == (1, True, True)
    dead = fleet.actors[1]
    assert [e for _ in range(5) for e in fleet.events(0.05)] == [], "even without a restart"
    fleet.restart_actor(1)
    assert dead.connection.closed
    assert [e for _ in range(5) for e in fleet.events(0.05)] == []
    assert fleet.actors[1].exit_code() is None
    assert not set(seeds) & set(fleet.memory.actors[1].setup.seeds)
    assert fleet.memory.actors[0].restarts == 0


def test_the_others_are_heard_if_an_actor_could_not_be_started_again(start, monkeypatch):
    fleet = start()
    until(fleet, Received)

    def refuse(*_):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(module, "Child", refuse)
        with pytest.raises(BlockingIOError):
            fleet.restart_actor(0)
    fleet.send(0, Save(1, 1, 0))
    assert until(fleet, Received) == [Received(0, Saved(1, 0))]


def test_an_error_of_the_user_is_marked(start):
    events = until(start("toy/nan"), ActorFailed)
    failed = next(e for e in events if isinstance(e, ActorFailed))
    assert (failed.text, failed.user_error) == ("no such level", True)


@pytest.fixture
def silent(start, monkeypatch):
    """Return a fleet and the mailboxes of its actor 0, which has given no sign for a minute, 50 s being allowed."""
    monkeypatch.setattr(module, "HANG_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(clocks, "waited_seconds", lambda _pid: 0.0)
    fleet = start("toy/identity", "--actor-timeout-seconds=50")
    until(fleet, Received)
    boxes = fleet.memory.actors[0].boxes
    for box in boxes:
        box.header[HEARTBEAT_NS] = time.monotonic_ns() - int(60e9)
    return fleet, boxes


def test_an_actor_with_work_that_gives_no_sign_hangs(silent):
    fleet, (first, second) = silent
    hung = [ActorFailed(0, "actor 0 took no step for 60 s", hung=True)]
    assert list(fleet.events(0.0)) == hung
    second.header[OBSERVATIONS] = second.header[ACTIONS] + 1
    assert list(fleet.events(0.0)) == hung, (
        "the learner has one of its vector envs, and it does not step the other"
    )
    first.header[OBSERVATIONS] = first.header[ACTIONS] + 1
    assert list(fleet.events(0.0)) == [], "the learner has all its vector envs: it has no work"


@pytest.mark.parametrize("number", [0, 1])
def test_an_actor_is_slow_while_rows_of_any_vector_env_move(silent, number):
    fleet, boxes = silent
    assert list(fleet.events(0.0)) != []
    boxes[number].heartbeat[ROW] += 1
    assert list(fleet.events(0.0)) == []
    boxes[number].header[HEARTBEAT_NS] -= int(60e9)
    assert [event.hung for event in fleet.events(0.0)] == [True], "until they no longer do"


def test_an_actor_that_makes_many_rows_in_one_call_has_time_for_it(silent):
    fleet, boxes = silent
    boxes[1].heartbeat[AT_ONCE] = 15
    assert list(fleet.events(0.0)) == []
    boxes[1].header[HEARTBEAT_NS] -= int(10e9)
    boxes[0].header[HEARTBEAT_NS] -= int(10e9)
    assert [event.hung for event in fleet.events(0.0)] == [True], "but not for ever"


def test_close_stops_learners_and_actors_in_order_and_leaves_no_process(start, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 30.0)
    fleet = start()
    until(fleet, Received)
    children = [*fleet.learners, *fleet.actors]
    fleet.close()
    assert [child.exit_code() for child in children] == [0, 0, 0]
    assert all(child.connection.closed for child in children)


def test_close_kills_who_does_not_end(start, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    fleet = start("toy/hanging")
    until(fleet, Received)
    actors = fleet.actors
    began = time.monotonic()
    fleet.close()
    assert time.monotonic() - began < 5
    assert [actor.exit_code() for actor in actors] == [-signal.SIGKILL] * 2


def test_a_learner_without_a_sign_of_life_is_lost_and_may_take_longer_to_start(start, monkeypatch):
    monkeypatch.setattr(module, "HANG_CHECK_SECONDS", 0.0)
    fleet = start("toy/identity", "--learner-timeout-seconds=50")
    heart = fleet.memory.heartbeats[0]
    heart._cells[MAIN_NS] -= int(60e9)
    assert LearnerLost not in map(type, fleet.events(0.0)), "it may not have started yet"
    until(fleet, Received)
    (hung,) = fleet.events(0.0)
    assert (hung.pack, hung.hung) == (0, True)
    assert "--learner-timeout-seconds 50" in hung.text
    heart.beat_main()
    heart.beat_trainer(True)
    assert list(fleet.events(0.0)) == []
    heart._cells[TRAINER_NS] -= int(60e9)
    assert [event.hung for event in fleet.events(0.0)] == [True], "its trainer alone"


def test_nobody_hung_while_the_supervisor_itself_was_stopped(start, monkeypatch):
    monkeypatch.setattr(module, "HANG_CHECK_SECONDS", 0.0)
    fleet = start("toy/identity", "--learner-timeout-seconds=50", "--actor-timeout-seconds=50")
    until(fleet, Received)
    fleet.memory.heartbeats[0]._cells[MAIN_NS] -= int(60e9)
    for record in fleet.memory.actors:
        for box in record.boxes:
            box.header[HEARTBEAT_NS] -= int(60e9)
    fleet._clock._last -= 60.0
    assert list(fleet.events(0.0)) == []


def test_a_lost_learner_is_replaced_with_its_actors(start):
    fleet = start()
    until(fleet, Received)
    old = [*fleet.learners, *fleet.actors]
    seeds = [record.setup.seeds for record in fleet.memory.actors]
    fleet.send(0, Save(1, 1, 0))
    os.kill(old[0].pid, signal.SIGSTOP)
    fleet.kill(0)
    assert all(child.exit_code() is not None for child in old)
    fleet.replace_learner(0, fleet.memory._start)
    assert until(fleet, Received) == [Received(0, LearnerReady())], "nothing of the old one"
    assert not set(old) & {*fleet.learners, *fleet.actors}
    assert all(child.exit_code() is None for child in [*fleet.learners, *fleet.actors])
    assert [record.setup.seeds for record in fleet.memory.actors] != seeds


def test_processes_are_killed_at_once_and_not_one_after_the_other(start, monkeypatch):
    """Each may take seconds to end, with the programs that its environments have started."""
    fleet = start()
    until(fleet, Received)
    done = []
    for name in ("kill", "end"):
        method = getattr(Child, name)
        noted = lambda child, *args, method=method, name=name: [done.append(name), method(child, *args)]  # noqa: E731
        monkeypatch.setattr(Child, name, noted)
    fleet.kill(0)
    assert done[:4] == ["kill", "kill", "kill", "end"]
    assert all(child.exit_code() is not None for child in (*fleet.learners, *fleet.actors))


def test_a_learner_that_has_just_died_can_be_sent_to(start):
    fleet = start()
    until(fleet, Received)
    os.kill(fleet.learners[0].pid, signal.SIGKILL)
    fleet.learners[0].wait(time.monotonic() + 30)
    fleet.send(0, Save(1, 1, 0))
    (lost,) = until(fleet, LearnerLost)
    assert (lost.pack, lost.hung) == (0, False)
