"""A command ends when its work is done, whatever an environment that ran in its process has started."""

import subprocess
import sys
import time

import pytest

from tests.helpers.runs import HANG_SECONDS

SCRIPT = """
import atexit, os, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from pbt_rl import cli
cli.EXIT_SECONDS, cli.EXIT_SECONDS_AT_MOST, cli.CHILD_SECONDS = 0.3, 0.6, 0.3
def run(words):
    exec({what!r}, globals())
    return 3
cli._command = lambda arguments: (SimpleNamespace(module="__main__:run", arguments=""), [])
sys.argv = ["pbt-rl", "run"]
cli.main()
"""
THREAD = "threading.Thread(target=time.sleep, args=(1000,)).start()"
CHILD = "subprocess.Popen(['sleep', '1000'])"
STARTED = {
    "nothing": "pass",
    "thread": THREAD,
    "thread and child": f"{THREAD}; {CHILD}",
    "pool": "ThreadPoolExecutor(1).submit(time.sleep, 1000)",
    "deaf child": """subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & wait; sleep 1000"])""",
    "grandchild": "subprocess.Popen(['sh', '-c', 'sleep 1000; true'])",
    "daemon": "subprocess.run(['sh', '-c', 'setsid sleep 1000 &'])",
    "forked daemon": """
if os.fork() == 0:
    os.setsid()
    os.fork() == 0 and time.sleep(1000)
    os._exit(0)
os.wait()""",
    "atexit": "atexit.register(time.sleep, 1000)",
}


@pytest.mark.parametrize("what", STARTED.values(), ids=STARTED.keys())
def test_a_command_ends_whatever_an_environment_has_started(what):
    began = time.monotonic()
    # Whoever holds its output keeps `communicate` from its end.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(what=what)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - began < 50
