"""Environments that do not close, and threads that do not end, delay the end of a run only briefly."""

import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from pbt_rl.cli.envs import run_check
from pbt_rl.envs import custom, time_limits
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.family import EnvOptions
from pbt_rl.envs.gym import GymVectorEnv, probe_with
from tests.helpers.runs import HANG_SECONDS


class Waits(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(2)

    def __init__(self, env_index=0):
        self.index = env_index

    def reset(self, *, seed=None, options=None):
        return np.full(1, self.index / 100, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def close(self):
        time.sleep(100)


def ran(code):
    """Run a program in a separate process and wait for its end."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def test_several_that_do_not_close_are_left_in_time(monkeypatch, capsys):
    monkeypatch.setattr(time_limits, "CLOSE_SECONDS", 0.2)
    before = time.monotonic()
    assert probe_with("m:f", Waits).env_id == "m:f"
    assert "0.2 s" in capsys.readouterr().err
    vector_env = custom.make_vector_env(f"{__name__}:Waits", 3, 0, EnvOptions(), lambda _: (0, {}))
    assert time_limits.close_in_time(vector_env)
    assert time.monotonic() - before < 30


def test_what_close_raises_is_said(capsys):
    env = Waits()
    env.close = lambda: 1 / 0
    with time_limits.closing(env):
        pass
    assert "close() raised ZeroDivisionError" in capsys.readouterr().err


def test_what_catches_the_end_of_its_limit_is_told(monkeypatch):
    def wait():
        with suppress(BaseException):
            time.sleep(100)

    monkeypatch.setattr(time_limits, "CLOSE_SECONDS", 0.2)
    env = Waits()
    env.close = wait
    assert time_limits.close_in_time(env)


def test_what_cannot_be_interrupted_ends_the_process():
    code = """
        import types
        from pbt_rl.envs import time_limits

        def wait():
            while True:
                try:
                    time.sleep(100)
                except BaseException:
                    pass

        import time
        time_limits.CLOSE_SECONDS = time_limits.GRACE_SECONDS = 0.2
        time_limits.close_in_time(types.SimpleNamespace(close=wait))
    """
    done = ran(code)
    assert done.returncode == 1
    assert "wait" in done.stderr


def test_a_factory_is_told_the_index_of_each_environment():
    vector_env = custom.make_vector_env(
        f"{__name__}:Waits", 3, 0, replace(EnvOptions(), first_row=8), lambda _: (0, {})
    )
    out = private_step_arrays(vector_env.spec, 3)
    vector_env.reset(out)
    assert (out.obs["obs"] * 100).round().ravel().tolist() == [8, 9, 10]


def test_the_checker_gives_each_environment_an_index_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(Waits, "taken", set(), raising=False)
    run_check([f"{__name__}:waits_at_a_port", "--steps", "8"])
    assert IN_USE not in capsys.readouterr().out


IN_USE = "address already in use"


def waits_at_a_port(env_index):
    env = Waits(env_index)
    assert env_index not in Waits.taken, IN_USE
    Waits.taken.add(env_index)
    env.close = lambda: Waits.taken.discard(env_index)
    return env


def test_the_command_lets_what_runs_at_exit_run():
    code = """
        import atexit, time
        from pbt_rl import cli
        cli.EXIT_SECONDS = 0.1
        atexit.register(lambda: (time.sleep(1), print("written")))
        cli._end(3)
    """
    done = ran(code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "written\n", "")


def test_the_command_leaves_no_process_of_an_environment():
    code = """
        import subprocess, sys
        from pbt_rl import cli
        sys.argv = ["pbt-rl", "--version"]
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
        cli.main()
    """
    assert "pbt-rl" in ran(code).stdout  # it ends only if the other process does, which has the same output


def test_the_command_ends_though_a_thread_goes_on():
    code = """
        import threading, time
        from pbt_rl import cli
        cli.EXIT_SECONDS = 0.2
        threading.Thread(target=time.sleep, args=(100,), name="simulator").start()
        cli._end(3)
    """
    done = ran(code)
    assert done.returncode == 3
    assert "simulator" in done.stderr


def test_a_caller_of_the_command_line_goes_on_after_it():
    code = """
        import time
        from pbt_rl import cli
        cli.EXIT_SECONDS = 0.1
        try:
            cli._end(3)
        except SystemExit:
            time.sleep(1)
    """
    assert ran(code).returncode == 0


def test_a_failed_construction_closes_what_was_made():
    closed = []

    class Noted(Waits):
        def close(self):
            closed.append(self.index)

    made = iter([Noted(0), Noted(1)])
    with suppress(StopIteration):
        GymVectorEnv("x", lambda: next(made), 3, 0, lambda row: (0, {}))
    assert sorted(closed) == [0, 1]
