"""Environments that end their process are tried in a fork and reported."""

import gc
import os
import signal
import sys

import psutil
import pytest

from pbt_rl.envs import first_trial, time_limits
from pbt_rl.envs.first_trial import environment_traceback, tried
from pbt_rl.envs.lookup import EnvOptions, probe, recipe
from pbt_rl.errors import EnvSetupError
from tests.helpers.runs import start
from tests.helpers.waiting import wait_until

MODULE = """
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
from gymnasium.spaces import Box, Discrete


class Env(gymnasium.Env):
    observation_space, action_space = Box(0, 1, (3,)), Discrete(2)

    def __init__(self, fault="", at=0):
        with Path("made.txt").open("a") as file:
            file.write("made\\n")
        print("loading the level", fault)
        self.fault, self.at, self.steps = fault, at, 0
        if not at:
            self.fail()

    def fail(self):
        if self.fault == "sys.exit":
            sys.exit(3)
        if self.fault == "_exit":
            os._exit(0)
        if self.fault == "crash":
            ctypes.string_at(0)
        if self.fault == "raise":
            raise RuntimeError("no display")
        if self.fault == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(3600)
        if self.fault == "spam":
            while True:
                print("again and again")
        if self.fault.startswith("server"):
            own_session = "detached" in self.fault
            server = subprocess.Popen(["sleep", "3600"], start_new_session=own_session)
            Path("server.txt").write_text(str(server.pid))
            if "hang" in self.fault:
                time.sleep(3600)
        if self.fault == "large":
            self.observation_space = gymnasium.spaces.Dict({f"obs{i}": Box(0, 1, (3,)) for i in range(5000)})

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            self.fail()
        return self.observation_space.sample() * 0, 0.0, False, self.steps % 9 == 0, {}
"""


SIMULATOR = """
import time

from pbt_rl.envs.lookup import DEFAULTS, make_simulator


def make(rows, device, seconds):
    time.sleep(seconds)
    return make_simulator("tensors/pendulum", rows, 0, device, DEFAULTS)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "trial_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trial_of_a_test", raising=False)
    return tmp_path


def fault(name):
    return EnvOptions(keywords={"fault": name})


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("sys.exit", r"sys\.exit .*\nTraceback(.|\n)*SystemExit: 3"),
        ("_exit", "code 0 "),
        ("crash", "SIGSEGV"),
    ],
)
def test_an_end_of_the_process_is_an_error_with_what_was_printed_last(name, how):
    with pytest.raises(EnvSetupError, match=f"^trial_of_a_test:Env .*{how}") as caught:
        probe("trial_of_a_test:Env", fault(name))
    assert f"\nloading the level {name}" in str(caught.value)
    assert first_trial.__file__ not in str(caught.value), "of the stack only the environment's frames"
    if name == "crash":
        assert 'trial_of_a_test.py", line' in str(caught.value)


def test_what_it_raises_and_prints_is_shown_as_before(capfd):
    with pytest.raises(EnvSetupError) as caught:
        probe("trial_of_a_test:Env", fault("raise"))
    first, second, *_, last = str(caught.value).splitlines()
    assert first.startswith("trial_of_a_test:Env ")
    assert "RuntimeError" in first
    assert (second.split()[0], last) == ("Traceback", "RuntimeError: no display")
    assert capfd.readouterr().err == "loading the level raise\n"


@pytest.mark.parametrize("name", ["hang", "spam"])
def test_a_hang_is_bounded_also_where_no_signal_arrives(monkeypatch, name):
    monkeypatch.setattr(time_limits, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(time_limits, "GRACE_SECONDS", 0.2)
    with pytest.raises(EnvSetupError, match=r"trial_of_a_test:Env hangs: .*\b0\.3 s"):
        probe("trial_of_a_test:Env", fault(name))
    assert not psutil.Process().children()


@pytest.mark.parametrize("seconds", [2.5, 3600])
def test_a_simulator_on_a_device_has_a_longer_limit(folder, monkeypatch, seconds):
    (folder / "trial_of_a_simulator.py").write_text(SIMULATOR)
    monkeypatch.delitem(sys.modules, "trial_of_a_simulator", raising=False)
    monkeypatch.setattr(time_limits, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(time_limits, "LONG_SECONDS", 2.0 if seconds > 10 else 60.0)
    monkeypatch.setattr(time_limits, "GRACE_SECONDS", 0.2)
    options = EnvOptions(keywords={"seconds": seconds})
    if seconds > 10:
        with pytest.raises(EnvSetupError, match=r"hangs: .*\b2 s"):
            probe("trial_of_a_simulator:make", options)
    else:
        assert probe("trial_of_a_simulator:make", options).simulator
    assert not psutil.Process().children()


@pytest.mark.parametrize("name", ["server", "server, detached", "server, detached, hang"])
def test_the_copy_leaves_no_process_behind(folder, monkeypatch, name):
    monkeypatch.setattr(time_limits, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(time_limits, "GRACE_SECONDS", 0.2)
    if "hang" in name:
        with pytest.raises(EnvSetupError, match="hangs"):
            probe("trial_of_a_test:Env", fault(name))
    else:
        assert probe("trial_of_a_test:Env", fault(name)).action.nvec == (2,)
    assert not psutil.pid_exists(int((folder / "server.txt").read_text()))


def test_the_death_of_this_process_ends_the_copy_and_what_it_started(folder):
    run = start(
        folder, "train", "--env", "trial_of_a_test:Env", "--env-option", "fault=server, detached, hang"
    )
    assert wait_until(lambda: (folder / "server.txt").exists() and (folder / "server.txt").read_text())
    os.kill(run.process.pid, signal.SIGKILL)
    server = int((folder / "server.txt").read_text())
    assert wait_until(lambda: not psutil.pid_exists(server))


def test_this_process_makes_nothing_and_a_long_description_arrives_whole():
    assert len(probe("trial_of_a_test:Env", fault("large")).obs) == 5000
    assert "trial_of_a_test" not in sys.modules


def test_recipe_and_spec_of_a_run_follow_from_one_trial(folder, monkeypatch):
    def made():
        return (folder / "made.txt").read_text().count("made")

    recipe("trial_of_a_test:Env", fault("")), probe("trial_of_a_test:Env", fault(""))
    assert made() == 1
    probe("trial_of_a_test:Env", fault(""))
    assert made() == 2, "the environment may have been changed since"
    recipe("trial_of_a_test:Env", fault(""))
    assert len(probe("trial_of_a_test:Env", fault("large")).obs) == 5000, "another one"
    recipe("trial_of_a_test:Env", fault(""))
    monkeypatch.syspath_prepend(folder / "elsewhere")
    probe("trial_of_a_test:Env", fault(""))
    assert made() == 6, "the same name may be another one there"


@pytest.mark.parametrize("threads", ["jax", "tensorflow"])
def test_a_process_with_threads_of_others_is_not_copied(monkeypatch, threads):
    monkeypatch.setitem(sys.modules, threads, None)
    assert tried("x", os.getpid, None) == os.getpid()
    monkeypatch.delitem(sys.modules, threads)
    assert tried("x", os.getpid, None) != os.getpid()


def test_a_check_ends_with_one_error(folder):
    options = ("--env-option", "fault=crash", "--env-option", "at=100")
    run = start(folder, "envs", "check", "trial_of_a_test:Env", *options)
    assert run.wait() == 2
    (error,) = [line for line in run.err.splitlines() if line.startswith("pbt-rl: ")]
    assert "trial_of_a_test:Env" in error
    assert "SIGSEGV" in error


def test_the_copy_collects_no_garbage_of_this_process():
    class Handle:
        def __del__(self):
            if os.getpid() != ours:
                os._exit(7)  # a destructor that needs a thread of this process

    ours = os.getpid()
    handle = Handle()
    handle.itself = handle
    gc.disable()
    try:
        del handle
        assert tried("x", gc.collect, None) >= 0
    finally:
        gc.enable()


def test_a_whole_number_of_the_shaping_that_arrives_as_a_float_is_explained():
    with pytest.raises(TypeError) as error:
        range(0, 20, 10.0)
    assert "shaping" in environment_traceback(error.value)
    assert "shaping" not in environment_traceback(TypeError("no"))
