"""Measure the stages of scripts/bench.py at the same time, uncoupled: what the cores allow when all of them are busy.

A stage alone has its core's caches, the memory and the clock of an idle machine for itself. Here processes of all
stages run at once, a few more than there are cores, in numbers like the stages' shares of the time; none waits for
another. Their CPU-microseconds per step are what a run would need if only the stages' company made them dearer.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pbt_rl.processes.child import CHILD_ENVIRONMENT

MORE_THAN_CORES = 3
"""A run has more threads with work than cores, which take turns; so have these."""
BENCH = str(Path(__file__).with_name("bench.py"))
GO = "go"
WARM_UP_SHARE = 0.25


def timed_cpu(
    step: Callable[[], int],
    seconds: float,
    clock: Callable[[], int] = time.process_time_ns,
    begins: Callable[[], bool] = lambda: True,
) -> float:
    """Return the CPU-microseconds per step of a loop, after a warm-up. `step` returns the number of steps it took.

    begins: asked after the warm-up and then after each step, whether the measurement begins.
    """
    step()  # compiles and allocates, for longer than the warm-up of a short measurement
    warm = time.monotonic() + seconds * WARM_UP_SHARE
    while time.monotonic() < warm or not begins():
        step()
    steps, before, end = 0, clock(), time.monotonic() + seconds
    while time.monotonic() < end:
        steps += step()
    return (clock() - before) / steps / 1e3


def go_sign() -> Callable[[], bool]:
    """In a stage's process: return what tells whether all are ready. Its first call says that this one is."""
    said: list[bool] = []

    def begins() -> bool:
        if not said:
            print("ready", flush=True)
            said.append(True)
        if not select.select([sys.stdin], [], [], 0)[0]:
            return False
        if sys.stdin.readline().strip() != GO:
            sys.exit("the process that measures has ended")
        return True

    return begins


def shares(costs: Mapping[str, float], processes: int) -> dict[str, int]:
    """Return how many of the processes run each stage: one at least, and else by their costs."""
    number = dict.fromkeys(costs, 1)
    while sum(number.values()) < processes:
        number[max(costs, key=lambda stage: costs[stage] / number[stage])] += 1
    return number


def together(env: str, num_policies: int, seconds: float, number: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU-microseconds per step of each stage, measured at once by this number of fresh processes of each.

    They have the learners' environment variables. Raises RuntimeError with its output if one fails.
    """
    words = ["--env", env, "--num-policies", str(num_policies), "--seconds", str(seconds)]
    with contextlib.ExitStack() as ends:
        running: list[tuple[str, Any]] = []
        for stage in [stage for stage, times in number.items() for _ in range(times)]:
            process = subprocess.Popen(
                [sys.executable, BENCH, "--stage", stage, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | CHILD_ENVIRONMENT,
            )
            running.append((stage, ends.enter_context(process)))
            ends.callback(process.kill)  # of one that has ended: nothing happens
        for stage, process in running:
            _read(stage, process)
        for _, process in running:
            process.stdin.write(f"{GO}\n")
            process.stdin.flush()
        found: dict[str, list[float]] = {stage: [] for stage in number}
        for stage, process in running:
            found[stage].append(float(_read(stage, process)))
        return {stage: statistics.mean(values) for stage, values in found.items()}


def _read(stage: str, process: Any) -> str:
    line: str = process.stdout.readline()
    if not line:
        raise RuntimeError(f"stage {stage} failed:\n{process.stderr.read()[-3000:]}")
    return line
