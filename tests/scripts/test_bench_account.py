"""The account of a run: it finds the run's threads and steps, and what it says is lost explains what was reached."""

import importlib
import os
import subprocess
import sys
import time

import psutil
import pytest

from pbt_rl.envs.registry import EnvOptions, probe
from pbt_rl.wire.mailbox import BUSY_NS, STEPS, Mailbox
from tests.helpers.runs import ROOT, command_of

sys.path.insert(0, str(ROOT / "scripts"))
accounting = importlib.import_module("bench_account")
beside = importlib.import_module("bench_beside")
sys.path.remove(str(ROOT / "scripts"))

ALONE = {"environment": 300.0, "inference": 140.0, "learning": 310.0}
KEEPER = ["python", "-I", "-S", "/x/procs/keeper.py", "7", "learner 0", "", "python", "-m"]
CHILD = ["python", "-P", "-m"]
MANY = 10**15


def reading(at, steps, busy, parts, waited, machine, idle, stolen):
    names = accounting.PARTS
    return accounting.Reading(
        at,
        steps,
        busy,
        dict(zip(names, parts, strict=True)),
        dict(zip(names, waited, strict=True)),
        machine,
        idle,
        stolen,
    )


@pytest.fixture
def figures():
    before = reading(5.0, 1000, 1.0, (10, 20, 30, 1), (0, 0, 0, 0), 100, 50, 0)
    after = reading(15.0, 21_000, 7.4, (17, 23.4, 36.6, 1.2), (5, 2, 1, 0), 118, 51.5, 0.5)
    return accounting.account(before, after, 2)


def test_all_cores_are_accounted_for(figures):
    cores = [value for name, value in figures.items() if name.endswith(" cores")]
    assert sum(cores) == pytest.approx(2)
    assert figures["others cores"] == pytest.approx((20 - 1.5 - 0.5 - 17.2) / 10)
    assert figures["environment microseconds"] == pytest.approx(7 / 20_000 * 1e6)
    assert figures["units microseconds"] == pytest.approx(6.4 / 20_000 * 1e6)
    assert figures["environment waiting for a core"] == pytest.approx(0.5)


def test_what_is_lost_explains_what_was_reached(figures):
    limit = 2 / sum(ALONE.values()) * 1e6
    shares = accounting.lost(figures, ALONE, 2)
    reached = figures["steps"] / figures["seconds"] / limit
    assert shares["achieved by the account"] == pytest.approx(reached)
    nothing_else = 1 - shares["idle"] - shares["supervisor, others, stolen"]
    assert nothing_else / (1 + shares["dearer than alone"]) == pytest.approx(reached)


def test_the_table_names_every_part(figures):
    lines = accounting.table(figures, ALONE, {stage: 1.1 * cost for stage, cost in ALONE.items()}, 2)
    assert [line.split()[0] for line in lines[2:-1]] == [*accounting.PARTS, "others", "idle", "stolen"]
    assert "7.5% idle" in lines[-1]
    assert "+10.0% already without a run" in lines[-1]


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ([*CHILD, "pbt_rl.learner.learner", "5", "6"], "learner"),
        ([*CHILD, "pbt_rl.wire.actor", "5", "6"], "actor"),
        ([*KEEPER, "pbt_rl.learner.learner", "5", "6"], "other"),
        ([], "other"),
    ],
)
def test_a_keeper_is_not_taken_for_its_child(command, role):
    assert accounting.role_of(command) == role


def test_steps_are_read_from_the_mailboxes_that_a_process_holds():
    spec = probe("toy/identity", EnvOptions())
    boxes = [Mailbox.create(spec, 4, f"mailbox-0-{index}") for index in range(2)]
    copy = os.dup(boxes[0].fd)
    for number, box in enumerate(boxes, start=1):
        box.header[STEPS], box.header[BUSY_NS] = MANY + number, number
    headers = accounting._mailbox_headers(os.getpid())
    headers = [header for header in headers if header[STEPS] > MANY]  # other tests may have left theirs open
    assert sorted(int(header[STEPS]) - MANY for header in headers) == [1, 2], "each once"
    boxes[0].header[STEPS] += 7
    assert sorted(int(header[STEPS]) - MANY for header in headers) == [2, 8], "as they are now"
    del headers
    os.close(copy)
    for box in boxes:
        box.close()


@pytest.mark.long
def test_a_run_is_followed(tmp_path):
    command = ["--env", "toy/identity", "--num-policies", "2", "--train-for-frames", "1000000000"]
    command += ["--train-for-seconds", "6", "--out", str(tmp_path), "--name", "run"]
    words = [sys.executable, "-m", "pbt_rl", "train", *command]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT) as run:
        watch = accounting.Watch(run.pid)
        assert watch.wait_for_steps()
        roles = [role for _, role in watch._processes()]
        assert roles.count("learner") == 1
        assert roles.count("actor") >= 1
        assert roles.count("other") == 1 + roles.count("learner") + roles.count("actor"), "a keeper each"
        found = accounting.follow(run.pid, 4.0, len(os.sched_getaffinity(0)))
    assert run.returncode == 0
    assert found["steps"] > 100
    assert found["units microseconds"] > 0
    for stage in accounting.STAGES:
        assert found[f"{stage} cores"] > 0.01
    assert found["units microseconds"] < found["environment microseconds"]


def test_a_run_that_fails_gives_no_account():
    with subprocess.Popen([sys.executable, "-c", ""]) as run:
        assert accounting.follow(run.pid, 1.0, 2) == {}


# -- stages beside each other -----------------------------------------------------------------------------------


def test_processes_are_shared_by_cost():
    assert beside.shares(ALONE, 5) == {"environment": 2, "inference": 1, "learning": 2}
    assert beside.shares({"environment": 1.0, "inference": 1.0, "learning": 98.0}, 5) == {
        "environment": 1,
        "inference": 1,
        "learning": 3,
    }


STAND_IN = """
import sys, time
sys.path.insert(0, {scripts!r})
from bench_beside import go_sign
stage, begins = sys.argv[2], go_sign()
if stage == "learning":
    if {fails}:
        sys.exit("no memory")
    time.sleep(0.3)  # the last one to be ready
began = time.monotonic()
if stage == "inference" and {fails}:
    begins()
    time.sleep(60)  # hears nothing
while not begins():
    time.sleep(0.01)
waited = time.monotonic() - began
print(len(stage) if stage == "learning" or waited > 0.2 else -1, flush=True)
"""


def stand_in(tmp_path, monkeypatch, *, fails):
    script = tmp_path / "stage.py"
    script.write_text(STAND_IN.format(scripts=str(ROOT / "scripts"), fails=fails))
    monkeypatch.setattr(beside, "BENCH", str(script))
    return beside.measure_beside("any", 1, 1.0, ALONE, 2)


def test_stages_begin_together(tmp_path, monkeypatch):
    assert stand_in(tmp_path, monkeypatch, fails=False) == {
        "environment": 11.0,
        "inference": 9.0,
        "learning": 8.0,
    }, "none began before all were ready"


def test_a_stage_that_fails_ends_the_others(tmp_path, monkeypatch):
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="stage learning failed:\nno memory"):
        stand_in(tmp_path, monkeypatch, fails=True)
    assert time.monotonic() - began < 50
    assert not [child for child in psutil.Process().children() if "--stage" in command_of(child)]


def test_what_was_before_the_sign_does_not_count():
    asked, nanoseconds = [], [0]

    def begins():
        asked.append(0)
        return len(asked) > 5

    def step():
        nanoseconds[0] += 3000 if len(asked) > 5 else 10**9
        return 2

    assert beside.timed_cpu(step, 0.02, lambda: nanoseconds[0], begins) == pytest.approx(1.5)
    assert len(asked) == 6


def test_a_stage_ends_with_the_process_that_measures(monkeypatch):
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as ended:
        monkeypatch.setattr(sys, "stdin", ended)
        with pytest.raises(SystemExit):
            beside.go_sign()()
