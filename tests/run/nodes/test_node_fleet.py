"""The fleet over a cluster, with workers that answer what a test says."""

import re
import time

import numpy as np
import pytest

from pbt_rl.actors.messages import (
    LearnerReady,
    LearnerSaved,
    Load,
    PauseTraining,
    Save,
    Saved,
    SaveLearner,
    SetValues,
)
from pbt_rl.actors.state_pool import Counts
from pbt_rl.run.fleet import ActorFailed, LearnerLost, MachineLeaving, Notice, Received
from pbt_rl.run.memory import Start
from pbt_rl.run.nodes import node_fleet as module
from pbt_rl.run.nodes.backend import (
    Heard,
    Node,
    RestartActor,
    Send,
    State,
    WorkerDied,
    WorkerFailed,
    WorkerUnavailable,
)
from tests.run.nodes.fakes import FakeBackend, make_fleet


@pytest.fixture
def backend():
    return FakeBackend.of("a", "b")


def happened(fleet, rounds=1):
    """Return what happened in some rounds, without notices."""
    found = [event for _ in range(rounds) for event in fleet.events(0.0)]
    return [event for event in found if type(event) is not Notice]


def orders(worker):
    return [order for request in worker.requests for order in request.orders]


def test_each_pack_runs_on_a_node_with_its_own_members(backend):
    make_fleet(backend)
    assert [worker.place.node for worker in backend.workers] == ["a", "b"]
    setups = [worker.requests[0].setup for worker in backend.workers]
    assert [setup.resolved.plan.packs[0].members for setup in setups] == [(0, 2), (1, 3)]
    assert [[load.member for load in setup.start.slots[0]] for setup in setups] == [[0, 2], [1, 3]]
    actors = setups[0].resolved.plan.packs[0].actors
    assert [setup.start.seeds_before for setup in setups] == [0, 1 + actors], "as on one machine"


def test_warnings_of_environments_on_a_node_are_passed_on(backend):
    fleet = make_fleet(backend)
    backend.on("b").answers = [[Heard(Notice("warning: odd"))]]
    assert Notice("warning: odd") in [event for _ in range(2) for event in fleet.events(0.0)]


def test_events_carry_the_numbers_of_the_run(backend):
    fleet = make_fleet(backend)
    backend.on("b").answers = [[Heard(Received(0, LearnerReady())), Heard(ActorFailed(0, "oh"), None, 7)]]
    first_of_b = backend.on("a").requests[0].setup.resolved.plan.packs[0].actors
    assert happened(fleet, 2) == [Received(1, LearnerReady()), ActorFailed(first_of_b, "oh")]
    assert fleet.actions_given(first_of_b) == 7
    fleet.restart_actor(first_of_b)
    happened(fleet)
    assert orders(backend.on("b")) == [RestartActor(0)]
    assert orders(backend.on("a")) == []


def state(number):
    return State({"param": np.full(3, number, np.float32)}, Counts(number))


def test_a_state_that_is_saved_goes_with_the_message_that_loads_it(backend):
    fleet = make_fleet(backend)
    fleet._pool.grow(2)
    save = Save(1, 7, 1)
    fleet.send(1, save)
    backend.on("b").answers = [[Heard(Received(0, Saved(7, 1)), state(5))]]
    happened(fleet, 2)
    assert fleet._pool.read(1)["param"].tolist() == [5.0] * 3
    load = Load(0, 0, 1, {}, entry=1)
    fleet.send(0, load)
    fleet.send(0, SetValues(0, 2, {}))
    happened(fleet)
    sent, other = orders(backend.on("a"))
    assert sent.message == load
    assert sent.state.arrays["param"].tolist() == [5.0] * 3
    assert sent.state.counts == Counts(5)
    assert other.state is None
    assert orders(backend.on("b")) == [Send(save)]


def test_a_worker_begins_with_the_states_that_its_slots_hold(backend):
    fleet = make_fleet(backend)
    happened(fleet)
    fleet._pool.grow(4)
    fleet._pool.write(3, state(9).arrays, Counts(9))
    slots = [(Load(0, 0, 4, {}, entry=3), None), ()]
    fleet.kill(0)
    fleet.replace_learner(0, Start(slots, {}))
    setup = backend.on("a").requests[0].setup
    assert setup.start.slots == slots[:1]
    assert setup.states[3].arrays["param"].tolist() == [9.0] * 3
    assert setup.states.keys() == {3}


def test_a_turn_that_did_not_arrive_is_sent_again_under_its_number(backend, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.nodes.remote_pack.RETRY_SECONDS", 0.0)
    fleet = make_fleet(backend)
    worker = backend.on("a")
    worker.answers = [WorkerUnavailable("a link is down"), [Heard(Received(0, LearnerReady()))]]
    happened(fleet)
    fleet.send(0, PauseTraining())
    assert happened(fleet) == [], "not lost"
    fleet.send(0, SaveLearner(1))
    assert happened(fleet) == [Received(0, LearnerReady())]
    happened(fleet)
    numbers = [(request.number, [order.message for order in request.orders]) for request in worker.requests]
    assert numbers == [(0, []), *[(1, [PauseTraining()])] * 2, (2, [SaveLearner(1)])]


def test_a_worker_that_cannot_be_reached_for_long_is_lost_with_its_node(backend, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.nodes.remote_pack.RETRY_SECONDS", 0.0)
    fleet = make_fleet(backend)
    backend.on("a").answers = [WorkerUnavailable("a link is down")] * 5
    assert happened(fleet, 3) == []
    monkeypatch.setattr(module, "UNREACHABLE_SECONDS", 0.0)
    [lost] = happened(fleet)
    assert (lost.pack, lost.kind) == (0, "machine")
    assert "reached" in lost.text


def test_a_worker_that_gives_no_answer_is_lost(backend):
    fleet = make_fleet(backend, "--learner-timeout-seconds=0.001")
    backend.on("b").answers = [[Heard(Received(0, LearnerReady()))]]
    happened(fleet, 2)
    backend.silent.add(backend.on("b"))
    happened(fleet)
    time.sleep(0.01)
    lost = next(event for event in happened(fleet) if event.pack == 1)
    assert "answer" in lost.text
    assert lost.kind == "machine"


@pytest.mark.parametrize("known", [True, False])
def test_a_worker_that_dies_with_its_node_is_no_fault_of_the_learner(backend, known, monkeypatch):
    monkeypatch.setattr(module, "NODES_SECONDS", 0.0)
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("a").answers = [WorkerDied("it went away", node_gone=known)]
    found = happened(fleet)
    if not known:
        assert found == [], "the cluster may need some seconds to notice"
        del backend.alive["a"]
        found = happened(fleet)
    assert [(lost.pack, lost.kind) for lost in found[:1]] == [(0, "machine")]
    fleet.kill(0)
    restart(fleet, 0)
    assert fleet.waits(0), "even if the cluster still lists the node"


def test_a_worker_that_dies_alone_counts_as_its_learner(backend, monkeypatch):
    monkeypatch.setattr(module, "DEATH_SECONDS", 0.0)
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("a").answers = [WorkerDied("out of memory")]
    [lost] = happened(fleet)
    assert lost.kind != "machine"
    assert "out of memory" in lost.text


def test_the_error_of_a_worker_is_that_of_its_learner(backend):
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("b").answers = [WorkerFailed("no such environment", user_error=True)]
    [lost] = happened(fleet)
    assert (lost.pack, lost.kind) == (1, "died")
    assert "no such environment" in lost.text


DEATH = [Heard(LearnerLost(0, "the learner was killed by SIGKILL"))]


def test_a_learner_that_dies_alone_is_lost_once_its_worker_has_answered_again(backend, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.nodes.remote_pack.HOLD_SECONDS", 0.05)
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("b").answers = [DEATH, DEATH]
    assert happened(fleet, 3) == []
    requests = len(backend.on("b").requests)
    time.sleep(0.06)
    [lost] = happened(fleet)
    assert lost == LearnerLost(1, "the learner was killed by SIGKILL")
    assert len(backend.on("b").requests) == requests + 1, "nothing was asked meanwhile"


def test_a_learner_that_dies_before_its_node_goes_with_it(backend, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.nodes.remote_pack.HOLD_SECONDS", 0.0)
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("b").answers = [DEATH, WorkerDied("its node has died", node_gone=True)]
    assert happened(fleet) == []
    [lost] = happened(fleet)
    assert (lost.pack, lost.kind) == (1, "machine")


def test_a_learner_that_hangs_or_cannot_begin_is_lost_at_once(backend):
    fleet = make_fleet(backend)
    happened(fleet)
    backend.on("b").answers = [[Heard(LearnerLost(0, "no such module", user_error=True))]]
    assert happened(fleet) == [LearnerLost(1, "no such module", user_error=True)]


def restart(fleet, pack):
    fleet.replace_learner(pack, Start([(None, None)] * 2, {"learning_rate": 0.1}))


def test_nothing_is_heard_of_a_killed_worker(backend):
    fleet = make_fleet(backend)
    happened(fleet)
    old = backend.on("a")
    old.answers = [[Heard(Received(0, LearnerReady())), Heard(Received(0, LearnerSaved(1, {})))]]
    seen = []
    for event in fleet.events(0.0):
        if isinstance(event, Received):
            seen.append(event)
            fleet.kill(0)  # while the rest of its answer is still to come
            fleet.send(0, PauseTraining())
            restart(fleet, 0)
    assert seen == [Received(0, LearnerReady())]
    assert old.ended
    new = backend.on("a")
    assert new is not old
    happened(fleet)
    assert (new.requests[0].setup.start.renewals, [request.number for request in new.requests]) == (1, [0])
    assert orders(new) == [], "what was sent before belongs to the old one"


def test_a_pack_goes_to_a_spare_node_else_waits_for_one(backend, monkeypatch):
    monkeypatch.setattr(module, "NODES_SECONDS", 0.0)
    fleet = make_fleet(backend)
    happened(fleet)
    del backend.alive["a"]
    lost = [event for event in fleet.events(0.0) if isinstance(event, LearnerLost)]
    assert lost[0].kind == "machine"
    fleet.kill(0)
    restart(fleet, 0)
    assert fleet.waits(0)
    assert not fleet.waits(1)
    fleet.send(0, PauseTraining())
    backend.alive["c"] = Node("c", 2.0, 0)
    notices = [event.text for _ in range(3) for event in fleet.events(0.0) if isinstance(event, Notice)]
    assert [re.findall(r"learner 0|\bc$", text) for text in notices] == [["learner 0"], ["learner 0", "c"]]
    assert not fleet.waits(0)
    assert orders(backend.on("c")) == [Send(PauseTraining())], "what was sent meanwhile is not lost"


def test_a_node_that_will_be_taken_away_is_announced_once_and_not_used_again(backend, monkeypatch):
    monkeypatch.setattr(module, "NODES_SECONDS", 0.0)
    fleet = make_fleet(backend)
    backend.alive["a"] = Node("a", 2.0, 0, leaving=True)
    found = [event for event in happened(fleet, 3) if isinstance(event, MachineLeaving)]
    assert [event.lost.pack for event in found] == [0]
    fleet.kill(0)
    restart(fleet, 0)
    assert fleet.waits(0)


def test_matchups_outlive_a_node(backend):
    fleet = make_fleet(backend)
    rows = np.zeros((1, 1, 1), np.int64)
    assert [fleet.set_matchup(0, rows), fleet.set_matchup(0, rows)] == [2, 3]
    fleet.kill(0)
    restart(fleet, 0)
    assert backend.on("a").requests[0].setup.matchups[0] is rows
