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
    stages = {
        name if not name.startswith(check.TRAIN) else check.TRAIN for name in (*check.WORTH, *check.MORE)
    }
    for name in stages:
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


def test_the_limit_is_that_of_all_cores_at_once():
    found = stage("limit", seconds=1.0)
    assert found["steps/s"] == pytest.approx(found["cores"] * 1e6 / found["us a step"])


def test_speed_is_measured_in_turns_and_steps():
    turns, steps = stage("turn"), stage("step")
    assert 0 < turns["1 units cpu ms"] <= turns["1 units ms"]
    assert turns["16 units ms"] > 0
    assert steps["packing"] == "vmap"
    assert 0 < steps["cpu ms"] <= steps["ms"] * 1.01
    assert steps["steps/s"] > 0
    assert steps["said"] == "", "a CPU has no choice"


def check():
    return importlib.import_module("gpu_check")


RIGHT = {
    "machine": {"torch": "2.13", "card": "NVIDIA H100 80GB HBM3", "cores": 16},
    "math": {"passed": True},
    "step": {"ms": 1.5, "cpu ms": 0.1, "steps/s": 130_000, "first batch s": 5, "said": "bmm 1 ms, loop 2 ms"},
    "train8": {"share": 0.5},
}
ASKED = ("math", "step")
SLOW = RIGHT | {"step": RIGHT["step"] | {"ms": 2.5}}


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


@pytest.mark.parametrize(
    ("machine", "slow", "short"),
    [
        ({"card": "NVIDIA H200", "cores": 16}, False, False),
        ({"card": "NVIDIA H200", "cores": 8}, True, False),
        ({"card": "NVIDIA GeForce RTX 4090", "cores": 16}, True, False),
        ({"cores": 16}, True, True),
    ],
)
def test_milliseconds_are_compared_on_machines_of_their_class_and_shares_on_every_gpu(machine, slow, short):
    here = SLOW | {"machine": machine}
    assert check().table(here, ASKED)[1] is slow
    assert check().table(here, ("train8",))[1] is short


def test_no_time_is_no_failure_and_neither_is_what_a_machine_lacks():
    asked = (*ASKED, "races", "turn", "two")
    results = RIGHT | {"two": {"left out": "one GPU"}, "turn": {"no time": True}}
    lines, good = check().table(results, asked)
    assert good
    verdicts = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert "no time" in verdicts["races"]
    assert "left out  (one GPU)" in verdicts["two"]
    late = results | {"step": {"passed": False, "error": "took longer than 9 s"}}
    assert not check().table(late, asked)[1]
    found = check().report(late, asked)
    assert found["verdicts"] == {
        "math": "right",
        "step": "WRONG",
        "races": "no time",
        "turn": "no time",
        "two": "left out",
    }
    figure = found["figures"]["optimiser step, 8 policies: ms"]
    assert figure == {"here": None, "accept": 2.0, "stretch": 1.0, "ok": False}
    line = check().last_line(late, asked)
    assert line.startswith(
        "gpu_check: torch 2.13, NVIDIA H100 80GB HBM3, 16 cores: step WRONG; races no time; "
    )
    assert "\n" not in line
    assert check().last_line(RIGHT, ASKED).endswith("16 cores: all is right")


def test_eight_policies_train_first_and_quick_leaves_the_rest_out():
    every, quick = check().planned("8,1,40,16", quick=False), check().planned("8,1,40,16", quick=True)
    assert every[:3] == ("facts", "limit", "train8")
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
    found = importlib.import_module("gpu_stages").counted(events)
    assert found == {"kernels": 1, "copies": 1, "syncs": 1, "device ms": 0.02}


def test_what_is_asked_of_graphs_holds_on_the_pretend_device_and_faults_are_found(monkeypatch):
    asked = importlib.import_module("gpu_check")

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


def test_a_process_with_contexts_on_several_gpus_is_found(monkeypatch):
    runs = importlib.import_module("gpu_check")
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
    monkeypatch.setattr(check(), "LEAST_SECONDS", 0.0)
    monkeypatch.setitem(check().MOST_SECONDS, "facts", 0.1)  # less than its imports take
    assert check().main() == 1
    assert json.loads(kept.read_text())["verdicts"] == {"facts": "WRONG", "turn": "right"}
    assert capsys.readouterr().out.splitlines()[-1].endswith("facts WRONG")


def test_a_bundle_holds_the_tree_as_it_stands(tmp_path):
    root, target = tmp_path / "root", tmp_path / "tree"
    root.mkdir()
    for name in ("kept.py", "gone.py", ".gitignore"):
        (root / name).write_text("*.log\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "kept.py").write_text("mended")
    (root / "gone.py").unlink()
    (root / "new").mkdir()
    (root / "new/part.py").write_text("new")
    (root / "link").symlink_to("new")
    (root / "a.log").write_text("ignored")
    importlib.import_module("gpu_bundle").copy_tree(root, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {"kept.py", ".gitignore", "new", "new/part.py", "link"}
    assert (target / "kept.py").read_text() == "mended"
    assert (target / "link").is_symlink()


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
