"""Measure populations in a simulator on the device, on this machine's CPU: ratios, each side in turns in one process.

    python scripts/resident_bench.py [CASE ...] [--rounds N] [--file FILE]

Pendulum of tensors, two MLPs 64-64, 24 steps, 5 epochs of 4 minibatches. Costs are CPU time of the process with one
thread, which other load disturbs less than time by the clock; a figure is the median over rounds. FILE keeps each
case that is done; a case in it is not measured again. Prints a Markdown table of FILE.

Axes: P policies, b rows of each, G groups of rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pbt_rl.cli.train import parse_train
from pbt_rl.envs import registry
from pbt_rl.envs.base import ArraySpec, default_shaping_source
from pbt_rl.envs.resident import ResidentUnit
from pbt_rl.learner.build import obs_layouts
from pbt_rl.learner.learner import Learner
from pbt_rl.plan import Machine, make_plan
from pbt_rl.run.inline import Line
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.simulators.in_place import InPlaceRollout
from pbt_rl.simulators.rounds import Rounds

STEPS, ROWS, SLOW_SECONDS = 24, 1024, 0.005
MACHINE = Machine(2, 0)


class Side:
    """A learner without processes, as serial mode has it. mailbox: its simulator as a unit behind a mailbox."""

    def __init__(self, policies: int, rows: int, *more: str, mailbox: bool = False) -> None:
        common = [
            "--env=tensors/pendulum",
            "--mode=serial",
            f"--num-policies={policies}",
            "--learner.threads=1",
        ]
        config, _ = parse_train([*common, f"--rows={rows}", *more])
        resolved = ResolvedRun.resolve(config, MACHINE)
        self.frames = policies * rows * STEPS
        self._unit: ResidentUnit | None = None
        values = {name: one.default for name, one in resolved.table.items()}
        if mailbox:
            sizes = (f"--learner.batch={rows * STEPS}", f"--envs-per-unit={rows}", "--actors=1")
            config, _ = parse_train([*common, *sizes, "--units-per-actor=1", *more])
            plan = make_plan(config, MACHINE)
            packs = (replace(plan.packs[0], threads=1),)
            spec = replace(resolved.spec, resident=False)
            resolved = replace(resolved, config=config, spec=spec, plan=replace(plan, packs=packs))
        self._memory = Memory(resolved, Start.fresh(resolved.plan, [values] * policies))
        there: deque[Any] = deque()
        back: deque[Any] = deque()
        self._line = Line(there, back)
        other_end: Any = Line(back, there)  # the socket of a learner, without one
        self.learner = Learner(self._memory.learners[0], other_end)
        if mailbox:
            env = registry.make_resident("tensors/pendulum", policies * rows, 0, "cpu", registry.DEFAULTS)
            self._unit = ResidentUnit(env, default_shaping_source(resolved.spec))
            self._box = self._memory.actors[0].boxes[0]
            self._unit.reset(self._box.step)
            self._box.header[0] += 1

    def batch(self) -> None:
        """Act for a rollout and learn from it."""
        before = self.learner.shared.learning.updates[0]
        while self.learner.shared.learning.updates[0] == before:
            self.learner.turn()
            if self._unit is not None and not self._box.learner_has_turn:
                self._unit.step(self._box.action, self._box.step)
                self._box.header[0] += 1
        while self._line.poll():
            self._line.recv()

    def act(self) -> None:
        """Act for a rollout, and learn nothing."""
        sampler: Any = self.learner.sampler
        assert sampler.serve()
        self.learner.shared.full.clear()

    def close(self) -> None:
        """Release everything."""
        self.learner.close()
        self._memory.close()


def cost(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def in_turns(rounds: int, *functions: Callable[[], object]) -> list[list[float]]:
    """Return the costs of each function, called in turns after two calls that do not count."""
    for function in functions:
        function()
        function()
    return [list(one) for one in zip(*([cost(f) for f in functions] for _ in range(rounds)), strict=True)]


def ratio(rounds: int, one: Side, other: Side, what: str = "batch") -> tuple[float, float, float]:
    """Return speed of `one` over that of `other` (median of the rounds' ratios), and steps/s of each."""
    a, b = in_turns(rounds, getattr(one, what), getattr(other, what))
    speeds = [(one.frames / x, other.frames / y) for x, y in zip(a, b, strict=True)]
    one.close()
    other.close()
    return (
        statistics.median(x / y for x, y in speeds),
        statistics.median(x for x, _ in speeds),
        statistics.median(y for _, y in speeds),
    )


def told(found: tuple[float, float, float]) -> str:
    """Return a ratio and its two speeds, as text."""
    return f"{found[0]:.2f} ({found[1] / 1e3:,.0f} k against {found[2] / 1e3:,.0f} k steps/s)"


def members(rounds: int, policies: int = 16) -> str:
    """P = 16 against P = 1, each with 1,024 rows a member."""
    return told(ratio(rounds, Side(policies, ROWS), Side(1, ROWS)))


def mailbox(rounds: int) -> str:
    """Resident against the mailbox route in serial mode: P = 4, b = 1,024."""
    return told(ratio(rounds, Side(4, ROWS), Side(4, ROWS, mailbox=True)))


def _slow(env: Any) -> None:
    quick = env.step

    def step(action: Any) -> Any:
        until = time.thread_time() + SLOW_SECONDS
        while time.thread_time() < until:
            pass
        return quick(action)

    env.step = step


def alone(rounds: int, rows: int = ROWS) -> str:
    """Resident without learning against the environment alone, a step of which takes 5 ms more: P = 4, b = 1,024."""
    side = Side(4, rows)
    env = registry.make_resident("tensors/pendulum", 4 * rows, 0, "cpu", registry.DEFAULTS)
    env.attach(torch.ones(4, 3))
    env.reset()
    sampler: Any = side.learner.sampler
    _slow(env)
    _slow(sampler._env)  # noqa: SLF001 - the simulator that it steps
    action = torch.zeros(4 * rows, 1)

    def steps() -> None:
        for _ in range(STEPS):
            env.step(action)

    ours, theirs = in_turns(rounds, side.act, steps)
    side.close()
    found = statistics.median(y / x for x, y in zip(ours, theirs, strict=True))
    mine, its = (1e3 * statistics.median(costs) / STEPS for costs in (ours, theirs))
    return f"{found:.2f} ({mine:.1f} against {its:.1f} ms a step)"


def alone_few(rounds: int) -> str:
    """The same with b = 64."""
    return alone(rounds, 64)


def memory(_rounds: int) -> str:
    """Memory of a rollout of 16 x 4,096 rows, 24 steps, 48 + 72 observations, 12 actions."""
    obs = {"obs": ArraySpec((48,), "float32"), "critic": ArraySpec((72,), "float32")}
    spec = dataclasses.replace(registry.probe("tensors/pendulum", registry.DEFAULTS), obs=obs)
    rollout = InPlaceRollout(obs_layouts(spec), STEPS, 16, 4096, (12, torch.float32), 0, torch.device("cpu"))
    size = sum(x.nbytes for x in (*rollout.fields.values(), *rollout.obs.values()))
    return f"{size / 1e9:.2f} GB"


def episodes(rounds: int) -> str:
    """Counting a step's episodes: 16 x 4,096 rows in groups of 64, ends after 200 steps."""
    rows, groups = 16 * 4096, 64
    counted = Rounds(16, 4096, groups, [], torch.device("cpu"))
    ages, reward = torch.arange(rows) % 200, torch.ones(rows)
    ends = [(ages + t) % 200 == 199 for t in range(40)]

    def steps() -> None:
        for ended in ends:
            counted.step(reward, reward, ended)

    (costs,) = in_turns(rounds, steps)
    return f"{1e3 * statistics.median(costs) / len(ends):.2f} ms a step"


CASES = {case.__name__: case for case in (memory, episodes, alone, alone_few, members, mailbox)}


def main() -> None:
    """Measure what is not in the file, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file", type=Path, default=Path("build/resident_bench.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(given.file.read_text()) if given.file.exists() else {}
    for name in given.cases or CASES:
        if name not in done:
            before = os.getloadavg()[0]
            found = CASES[name](given.rounds)
            done[name] = {"found": found, "rounds": given.rounds, "load": [before, os.getloadavg()[0]]}
            given.file.parent.mkdir(parents=True, exist_ok=True)
            given.file.write_text(json.dumps(done, indent=1))
            print(name, done[name], flush=True)
    print("| what | found | rounds | load before and after |\n| --- | --- | --- | --- |")
    for name, one in done.items():
        what = (CASES[name].__doc__ or "").rstrip(".")
        print(f"| {what} | {one['found']} | {one['rounds']} | {one['load'][0]:.0f}, {one['load'][1]:.0f} |")


if __name__ == "__main__":
    main()
