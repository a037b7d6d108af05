"""By which packing policies are computed: the trial, and encoders of users' own under `auto`."""

import dataclasses
import os
import re
import subprocess
import sys
from multiprocessing import Pipe
from types import ModuleType

import pytest
import torch
from torch import nn

from pbt_rl.actors.messages import LearnerReady
from pbt_rl.learner.cuda import acceleration, trial
from tests.helpers.driven import FRAMES, DrivenLearner
from tests.helpers.pretend import DEVICE, pretend_device
from tests.helpers.runs import ROOT


class Drop(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.linear, self.drop = nn.Linear(*shapes["obs"][0], 16), nn.Dropout(0.1)

    def forward(self, obs):
        return self.drop(torch.relu(self.linear(obs["obs"])))


class Gru(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)

    def forward(self, obs):
        return self.gru(obs["obs"].unsqueeze(-1))[1][0]


class Branch(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.linear = nn.Linear(*shapes["obs"][0], 16)

    def forward(self, obs):
        h = self.linear(obs["obs"])
        return h if h.abs().max() < 100 else h / h.abs().max()


SHORT = {"rollout": 2, "unroll": 2, "batch": 16, "minibatches": 1}
OWN = (Drop, Gru, Branch)


@pytest.fixture
def own_module(monkeypatch):
    module = ModuleType("encoders_of_a_user")
    for one in OWN:
        setattr(module, one.__name__, one)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("device", ["cpu", str(DEVICE)])
@pytest.mark.parametrize("encoder", [one.__name__ for one in OWN])
def test_encoders_of_users_train_under_auto(own_module, encoder, device):
    if encoder == "Gru" and device != "cpu":
        pytest.skip("beside a CPU torch computes nn.GRU by a kernel that the pretend device does not have")
    with pretend_device(), DrivenLearner(device=device, encoder=f"{own_module}:{encoder}", **SHORT) as driven:
        pack = driven.learner.pack
        assert pack.packing == "loop"
        before = pack.state["param"].cpu().clone()
        driven.batches(1)
        after = pack.state["param"].cpu()
        assert after.isfinite().all()
        assert (after != before).any(1).all(), "every policy has learned"


def ready_note(driven) -> str:
    message = driven.ours.recv()
    assert isinstance(message, LearnerReady)
    return message.note


def test_the_fastest_of_several_packings_is_taken_and_named(monkeypatch):
    tried, networks = [], []

    def seconds(compute, device):
        assert device == DEVICE
        assert compute().isfinite()
        tried.append(compute)
        return [3e-3, 5e-3, 4e-3, 6e-3, 2e-3, 5e-3, 4e-3, 3e-3][len(tried) - 1]

    drawn = trial.build_net
    monkeypatch.setattr(trial, "_seconds", seconds)
    monkeypatch.setattr(trial, "build_net", lambda *given: networks.append(None) or drawn(*given))
    with pretend_device(), DrivenLearner(device=str(DEVICE), obs=FRAMES, packing="auto") as driven:
        assert len(tried) == 8
        assert len(networks) == 1, "drawn once, and copied"
        assert driven.learner.pack.packing == "vmap", "turns count: loop alone learns in half the time"
        # two steps, and six turns of a vector env
        note = ready_note(driven)
        assert re.findall(r"\S+ \S+ ms", note) == [
            "bmm 36.0 ms",
            "streams 44.0 ms",
            "loop 34.0 ms",
            "vmap 26.0 ms",
        ]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_what_fails_is_not_taken(monkeypatch, error):
    tried = []

    def seconds(_compute, _device):
        tried.append(None)
        if len(tried) not in (3, 4):
            raise error("too large\nmore")
        return 1e-3

    monkeypatch.setattr(trial, "_seconds", seconds)
    with pretend_device(), DrivenLearner(device=str(DEVICE), obs=FRAMES, packing="auto") as driven:
        assert driven.learner.pack.packing == "loop"
        note = ready_note(driven)
        assert note.count("too large") == 3
        assert "loop 8.0 ms" in note


def test_a_packing_that_cannot_be_built_is_not_taken(monkeypatch):
    build = trial.build_pack

    def build_pack(*given, packing, **more):
        if packing == "bmm":
            raise torch.OutOfMemoryError("too large")
        return build(*given, packing=packing, **more)

    monkeypatch.setattr(trial, "build_pack", build_pack)
    monkeypatch.setattr(trial, "_seconds", lambda *_: 1e-3)
    with pretend_device(), DrivenLearner(device=str(DEVICE), obs=FRAMES, packing="auto") as driven:
        assert driven.learner.pack.packing != "bmm"
        assert "bmm failed: too large" in ready_note(driven)


@pytest.mark.parametrize(
    "options", [{"packing": "bmm"}, {"mode": "serial"}, {"num_policies": 1, "packing": "loop"}]
)
def test_nothing_is_tried_where_nothing_is_to_choose(monkeypatch, options):
    monkeypatch.setattr(trial, "_seconds", None)
    with pretend_device(), DrivenLearner(device=str(DEVICE), obs=FRAMES, **options) as driven:
        assert " ms" not in ready_note(driven)


class AgainError(Exception):
    """The process would begin again, with this setup."""


def again(setup, _connection_fd):
    raise AgainError(setup)


def test_a_candidate_whose_recording_breaks_ends_the_trial_and_is_left_out_of_the_next(monkeypatch):
    state = {"broken": False}
    tried = []

    def seconds(compute, _device):
        tried.append(compute)
        if len(tried) == 1:
            state["broken"] = True
            raise RuntimeError("operation failed due to a previous error during capture")
        return 1e-3

    monkeypatch.setattr(trial, "_seconds", seconds)
    monkeypatch.setattr(trial, "broken", lambda: state["broken"])
    monkeypatch.setattr(acceleration, "begin_again", again)
    with pretend_device():
        with pytest.raises(AgainError) as raised:
            DrivenLearner(device=str(DEVICE), obs=FRAMES, packing="auto")
        (setup,) = raised.value.args
        assert setup.without == ("bmm",)
        state["broken"] = False
        with DrivenLearner(device=str(DEVICE), obs=FRAMES, packing="auto", without=setup.without) as driven:
            assert driven.learner.pack.packing != "bmm"
            assert "bmm " in ready_note(driven)


AGAIN = """
import os
import sys
from pbt_rl.learner.cuda.trial import begin_again
from multiprocessing.connection import Connection

first = Connection(int(sys.argv[1]))
said = first.recv()
if said.connection_fd >= 0:
    Connection(said.connection_fd).send((os.getpid(), said))
else:
    begin_again(said, first.fileno())
"""


@pytest.mark.parametrize("text", [(), ("runs/x: learner 0",)], ids=["plain", "text"])
def test_a_learner_that_begins_again_is_the_same_process_with_the_same_connection(tmp_path, text):
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    with DrivenLearner() as driven:
        setup = dataclasses.replace(driven.learner._setup, without=("bmm",))
        ours, theirs = Pipe()
        with subprocess.Popen(
            [sys.executable, str(program), str(theirs.fileno()), *text],
            pass_fds=[theirs.fileno(), *setup.fds],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        ) as child:
            theirs.close()
            ours.send(setup)
            if not ours.poll(60):
                child.kill()
            pid, given = ours.recv()
        assert pid == child.pid
        assert given.without == ("bmm",)
        assert given.plan == setup.plan
