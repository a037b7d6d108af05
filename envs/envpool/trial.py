"""Tries out a task of EnvPool in a process of its own.

What the engine does not accept ends its process, without an exception.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import lru_cache
from tempfile import TemporaryDirectory

from ..base import EnvSetupError

TRIAL_SECONDS = 60.0
_TRIAL = """
import json, sys, warnings
warnings.simplefilter("ignore")
import envpool, numpy
task, words = json.loads(sys.argv[1])
env = envpool.make(task, "gymnasium", num_envs=2, seed=0, **words)
env.reset()
shape, dtype = list(env.spec.action_array_spec.values())[-1].shape, list(env.spec.action_array_spec.values())[-1].dtype
tail = tuple(shape[1:]) if shape and shape[0] == -1 else tuple(shape)
for _ in range(3):
    env.step(numpy.zeros((2, *tail), dtype))
print("played")
"""


@lru_cache(maxsize=32)
def try_out(name: str, request: str, given: str) -> None:
    """Make and step a task in a process of its own. Raises EnvSetupError with what that one said last.

    request: JSON of the task and its keywords. given: those of the user, for the message.
    """
    asked = f"envpool/{name} with {given}" if given else f"envpool/{name}"
    with TemporaryDirectory() as folder:  # MuJoCo writes a log of its errors where it runs
        trial = subprocess.Popen(
            [sys.executable, "-c", _TRIAL, request],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        try:
            said, complained = trial.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(trial.pid, signal.SIGKILL)  # an engine may have processes of its own
            said = None
            trial.communicate()
    if said is None:
        raise EnvSetupError(
            f"{asked} hangs: three steps took more than {TRIAL_SECONDS:g} s. Choose another task or other options"
        )
    if trial.returncode == 0 and said.rstrip().endswith("played"):
        return
    how = f"signal {-trial.returncode}" if trial.returncode < 0 else f"exit code {trial.returncode}"
    last = last_line(complained) or last_line(said) or "it said nothing"
    raise EnvSetupError(f"{asked} cannot be used: a trial of EnvPool ended with {how}: {last}")


def last_line(text: str) -> str:
    """The last line that says something: not one of a stack of addresses."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("***", "@"))]
    return lines[-1][:300] if lines else ""
