"""The processes of whole runs: what environments print and close, what they leave, and where everyone stands."""

import os
import re
import signal
import time

import psutil
import pytest

from tests.helpers.runs import ENDLESS, PROGRESS, train

ENVIRONMENT = """
import subprocess
import sys
import time

import gymnasium
import numpy as np


class Talking(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    programs = 0

    def __init__(self, close="", programs=0):
        self.how, self.steps = close, 0
        self.own = "pbt_rl.actors.actor" in sys.orig_argv
        if self.own and Talking.programs < programs:
            Talking.programs += 1
            subprocess.Popen(["sleep", "4321"], start_new_session=True)
        print("made")

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, False, True, {}

    def close(self):
        print("closed", file=sys.stderr)
        if self.how == "raises" and self.steps:
            raise RuntimeError("no")
        if self.how == "hangs" and self.steps > 5:
            time.sleep(600)


gymnasium.register("Talking-v0", Talking)
"""
SMALL = ("--envs-per-vector-env=2", "--learner.minibatches=1")


@pytest.fixture
def talking(tmp_path):
    (tmp_path / "talking.py").write_text(ENVIRONMENT)
    return "gym/talking:Talking-v0"


def log(run, name):
    return (run.folder / "logs" / name).read_text()


@pytest.mark.long
def test_a_run_ends_what_its_environments_start_and_closes_them_and_says_where_it_stands(tmp_path, talking):
    run = train(tmp_path, talking, *ENDLESS, *SMALL, "--env-option=close=raises", "--env-option=programs=2")
    seen = run.wait_for(PROGRESS)

    actor, _ = run.children("actor")
    programs = actor.children()
    assert [p.cmdline() for p in programs] == [["sleep", "4321"]] * 2
    actor.kill()
    seen = run.wait_for("restarting actor 0: ", after=seen)
    assert not psutil.wait_procs(programs, timeout=0)[1], "gone before the successor starts"
    run.wait_for(PROGRESS, after=seen)

    stacks = stacks_of(run)
    assert 'supervisor.py", line' in stacks["supervisor"]
    assert 'learner.py", line' in stacks["learner_0"]
    assert 'trainer.py", line' in stacks["learner_0"]
    assert 'actor.py", line' in stacks["actor_1"]

    children = everyone(run, programs=4)
    assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert not psutil.wait_procs(children, timeout=0)[1]
    environments = 2 * 2 * 4  # vector envs, rows of a policy, policies
    for name, lives in (("actor_0.log", 2), ("actor_1.log", 1)):
        text = (run.folder / "logs" / name).read_text()
        assert len(re.findall(r"^--- actor \d, process \d+, ", text, flags=re.MULTILINE)) == lives
        assert text.count("made\n") == lives * environments
        assert text.count("closed\n") == environments, "the others too, if one raises"
        assert "RuntimeError: no" in text


def everyone(run, programs):
    """All processes of a run once environments have started so many programs."""
    deadline = time.monotonic() + 60
    while True:
        children = psutil.Process(run.process.pid).children(recursive=True)
        if sum(p.name() == "sleep" for p in children) == programs:
            return children
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def stacks_of(run):
    """What SIGUSR2 brings: process -> its stacks."""
    os.kill(run.process.pid, signal.SIGUSR2)
    deadline = time.monotonic() + 20
    while True:
        logs = {path.stem: path.read_text() for path in (run.folder / "logs").glob("*.log")}
        found = {"supervisor": run.err, **logs}
        if all("Thread 0x" in text or "Current thread 0x" in text for text in found.values()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.long
def test_an_environment_that_hangs_in_close_does_not_hold_up_the_end(tmp_path, talking):
    options = ("--num-policies=1", "--actors=1", "--train-for-frames=100", "--env-option=close=hangs")
    run = train(tmp_path, talking, *SMALL, *options, "--mode=serial")
    assert run.wait() == 0
    assert run.summary["ended"] == "frames"
    assert re.search(r"\bclose\(\) .*\b3 s", run.err)


SLOW_UPDATES = (
    "--num-policies=1",
    "--actors=1",
    "--model.hidden=2048",
    "--learner.batch=2048",
    "--learner.minibatches=1",
    "--learner.epochs=100",
)


def test_a_run_that_ends_within_an_update_ends_its_learner_without_an_abort(tmp_path):
    run = train(tmp_path, "toy/identity", *SLOW_UPDATES, "--train-for-seconds=4")
    assert run.wait() == 0
    assert run.summary["ended"] == "seconds"
    logs = [path.read_text() for path in (run.folder / "logs").glob("learner_*.log")]
    assert not [text for text in logs if "terminate called" in text or "Traceback" in text]
