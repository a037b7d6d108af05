"""The states that a node worker keeps for its learner, without a learner."""

import numpy as np
import pytest

from pbt_rl.actors.messages import Acknowledgement, Load
from pbt_rl.actors.state_pool import Counts, StatePool
from pbt_rl.run.fleet import Notice, Received
from pbt_rl.run.nodes.backend import Heard, Send, State
from pbt_rl.run.nodes.node_worker import NodeWorker
from tests.run.nodes.fakes import LAYOUT


class FakeFleet:
    """A fleet whose learner reads nothing yet."""

    def send(self, pack, message):
        pass


def acknowledged(member):
    return Received(0, Acknowledgement(member, 7, 1, 0.0, {}, {}, {}, donor_unchanged=True))


@pytest.fixture
def worker():
    worker = NodeWorker()
    worker._pool = StatePool(LAYOUT)
    yield worker
    worker.close()


def load(worker, member, entry):
    state = State({"param": np.full(3, 1 + entry, np.float32)}, Counts(5))
    worker._obey(FakeFleet(), Send(Load(member, member, 1, {}, entry, donor=7), state))


def kept(worker, entry):
    return worker._pool.read(entry)["param"].tolist()


def test_a_state_is_kept_until_every_copy_of_it_was_loaded(worker):
    for member in (0, 1):
        load(worker, member, 2)
    worker._heard(FakeFleet(), acknowledged(0))
    assert kept(worker, 2) == [3.0] * 3, "member 1 has not loaded it yet"
    worker._heard(FakeFleet(), acknowledged(1))
    assert kept(worker, 2) == [0.0] * 3, "its memory is free"


def test_warnings_of_environments_are_passed_on(worker):
    warning = Notice("warning: odd")
    assert worker._heard(FakeFleet(), warning) == Heard(warning)
