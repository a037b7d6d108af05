"""The check of a machine with a GPU: its stages here on the CPU, its verdict, and with a GPU the real thing."""

import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.helpers.pretend import DEVICE, PretendRecorder, pretend_device
from tests.helpers.runs import ROOT


@pytest.fixture(scope="module", autouse=True)
def scripts_on_path():
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


def stage(name: str, device: str = "cpu", env: str = "toy/memory", module: str = "gpu_stages", **job):
    stages, stands = importlib.import_module(module), importlib.import_module("gpu_stand")
    threads = torch.get_num_threads()
    try:
        given = {"seconds": 3.0, "policies": (2,), "limit": 0.0} | job
        return getattr(stages, name)(stands.Job(device=device, env=env, **given))
    finally:
        torch.set_num_threads(threads)


def test_every_stage_is_where_the_check_looks_for_it():
    rooms = [importlib.import_module(f"gpu_{name}") for name in ("stages", "runs", "recording")]
    for name in importlib.import_module("gpu_check").STAGES:
        assert [callable(getattr(room, name, None)) for room in rooms].count(True) == 1, name


@pytest.mark.parametrize("name", ["math", "answers", "races", "members"])
def test_a_stage_finds_the_cpu_right(name):
    assert stage(name)["passed"]


def test_other_weights_than_the_published_ones_are_found(monkeypatch):
    from pbt_rl.algos.pack import Pack

    act = Pack.act

    def half_published(self, obs, state, first):
        params, value, state = act(self, obs, state, first)
        return params + 0.1 * torch.rand(()), value, state

    monkeypatch.setattr(Pack, "act", half_published)
    found = stage("races", seconds=0.6)
    assert found["mixed"] > 0
    assert not found["passed"]


def test_an_answer_for_another_row_is_found(monkeypatch):
    from pbt_rl.algos.pack import Pack

    act = Pack.act

    def for_the_next_row(self, *step):
        params, value, state = act(self, *step)
        return params, value.roll(1, 1), state

    monkeypatch.setattr(Pack, "act", for_the_next_row)
    assert not stage("answers")["passed"]


def test_a_device_that_computes_something_else_is_found(monkeypatch):
    from pbt_rl.algos.serving import Serving

    publish, devices = Serving.publish, []

    def biased(self, slots, *, exchanged):
        publish(self, slots, exchanged=exchanged)
        if devices.count("made") > 1:  # the second of each pair
            self._weights.serving_heads += 0.01

    monkeypatch.setattr(Serving, "publish", biased)
    stands = importlib.import_module("gpu_stand")
    made = stands.Stand.__init__

    def note(self, *arguments, **options):
        devices.append("made")
        made(self, *arguments, **options)

    monkeypatch.setattr(stands.Stand, "__init__", note)
    assert not stage("math")["passed"]


def test_speed_is_measured_in_turns_and_steps():
    turns, steps = stage("turn"), stage("step")
    assert 0 < turns["1 units cpu ms"] <= turns["1 units ms"]
    assert turns["16 units ms"] > 0
    assert steps["packing"] == "vmap"
    assert 0 < steps["cpu ms"] <= steps["ms"] * 1.01
    assert steps["steps/s"] > 0


def check():
    return importlib.import_module("gpu_check")


def test_the_table_says_what_is_wrong_and_what_is_missed():
    right = {"math": {"passed": True}, "step": {"ms": 1.5}, "train": {"P8 share": 0.95, "P8 lag max": 12}}
    lines, good = check().table(right, compare=True)
    assert good
    assert [line.split()[-1] for line in lines if "policies" in line] == ["ok", "ok", "ok"]
    lines, good = check().table(right | {"step": {"ms": 2.5}}, compare=True)
    assert not good
    assert next(line for line in lines if line.endswith("MISSED")).split()[:2] == ["optimiser", "step,"]
    lines, good = check().table(right | {"races": {"passed": False, "error": "boom"}}, compare=False)
    assert not good
    assert any(line.split() == ["races", "WRONG"] for line in lines)
    assert any("boom" in line for line in lines)
    assert check().table({"step": {"ms": 2.5}}, compare=False)[1], "a CPU is not held to a GPU's limits"


def test_what_is_asked_of_graphs_holds_on_the_pretend_device_and_faults_are_found(monkeypatch):
    asked = importlib.import_module("gpu_recording")

    class Forgets(PretendRecorder):
        def record(self, program, generators=()):
            super().record(program, generators)
            return lambda: None

    class Trusts(PretendRecorder):
        def carry_out(self, program, *, watched):
            program()

        def record(self, program, generators=()):
            return program

    def with_recorder(kind, check):
        with pretend_device() as device:
            monkeypatch.setitem(asked.product.RECORDERS, DEVICE.type, lambda _: kind(device))
            return check(DEVICE)

    assert with_recorder(PretendRecorder, asked.replays_as_it_goes) == ""
    assert with_recorder(PretendRecorder, asked.refuses) == ""
    assert "the same numbers" in with_recorder(Forgets, asked.replays_as_it_goes)
    assert "was recorded" in with_recorder(Trusts, asked.refuses)
    assert asked.locks_again(torch.device("cpu")) == ""
    assert stage("recording", module="gpu_recording") == {"left out": "no GPU"}


def test_a_process_with_contexts_on_several_gpus_is_found(monkeypatch):
    runs = importlib.import_module("gpu_runs")
    monkeypatch.setenv("PATH", "/nowhere")
    assert runs._gpus_of_one_process() == 0, "no nvidia-smi"
    said = "11, GPU-a\n12, GPU-b\n12, GPU-a\n12, GPU-a\n[Insufficient Permissions]\n"
    monkeypatch.setattr(runs.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    assert runs._gpus_of_one_process() == 2


def test_a_stage_that_dies_is_a_result(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "nonsense:0"])
    found = check().in_process("races", {})
    assert found["passed"] is False
    assert "nonsense" in found["error"]
    json.dumps(found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["math", "races", "members"])
def test_a_stage_finds_the_gpu_right(name):
    assert stage(name, "cuda:0", "atari/pong")["passed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recording_is_right_on_the_gpu():
    """In a process of its own: it breaks a recording on purpose."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--only=recording"], check=False
    )
    assert found.returncode == 0
