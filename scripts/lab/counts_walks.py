"""Four walks through a checkout, measured: the files that one decision, checkpoint, option and transition cross.

Serial runs are traced (`counts_tracer.py`); a file counts if a function of its own is called. The same definitions hold
for every checkout, whatever its functions are called:

decision     functions that are called while a run with comparisons trains, and not while the same run without them does
checkpoint   likewise, with checkpoints and without
option       functions between the command line and the rule of exploitation that --pbt.replace-fraction belongs to, as
             far as they are passed or return its value, as a word or as a number (value), or a dataclass that holds it
transition   functions of algos, envs, learner and wire in every stretch from a step of an environment after an
             optimiser's step to the next optimiser's step

Of decisions and checkpoints those functions count that are called at least as often as there were some, in both of two
equal runs, and outside the display: what is done by the clock is left out. While it trains: from the first step of an
environment to the last one. So what every turn of the loop calls does not count for a decision or a checkpoint, and
files that only define what is passed (messages, options) do not count at all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TRACER = Path(__file__).with_name("counts_tracer.py")
VALUE = "0.2718281828"
COMMON = (
    "train --env=toy/shaped --mode=serial --devices=cpu --seed=5 --num-policies=4 --actors=2 --envs-per-unit=2 "
    "--learner.batch=128 --learner.threads=1 --learner.precision=float32 --train-for-frames=1600 --final-episodes=0 "
    "--pbt.min-episodes=1 --save-every-seconds=0 --no-figures --name=x"
)
COMPARED = "--pbt.start-frames=400 --pbt.period-frames=400"
NEVER = "--pbt.start-frames=100000000"
RUNS = {
    "plain": NEVER,
    "compared": COMPARED,
    "saved": f"{NEVER} --save-every-frames=400",
    "option": f"{NEVER} --train-for-frames=100 --pbt.replace-fraction={VALUE}",
}
EVENTS = 3
"""Comparisons, and checkpoints, of the traced runs."""
TWICE = 2
"""Runs of each sort: what only one of two equal runs calls came by the clock."""
PATIENCE_SECONDS = 300.0
ENV_STEP = re.compile(r"envs/.*\.step$")
OPTIMIZER = "algos/optim.py:"
EXPLOIT = ("pbt_rl/pbt/exploit", "pbt_rl/pbt/rules.py")
DISPLAY = "pbt_rl/display/"
DATA_ROOMS = ("algos/", "envs/", "pbt_rl/learner/", "pbt_rl/wire/")


@dataclass(frozen=True)
class Trace:
    """Calls of one run, in order, as `path:function`; and the functions that had the option's value, or its holder."""

    calls: list[str]
    value: list[str]
    holder: list[str]

    def training(self) -> list[str]:
        """Return the calls from the first step of an environment to the last one. Raises ValueError without one."""
        steps = [i for i, name in enumerate(self.calls) if ENV_STEP.search(name)]
        if not steps:
            raise ValueError("the traced run has no step of an environment")
        return self.calls[steps[0] : steps[-1]]


def file_of(function: str) -> str:
    """Return the path of `path:function`."""
    return function.partition(":")[0]


def files_of(functions: set[str]) -> list[str]:
    """Return the files of functions."""
    return sorted({file_of(name) for name in functions})


def only_in(with_events: Sequence[Trace], without: Sequence[Trace]) -> list[str]:
    """Return the files of the functions that are called EVENTS times while each of some runs trains, never in others.

    What the display does is left out: it comes by the clock, whatever the run does.
    """
    often = [Counter(trace.training()) for trace in with_events]
    common = {name for name in often[0] if all(times[name] >= EVENTS for times in often)}
    elsewhere = {name for trace in without for name in trace.training()}
    return files_of({name for name in common - elsewhere if not name.startswith(DISPLAY)})


def option(trace: Trace) -> tuple[list[str], list[str]]:
    """Return the files that had the value or its holder up to the rule, and those that had the value. Or ValueError."""
    end = next((i for i, name in enumerate(trace.calls) if name.startswith(EXPLOIT)), None)
    if end is None or not trace.value:
        raise ValueError("the traced option reached no rule of exploitation")
    before = set(trace.calls[: end + 1])
    return files_of(before & {*trace.value, *trace.holder}), files_of(before & set(trace.value))


def transition(trace: Trace) -> list[str]:
    """Return the files of every stretch from an environment's step to the optimiser's. Raises ValueError."""
    common: set[str] | None = None
    begun: int | None = None
    calls = trace.calls
    for i, name in enumerate(calls):
        if begun is None and ENV_STEP.search(name):
            begun = i
        elif begun is not None and name.startswith(OPTIMIZER):
            inside = {n for n in calls[begun : i + 1] if n.startswith(DATA_ROOMS)}
            common = inside if common is None else common & inside
            begun = None
    if common is None:
        raise ValueError("the traced run has no optimiser's step")
    return files_of(common)


def trace(root: Path, name: str, folder: Path) -> Trace:
    """Trace one of the RUNS with a checkout. Raises ValueError if it fails."""
    folder.mkdir(exist_ok=True)
    out = folder / f"{name}.json"
    value = VALUE if name == "option" else ""
    words = [*COMMON.split(), f"--out={folder / name}", *RUNS[name].split()]
    command = [str(root / ".venv" / "bin" / "python"), str(TRACER), str(root), str(out), value, *words]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode or not out.exists():
        raise ValueError(f"the traced run {name} failed: {done.stderr.strip()[-500:]}")
    found = json.loads(out.read_text())
    names = found["functions"]
    return Trace(*([names[i] for i in found[part]] for part in ("calls", "value", "holder")))


def walk_all(root: Path) -> dict[str, list[str]]:
    """Return the files of each walk through a checkout."""
    with tempfile.TemporaryDirectory(prefix="walks_") as scratch:
        traces = {
            name: [trace(root, name, Path(scratch) / str(n)) for n in range(1 if name == "option" else TWICE)]
            for name in RUNS
        }
    carried, handled = option(traces["option"][0])
    return {
        "files of a decision": only_in(traces["compared"], traces["plain"]),
        "files of a checkpoint": only_in(traces["saved"], traces["plain"]),
        "files of an option": carried,
        "files of an option's value": handled,
        "files of a transition": transition(traces["plain"][0]),
    }
