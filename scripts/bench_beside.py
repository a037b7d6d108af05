"""Parallel measurement of the stages of scripts/bench.py: cost of each stage when all cores are busy.

If a stage runs alone, it has the caches, the memory bandwidth and the clock rate of an idle machine. Here, processes of
all stages run in parallel, and do not wait for each other. There are a few more processes than cores, and each stage
has processes in proportion to its cost. The measured cost includes contention for caches, memory and clock rate, but
not the waits between stages.
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
"""Number of processes minus number of cores. (A run has more busy threads than cores.)"""
BENCH = str(Path(__file__).with_name("bench.py"))
GO = "go"
WARM_UP_SHARE = 0.25


def timed_cpu(
    step: Callable[[], int],
    seconds: float,
    clock: Callable[[], int] = time.process_time_ns,
    begins: Callable[[], bool] = lambda: True,
) -> float:
    """Measure the CPU-microseconds per step of a loop after a warm-up.

    step: body of the loop, which returns its number of steps. clock: returns CPU-nanoseconds.
    begins: returns True when the measurement may begin. Called after the warm-up, and between further steps.
    """
    step()  # compilation and allocation may take longer than a short warm-up
    warm = time.monotonic() + seconds * WARM_UP_SHARE
    while time.monotonic() < warm or not begins():
        step()
    steps, before, end = 0, clock(), time.monotonic() + seconds
    while time.monotonic() < end:
        steps += step()
    return (clock() - before) / steps / 1e3


def go_sign() -> Callable[[], bool]:
    """Return a function for `begins` of `timed_cpu`.

    The first call reports this process as ready. The first call after all processes are ready returns True.
    """
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
    """Return stage -> number of processes: at least one, and in proportion to the cost of the stage."""
    number = dict.fromkeys(costs, 1)
    while sum(number.values()) < processes:
        number[max(costs, key=lambda stage: costs[stage] / number[stage])] += 1
    return number


def together(
    env: str, num_policies: int, seconds: float, job: str, number: Mapping[str, int]
) -> dict[str, float]:
    """Measure the CPU-microseconds per step of each stage, while all processes run in parallel.

    number: stage -> number of processes. The processes have the environment variables of learners. Raises RuntimeError
    if a process fails.
    """
    words = ["--env", env, "--num-policies", str(num_policies), "--seconds", str(seconds), "--job", job]
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
            ends.callback(process.kill)  # has no effect after its end
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
