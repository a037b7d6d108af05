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
    stages, jobs = importlib.import_module(module), importlib.import_module("gpu_stages")
    threads = torch.get_num_threads()
    try:
        given = {"seconds": 3.0, "policies": (2,), "limit": 0.0} | job
        return getattr(stages, name)(jobs.Job(device=device, env=env, **given))
    finally:
        torch.set_num_threads(threads)


def test_every_stage_is_where_the_check_looks_for_it():
    check, stages_alone = importlib.import_module("gpu_check"), importlib.import_module("gpu_stages")
    trained = [name for name in (*check.WORTH, *check.MORE) if name.startswith(check.TRAIN)]
    for name in {*check.WORTH, *check.MORE, check.TRAIN} - {*trained}:
        assert callable(getattr(check, name, None)) != callable(getattr(stages_alone, name, None)), name


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("math", "replays")]


@pytest.mark.parametrize("name", ["answers", "races", "members", *LONG])
def test_a_stage_finds_the_cpu_right(name):
    assert stage(name)["passed"]


def test_other_weights_than_the_published_ones_are_found(monkeypatch):
    from pbt_rl.algos.pack import Pack

    act = Pack.act

    def half_published(self, *step):
        params, value, state = act(self, *step)
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
    from pbt_rl.algos.weights import Serving

    publish, devices = Serving.publish, []

    def biased(self, slots, *, exchanged):
        publish(self, slots, exchanged=exchanged)
        if devices.count("made") > 1:  # the second of each pair
            self._weights.serving_heads += 0.01

    monkeypatch.setattr(Serving, "publish", biased)
    stands = importlib.import_module("gpu_stages")
    made = stands.Stand.__init__

    def note(self, *arguments, **options):
        devices.append("made")
        made(self, *arguments, **options)

    monkeypatch.setattr(stands.Stand, "__init__", note)
    assert not stage("math")["passed"]


def test_a_profile_is_counted_and_says_what_took_longest():
    def event(name, milliseconds=0.0, device="CUDA"):
        kind = SimpleNamespace(name=device)
        return SimpleNamespace(name=name, device_time=milliseconds * 1e3, device_type=kind)

    events = [event("gemm", 2.0), event("relu", 3.0), event("gemm", 2.0), event("Memcpy HtoD", 0.5)]
    events += [event("Context Sync", 9.0), event("cudaStreamSynchronize", device="CPU")]
    timing = importlib.import_module("gpu_timing")
    assert timing.counted(events) == {"kernels": 3, "copies": 1, "syncs": 1, "device ms": 7.5}
    assert timing.longest(events)[:2] == ["4.000 ms in 2: gemm", "3.000 ms in 1: relu"]


def check():
    return importlib.import_module("gpu_check")


RIGHT = {
    "machine": {"torch": "2.13", "card": "NVIDIA H100 80GB HBM3", "cores": 16},
    "math": {"passed": True},
    "step": {"ms": 1.5, "cpu ms": 0.1, "steps/s": 130_000, "first batch s": 5, "said": "bmm 1 ms, loop 2 ms"},
    "train8": {"share": 0.5},
}
ASKED = ("math", "step")
SLOW = RIGHT | {"step": RIGHT["step"] | {"ms": 7.5}}


def test_the_table_says_what_is_wrong_what_is_missed_and_what_learners_said():
    lines, good = check().table(RIGHT, ASKED)
    assert good
    assert sum(line.endswith("ok") for line in lines) == 4
    assert lines[-1].split(maxsplit=1) == ["step", "bmm 1 ms, loop 2 ms"]
    lines, good = check().table(SLOW, ASKED)
    assert not good
    assert next(line for line in lines if line.endswith("MISSED")).split()[:2] == ["optimiser", "step,"]
    lines, good = check().table(RIGHT | {"math": {"passed": False, "error": "boom"}}, ASKED)
    assert not good
    assert any(line.split() == ["math", "WRONG"] for line in lines)
    assert any("boom" in line for line in lines)


def test_what_is_asked_of_graphs_holds_on_the_pretend_device_and_faults_are_found(monkeypatch):
    asked = check()

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
    assert stage("recording", module="gpu_check") == {"left out": "no GPU"}


def test_a_stage_that_dies_is_a_result(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "nonsense:0"])
    found = check().in_process("races", {})
    assert found["passed"] is False
    assert "nonsense" in found["error"]
    json.dumps(found)


@pytest.mark.long
def test_a_stage_that_takes_too_long_costs_itself_alone(monkeypatch, capsys, tmp_path):
    kept = tmp_path / "found.json"
    words = ["--device=cpu", "--env=toy/identity", "--only=facts,turn", "--minutes=3", f"--json={kept}"]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *words])
    monkeypatch.setattr(check(), "LEAST_SECONDS", 0.0)
    monkeypatch.setitem(check().MOST_SECONDS, "facts", 0.1)  # less than its imports take
    assert check().main() == 1
    assert json.loads(kept.read_text())["verdicts"] == {"facts": "WRONG", "turn": "right"}
    assert capsys.readouterr().out.splitlines()[-1].endswith("facts WRONG")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["math", "replays", "answers", "races", "members", "leak"])
def test_a_stage_finds_the_gpu_right(name):
    assert stage(name, "cuda:0", "atari/pong")["passed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recording_is_right_on_the_gpu():
    """In a process of its own: it breaks a recording on purpose."""
    command = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--only=recording"]
    assert subprocess.run(command, check=False).returncode == 0
