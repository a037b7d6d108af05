"""The account of a run: it finds the run's threads and steps, and what it says is lost explains what was reached."""

import importlib
import signal
import sys
import time
from dataclasses import replace

import psutil
import pytest

from tests.helpers.runs import ROOT, command_of

sys.path.insert(0, str(ROOT / "scripts"))
bench = importlib.import_module("bench")
accounting = importlib.import_module("bench_account")
beside = importlib.import_module("bench_beside")
sys.path.remove(str(ROOT / "scripts"))

ALONE = {"environment": 300.0, "inference": 140.0, "learning": 310.0}
KEEPER = ["python", "-I", "-S", "/x/procs/keeper.py", "7", "learner 0", "", "python", "-m"]
CHILD = ["python", "-P", "-m"]


def reading(at, steps, ran, waited, machine, idle, stolen=0.0, alive=(1,)):
    threads = [(part, 1) for part in accounting.PARTS]
    ran, waited = (dict(zip(threads, times, strict=True)) for times in (ran, waited))
    return accounting.Reading(at, steps, ran, waited, machine, idle, stolen, frozenset(alive))


BEFORE = reading(5.0, 1000, (10, 20, 30, 1), (0, 0, 0, 0), 100, 50)
AFTER = reading(15.0, 21_000, (17, 23.4, 36.6, 1.2), (5, 2, 1, 0), 118, 51.5, 0.5)


@pytest.fixture
def figures():
    return accounting.account(BEFORE, AFTER, 2)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"idle": 50 + 3.6}, r"\b2\.21 .*\b2\b"),
        ({"machine": 117.2, "idle": 50.0}, r"\b1\.77 "),
        ({"machine": 116.0, "idle": 49.0}, r"idle cores -0\.10"),
        ({"alive": frozenset({1, 2})}, "began"),
        ({"steps": 1000}, r"step .*\b10 s"),
    ],
)
def test_an_account_that_cannot_be_right_is_none(wrong, reason):
    with pytest.raises(RuntimeError, match=reason):
        accounting.account(BEFORE, replace(AFTER, **wrong), 2)


def test_a_machine_that_counts_less_than_its_threads_has_no_others():
    short = replace(AFTER, machine=116.7)  # 0.05 cores less than the threads had
    assert accounting.account(BEFORE, short, 2)["others cores"] == 0
    more = {thread: seconds + 0.75 for thread, seconds in AFTER.ran.items()}
    with pytest.raises(RuntimeError, match=r"\b2\.22 .*\b2\b"):
        accounting.account(BEFORE, replace(AFTER, ran=more), 2)


def test_all_cores_are_accounted_for(figures):
    cores = [value for name, value in figures.items() if name.endswith(" cores")]
    assert sum(cores) == pytest.approx(2)
    assert figures["others cores"] == pytest.approx((20 - 1.5 - 0.5 - 17.2) / 10)
    assert figures["environment microseconds"] == pytest.approx(7 / 20_000 * 1e6)
    assert figures["environment waiting for a core"] == pytest.approx(0.5)


def test_what_is_lost_explains_what_was_reached(figures):
    limit = 2 / sum(ALONE.values()) * 1e6
    shares = accounting.lost(figures, ALONE, 2)
    reached = figures["steps"] / figures["seconds"] / limit
    assert shares["achieved by the account"] == pytest.approx(reached)
    nothing_else = 1 - shares["idle"] - shares["supervisor, others, stolen"]
    assert nothing_else / (1 + shares["dearer than alone"]) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ([*CHILD, "pbt_rl.learner.learner", "5", "6"], "learner"),
        ([*CHILD, "pbt_rl.actors.actor", "5", "6"], "actor"),
        ([*KEEPER, "pbt_rl.learner.learner", "5", "6"], "other"),
        ([], "other"),
    ],
)
def test_a_keeper_is_not_taken_for_its_child(command, role):
    assert accounting.role_of(command) == role


@pytest.mark.long
def test_a_run_is_followed(monkeypatch):
    monkeypatch.chdir(ROOT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a script
    try:
        summary = bench.run_training("gym/CartPole-v1", 2, 4.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 4 <= summary["account"]["seconds"] < 8
    assert all(summary["account"][f"{stage} cores"] > 0.001 for stage in accounting.STAGES)
    start = summary["start"]
    assert 0 < start["seconds_to_first_update"] <= start["seconds_to_steady_rate"]
    assert start["frames_lost_until_then"] > 0


# -- stages beside each other -----------------------------------------------------------------------------------


STAND_IN = """
import sys, time
sys.path.insert(0, {scripts!r})
from bench_beside import go_sign
if "learning" in sys.argv:
    sys.exit("no memory")
go_sign()()
time.sleep(60)  # hears nothing
"""


def test_a_stage_that_fails_ends_the_others(tmp_path, monkeypatch):
    script = tmp_path / "stage.py"
    script.write_text(STAND_IN.format(scripts=str(ROOT / "scripts")))
    monkeypatch.setattr(beside, "BENCH", str(script))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"learning .*\nno memory"):
        beside.together("any", 1, 1.0, bench.DEFAULT, beside.shares(ALONE, 5))
    assert time.monotonic() - began < 50
    assert not [child for child in psutil.Process().children() if "--stage" in command_of(child)]
