"""Serial mode: the same seed gives the same bits, with PBT at work, and with members that take turns."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.numpy import load_file

from pbt_rl.controllers.controllers import defaults
from pbt_rl.controllers.decisions import Stop
from pbt_rl.envs.toy import Identity
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.journal import read_journal
from pbt_rl.record.saved import Source
from pbt_rl.run.serial import SerialPack
from tests.helpers.serial import record, run, weights

SHAPED = {"env": "toy/shaped", "mode": "serial", "num-policies": 4, "actors": 2, "envs-per-vector-env": 2}
SHAPED |= {"learner.batch": 128, "pbt.period-frames": 500, "pbt.start-frames": 500, "pbt.min-episodes": 1}
SHAPED |= {"train-for-frames": 4000}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("serial")
    return [run(out, name, SHAPED, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6))]


def objectives(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return [(m["objective"], m["episodes"], m["hypers"], m["shaping"]) for m in summary["members"]]


@pytest.mark.parametrize("part", [weights, record, objectives])
def test_the_seed_decides_everything(runs, part):
    first, again, other = map(part, runs)
    assert first == again
    assert first != other


def test_members_were_replaced_meanwhile(runs):
    """Else the comparisons above say little."""
    events = record(runs[0])
    assert sum(event["event"] == "round" for event in events) >= 4
    assert any(event["event"] == "applied" and event["donor"] is not None for event in events)


def test_weights_are_finite_and_belong_to_the_best(runs):
    checkpoint = Checkpoints(runs[0] / "checkpoints").all()[-1]
    best = json.loads((runs[0] / "summary.json").read_text())["best_member"]
    assert checkpoint.state()["best_member"] == best
    tensors = load_file(checkpoint.file(best))
    assert tensors
    assert all((abs(t) < 1e6).all() for t in tensors.values())


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """Four members on two slots."""
    out = tmp_path_factory.mktemp("turns")
    return [run(out, name, SHAPED, seed=5, slots=2, slot_frames=300) for name in ("a", "b")]


@pytest.mark.long
@pytest.mark.parametrize("part", [weights, record, objectives])
def test_turns_are_decided_by_the_seed_too(turns, part):
    first, again = map(part, turns)
    assert first == again


def test_a_replacement_without_a_slot_has_no_duration(turns):
    events = read_journal(turns[0] / "journal.jsonl")
    copies = [e for e in events if e["event"] == "applied" and e["donor"] is not None]
    assert any(copy["parked"] for copy in copies)
    times = [copy["milliseconds"] for copy in copies if not copy["parked"]]
    summary = json.loads((turns[0] / "summary.json").read_text())
    assert summary["replacement_milliseconds"] == {"median": median(times), "max": max(times)}


@dataclass
class StopsTheSecond:
    """A controller that stops member 1 early, so that the second of two packs has no members any more."""

    table: dict
    seed: int
    _stopped: bool = field(default=False, init=False)

    def initial(self, num_members):
        return [defaults(self.table) for _ in range(num_members)]

    def observe(self, report):
        if self._stopped or report.frames < 100:
            return []
        self._stopped = True
        return [Stop(1, "enough")]

    def remembers(self):
        return frozenset()


def test_a_pack_without_members_holds_nobody_up(tmp_path):
    """Packs take turns: it has none of its own to end, and the run is saved and ends without it."""
    more = {"num-policies": 2, "devices": "cpu,cpu", "train-for-frames": 1000}
    folder = run(tmp_path, "x", SHAPED, controller=f"{__name__}:StopsTheSecond", **more)
    frames = [m["frames"] for m in json.loads((folder / "summary.json").read_text())["members"]]
    assert frames[0] >= 1000 > frames[1]
    assert Checkpoints(folder / "checkpoints").newest(print).frames == frames[0]


@contextlib.contextmanager
def _half():
    torch.set_default_dtype(torch.float16)
    try:
        yield
        assert torch.get_default_dtype() == torch.float16  # as the environment set it
    finally:
        torch.set_default_dtype(torch.float32)


MODES = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu"),
    lambda: torch.device("meta"),
    _half,
]


@pytest.mark.parametrize("mode", MODES)
def test_modes_and_defaults_of_torch_of_an_environment_are_not_the_learners(mode):
    with mode(), SerialPack.torch(None):
        x = torch.ones(2, 2, requires_grad=True)
        (x @ x).sum().backward()
        assert x.grad.dtype == (x @ x).dtype == torch.float32
        assert x.device.type == "cpu"


class Elsewhere(Identity):
    """It makes its own tensors on a device of its own."""

    def __init__(self):
        super().__init__(length=8)
        torch.set_default_device("meta")


def test_packs_are_made_whatever_device_the_environments_of_others_have_set(tmp_path):
    more = {"num_policies": 2, "devices": "cpu,cpu", "actors": 2, "train_for_frames": 400}
    try:
        folder = run(tmp_path, "x", SHAPED, env=f"{__name__}:Elsewhere", **more)
    finally:
        torch.set_default_device(None)
    members = json.loads((folder / "summary.json").read_text())["members"]
    assert [m["frames"] >= 400 for m in members] == [True, True]


class Wandering(Identity):
    """It goes to a folder of its own when it is made, and stays there."""

    def __init__(self):
        super().__init__(length=8)
        Path("own").mkdir(exist_ok=True)
        os.chdir("own")

    def step(self, action):
        assert Path.cwd().name == "own"
        return super().step(action)


def test_an_environment_that_changes_its_folder_takes_the_run_nowhere(tmp_path, monkeypatch):
    from pbt_rl.play.export.export_member import export_member

    monkeypatch.chdir(tmp_path)
    small = {"num_policies": 1, "actors": 1, "train_for_frames": 200}
    folder = run(Path("runs"), "x", SHAPED, env=f"{__name__}:Wandering", **small)
    files = export_member(Source(folder), "safetensors", episodes=1, trust=True)
    assert Path.cwd() == tmp_path
    assert Checkpoints(folder / "checkpoints").all()
    assert all(file.is_file() for file in [folder / "summary.json", *files])
