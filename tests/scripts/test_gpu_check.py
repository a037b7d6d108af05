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
    check = importlib.import_module("gpu_check")
    stages = {
        name if not name.startswith(check.TRAIN) else check.TRAIN for name in (*check.WORTH, *check.MORE)
    }
    for name in stages:
        assert [callable(getattr(room, name, None)) for room in rooms].count(True) == 1, name


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


RIGHT = {
    "facts": {"torch": "2.13", "card": "H100", "cores": 16},
    "math": {"passed": True},
    "step": {"ms": 1.5, "cpu ms": 0.1, "steps/s": 130_000, "first batch s": 5},
}


def test_the_table_says_what_is_wrong_and_what_is_missed():
    asked = tuple(RIGHT)
    lines, good = check().table(RIGHT, asked, compare=True)
    assert good
    assert sum(line.endswith("ok") for line in lines) == 4
    lines, good = check().table(RIGHT | {"step": RIGHT["step"] | {"ms": 2.5}}, asked, compare=True)
    assert not good
    assert next(line for line in lines if line.endswith("MISSED")).split()[:2] == ["optimiser", "step,"]
    wrong = RIGHT | {"math": {"passed": False, "error": "boom"}}
    lines, good = check().table(wrong, asked, compare=False)
    assert not good
    assert any(line.split() == ["math", "WRONG"] for line in lines)
    assert any("boom" in line for line in lines)
    slow = RIGHT | {"step": RIGHT["step"] | {"ms": 2.5}}
    assert check().table(slow, asked, compare=False)[1], "a CPU is not held to a GPU's limits"


def test_what_was_not_measured_is_missed_and_what_a_machine_lacks_is_left_out():
    asked = (*RIGHT, "races", "two")
    results = RIGHT | {
        "two": {"left out": "one GPU"},
        "step": {"passed": False, "error": "took longer than 9 s"},
    }
    lines, good = check().table(results, asked, compare=True)
    assert not good
    verdicts = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert "MISSED" in verdicts["races"]
    assert "left out  (one GPU)" in verdicts["two"]
    assert verdicts["optimiser"].split()[-1] == "MISSED"
    found = check().report(results, asked, compare=True)
    assert found["verdicts"] == {
        "facts": "right",
        "math": "right",
        "step": "WRONG",
        "races": "MISSED",
        "two": "left out",
    }
    figure = found["figures"]["optimiser step, 8 policies: ms"]
    assert figure == {"here": None, "accept": 2.0, "stretch": 1.0, "ok": False}
    line = check().last_line(results, asked, compare=True)
    assert line.startswith("gpu_check: torch 2.13, H100, 16 cores: step WRONG; races MISSED; ")
    assert "\n" not in line
    assert check().last_line(RIGHT, tuple(RIGHT), compare=True).endswith("all is right and fast enough")


def test_eight_policies_train_first_and_quick_leaves_the_rest_out():
    every, quick = check().planned("8,1,40,16", quick=False), check().planned("8,1,40,16", quick=True)
    assert every.index("train8") < every.index("train1") < every.index("train40")
    assert quick == check().WORTH
    assert "train2" in check().planned("2", quick=False)
    assert not any(stage in check().planned("2", quick=False) for stage in ("train8", "train1"))


def test_the_profilers_own_waits_are_no_kernels():
    def event(name, kind):
        return SimpleNamespace(name=name, device_type=SimpleNamespace(name=kind), device_time=10.0)

    events = [
        event("gemm", "CUDA"),
        event("Memcpy HtoD", "CUDA"),
        event("Context Sync", "CUDA"),
        event("cudaDeviceSynchronize", "CPU"),
    ]
    found = importlib.import_module("gpu_stand").counted(events)
    assert found == {"kernels": 1, "copies": 1, "syncs": 1, "device ms": 0.02}


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


@pytest.mark.parametrize("slow", ["answers", "replays", "math", "races", "limit", "train8"])
def test_a_slow_stage_leaves_the_next_ones_their_time(slow):
    left, given = 240.0, {}
    stages = check().planned("8", quick=True)
    for stage in stages:
        given[stage] = check().seconds_of(stage, stages, left, 30.0)
        usual = check().RESERVED_SECONDS.get(stage, 45.0 if stage == "train8" else 5.0)
        left -= given[stage] if stage == slow else usual
    assert all(given[stage] >= check().RESERVED_SECONDS.get(stage, 0.0) for stage in stages)
    assert given["train8"] >= 45.0
    assert left >= 0


@pytest.mark.long
def test_a_stage_that_takes_too_long_costs_itself_alone(monkeypatch, capsys, tmp_path):
    kept = tmp_path / "found.json"
    words = ["--device=cpu", "--env=toy/identity", "--only=facts,turn", "--minutes=3", f"--json={kept}"]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *words])
    monkeypatch.setenv("GPU_CHECK_SLOW", "facts")
    monkeypatch.setitem(check().MOST_SECONDS, "facts", 12.0)
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
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--only=recording"], check=False
    )
    assert found.returncode == 0
