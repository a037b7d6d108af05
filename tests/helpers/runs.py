"""Whole runs as a user sees them: `pbt-rl` started in a folder, watched, hit by signals, read back."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from pbt_rl.processes.keeper import end_with

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
BUSY = (
    "--num-policies=4",
    "--actors=2",
    "--pbt.period-frames=500",
    "--pbt.start-frames=0",
    "--pbt.min-episodes=1",
)
"""Members change several times a second: each ` -> ` on screen, of a score or a value, says that the run goes on."""
ENDLESS = (*BUSY, "--train-for-frames=1000000000")
PROGRESS = " -> "
HANG_SECONDS = 300
"""After so long, what a test waits for hangs. It is no limit of speed: slow and busy machines pass too."""


def command_of(process):
    """The words of its command line; none if it has ended, which may be at any moment."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@dataclass
class Run:
    """A command that runs in `cwd`, in a process group of its own."""

    process: subprocess.Popen
    cwd: Path

    @property
    def folder(self):
        return self.cwd / "runs" / "x"

    @property
    def out(self):
        return (self.cwd / "out.txt").read_text()

    @property
    def err(self):
        return (self.cwd / "err.txt").read_text()

    def children(self, module):
        """Processes of `learner` or `actor`, in order of their start. Their keepers are not among them."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            command = command_of(child)
            if not any(part.endswith("keeper.py") for part in command) and any(
                part.startswith("pbt_rl.") and part.endswith(f".{module}") for part in command
            ):
                found.append(child)
        return sorted(found, key=lambda c: c.ppid())  # their keepers start in order

    def wait_for(self, text, seconds=HANG_SECONDS, after=0):
        """Wait until `text` is on screen beyond the first `after` characters; returns where it ends there."""
        deadline = time.monotonic() + seconds
        while (at := self.out.find(text, after)) < 0:
            ended = self.process.poll()
            assert ended is None, f"ended with {ended} before {text!r}:\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{self.out}\n{self.err}"
            time.sleep(0.05)
        return at + len(text)

    def wait_for_event(self, kind, seconds=HANG_SECONDS, number=1):
        """Wait until the journal has an event (`number` times)."""
        deadline, journal = time.monotonic() + seconds, self.folder / "journal.jsonl"
        while not journal.exists() or journal.read_text().count(f'"event": "{kind}"') < number:
            assert self.process.poll() is None, f"ended before {kind!r}:\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"no {kind!r} within {seconds} s:\n{self.out}\n{self.err}"
            time.sleep(0.05)

    def wait(self, seconds=HANG_SECONDS):
        """Exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.out}\n{self.err}") from None

    def end(self, number=signal.SIGTERM, seconds=HANG_SECONDS):
        """Send a signal to the whole group, as a terminal does; returns the exit code."""
        os.killpg(self.process.pid, number)
        return self.wait(seconds)

    @property
    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def journal(self):
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    def events(self, kind):
        return [event for event in self.journal if event["event"] == kind]


def start(cwd, *arguments):
    """Start `pbt-rl ARGUMENTS` in a folder. The kernel kills it if the tests are killed."""
    with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "pbt_rl", *arguments],
            cwd=cwd,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=partial(end_with, os.getpid()),  # noqa: PLW1509 - one call, of the kernel
        )
    return Run(process, cwd)


def train(cwd, env, *arguments):
    """Start `pbt-rl train` on an environment, as run `x`; figures, which take seconds, only where asked for."""
    return start(cwd, "train", "--env", env, "--name", "x", "--no-figures", *arguments)


def python(code, cwd):
    """Run Python code in a fresh interpreter; returns what it printed."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout
