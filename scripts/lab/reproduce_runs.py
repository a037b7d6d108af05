"""Runs of `pbt-rl train` that are carried on: stopped at a given time, and continued by the same command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pbt_rl.actors.signals import handling
from pbt_rl.record.journal import read_journal

GRACE_SECONDS = 60
"""For a run that was asked to stop, until it has saved itself."""
WHOLE = ("frames", "all members are done")
"""How runs end that nothing cut off: by their budget, searches with their last member."""


def trained(command: Sequence[str], run: Path, until: float) -> bool:
    """Train a run, or go on with it; return whether it is whole at the time `until`. Raises RuntimeError."""
    if whole(run):
        return True
    run.parent.mkdir(parents=True, exist_ok=True)
    log = run.parent / f"{run.name}.out"
    with log.open("a") as file, handling((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # A session of its own: Ctrl-C in a terminal reaches it by way of this process alone. A second one would make
        # it end without saving.
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _stop(child)
            return whole(run)
        except KeyboardInterrupt:
            _stop(child)
            raise
    if child.returncode or not whole(run):
        raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}, see {log}")
    return True


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Let a run save itself and end."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def whole(run: Path) -> bool:
    """Whether a run has trained for all of its frames."""
    journal = run / "journal.jsonl"
    events = read_journal(journal) if journal.exists() else []
    return bool(events) and events[-1]["event"] == "end" and events[-1]["ended"] in WHOLE


def folder_name(arm: str, seed: int) -> str:
    """Return the name of a run."""
    return re.sub(r"[^a-z0-9-]+", "-", f"{arm}-{seed}".lower())
