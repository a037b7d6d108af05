"""Processes that die, hang or are interrupted: the run goes on or ends clearly, and nothing is left."""

import os
import signal
import time

import psutil
import pytest

from pbt_rl.report.audit import audit
from tests.helpers.disks import fill, small_disk
from tests.helpers.runs import BUSY, ENDLESS, PROGRESS, train

TIME_SLICES = pytest.param(("--slots=2", "--slot-frames=500"), marks=[pytest.mark.long])


@pytest.mark.parametrize("turns", [(), TIME_SLICES], ids=["all", "turns"])
def test_a_killed_actor_is_replaced_and_sigterm_ends_the_run_cleanly(tmp_path, turns):
    run = train(tmp_path, "toy/identity", *ENDLESS, *turns)
    run.wait_for(PROGRESS)
    victim, other = run.children("actor")
    victim.send_signal(signal.SIGKILL)
    restarted = run.wait_for("restarting actor 0: ")
    run.wait_for(PROGRESS, after=restarted)
    assert other in run.children("actor")
    assert len(run.children("actor")) == 2
    assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert run.err == ""
    assert run.summary["actors_restarted"] == 1
    assert run.summary["ended"] == "interrupted by SIGTERM"
    (event,) = run.events("actor_restart")
    assert event["actor"] == 0
    assert "SIGKILL" in event["cause"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("toy/crashing?steps=60", (), "RuntimeError: toy/crashing"),
        ("toy/hanging?steps=60", ("--actor-timeout-seconds", "5"), "no step"),
    ],
)
def test_an_environment_that_crashes_or_hangs_gets_a_new_actor(tmp_path, env, options, said):
    run = train(tmp_path, env, *ENDLESS, "--max-actor-restarts=1000", *options)
    seen = run.wait_for(said)
    seen = run.wait_for(PROGRESS, after=seen)
    seen = run.wait_for(said, after=seen)
    assert run.out.count("Traceback") <= 1, "shown whole once"
    assert run.end() == 128 + signal.SIGTERM
    assert run.summary["actors_restarted"] == len(run.events("actor_restart")) >= 2


def test_an_environment_that_cannot_be_used_ends_with_one_clear_error(tmp_path):
    run = train(tmp_path, "toy/nan", *ENDLESS)
    assert run.wait() == 2
    assert run.err.startswith("pbt-rl: toy/nan")
    assert "NaN" in run.err
    assert len(run.err.splitlines()) == 1


def test_a_full_disk_at_the_start_is_one_clear_error(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave=16384)  # enough for the config and the journal
        run = train(tmp_path, "toy/identity", "--mode=serial", "--num-policies=8", f"--out={disk}")
        assert run.wait() == 2
        assert len(run.err.splitlines()) == 1
        assert str(disk) in run.err
        assert "No space" in run.err
        assert [path.name for path in disk.iterdir()] == ["fill"]


def test_a_killed_learner_is_replaced(tmp_path):
    run = train(tmp_path, "toy/identity", *ENDLESS, "--save-every-seconds=1")
    run.wait_for_event("round", number=2)  # the members have trained between the two
    run.wait_for_event("checkpoint")
    (learner,) = run.children("learner")
    actors = run.children("actor")
    learner.send_signal(signal.SIGKILL)
    at = run.wait_for("learner 0 (cpu) was killed by SIGKILL")
    (event,) = run.events("pack_lost")
    assert [m["from"]["checkpoint"][:3] for m in event["members"]] == ["at_"] * 4
    run.wait_for(PROGRESS, after=at)
    assert not set(actors) & set(run.children("actor"))
    assert run.events("actor_restart") == []
    assert run.end() == 128 + signal.SIGTERM
    assert (run.summary["learners_replaced"], run.err) == (1, "")


@pytest.mark.slow
def test_a_learner_that_hangs_at_the_end_is_not_waited_for(tmp_path):
    run = train(tmp_path, "toy/identity", *ENDLESS, "--save-every-seconds=1", "--train-for-seconds=8")
    run.wait_for_event("checkpoint")
    (learner,) = run.children("learner")
    learner.send_signal(signal.SIGSTOP)
    assert run.wait() == 1
    assert "checkpoint at_" in run.err
    assert run.summary["ended"] == "seconds"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--mode=sync",), ("--devices=cpu,cpu",), TIME_SLICES],
    ids=["async", "sync", "packs", "turns"],
)
def test_a_learner_that_hangs_is_replaced_and_so_is_another(tmp_path, options):
    options = ("--save-every-seconds=1", "--learner-timeout-seconds=5", *options)
    run = train(tmp_path, "toy/identity", *ENDLESS, *options)
    at = run.wait_for(PROGRESS)
    run.wait_for_event("checkpoint")
    for number, stop in enumerate((signal.SIGSTOP, signal.SIGKILL), start=1):
        at = run.wait_for(PROGRESS, after=run.wait_for(PROGRESS, after=at))
        time.sleep(2.0)  # it has trained
        learner = run.children("learner")[-1]
        learner.send_signal(stop)
        at = run.wait_for("replacing it: members", after=at)
        assert not learner.is_running()
        assert len(run.events("pack_lost")) == number
    run.wait_for(PROGRESS, after=at)
    assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert [e["kind"] for e in run.events("pack_lost")] == ["hung", "died"]
    assert run.summary["learners_replaced"] == 2
    frames = [event["frames"] for event in run.journal]
    assert frames == sorted(frames), "the clock never steps back"
    assert audit(run.folder) == 0


@pytest.mark.long
def test_two_presses_of_ctrl_c_end_a_run_whose_processes_hang(tmp_path):
    run = train(tmp_path, "toy/identity", *ENDLESS)
    run.wait_for(PROGRESS)
    children = run.children("learner") + run.children("actor")
    for child in children:
        child.send_signal(signal.SIGSTOP)
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    assert run.end(signal.SIGINT) == 128 + signal.SIGINT
    assert time.monotonic() - began < 10, "5 s, and as much for a machine that is busy"
    assert not [child for child in children if child.is_running()]


def test_nobody_survives_a_killed_supervisor(tmp_path):
    run = train(tmp_path, "toy/identity", *ENDLESS, "--devices=cpu,cpu")
    run.wait_for(PROGRESS)
    children = run.children("actor") + run.children("learner")
    assert len(children) == 4
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


@pytest.mark.long
def test_ctrl_c_during_the_start_and_again(tmp_path):
    run = train(tmp_path, "toy/identity", *BUSY)
    run.wait_for("run folder: ")
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert run.end(signal.SIGINT) == 128 + signal.SIGINT
    assert run.err == ""
    assert run.summary["ended"] == "interrupted by SIGINT"
