"""Measure populations in a simulator on the device, on this machine's CPU: ratios, each side in turns in one process.

    python scripts/resident_bench.py [CASE ...] [--rounds N] [--file FILE]

Pendulum of tensors, two MLPs 64-64, 24 steps, 5 epochs of 4 minibatches. Costs are CPU time of the process with one
thread, which other load disturbs less than time by the clock; a figure is the median over rounds, with the lowest and
the highest. FILE keeps each case that is done; a case in it is not measured again. Prints a Markdown table of FILE. All
sides have the allocator's settings that learners are started with. Cases of RSL-RL and gymnax need an environment that
has those (`pip install rsl-rl-lib gymnax six`, after torch); where they are missing, the case is left out.

Axes: P policies, b rows of each, G groups of rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pbt_rl.actors.child import CHILD_ENVIRONMENT
from pbt_rl.algos import optim
from pbt_rl.algos.encoders import ACTIVATIONS, tanh
from pbt_rl.algos.normalizers import Normalizers
from pbt_rl.cli.train import parse_train
from pbt_rl.envs import registry
from pbt_rl.envs.base import ArraySpec, default_shaping_source
from pbt_rl.envs.resident import ResidentUnit
from pbt_rl.learner.build import obs_layouts
from pbt_rl.learner.learner import Learner
from pbt_rl.learner.simulators.in_place import InPlaceRollout
from pbt_rl.learner.simulators.rounds import Rounds
from pbt_rl.run.inline import Line
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.plan import Machine, make_plan
from pbt_rl.run.resolved import ResolvedRun

STEPS, ROWS, SLOW_SECONDS = 24, 1024, 0.005
MACHINE = Machine(2, 0)
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
"""Of JAX."""


class Side:
    """A learner without processes, as serial mode has it. mailbox: its simulator as a unit behind a mailbox."""

    def __init__(
        self, policies: int, rows: int, *more: str, mailbox: bool = False, env: str = "tensors/pendulum"
    ) -> None:
        common = [
            f"--env={env}",
            "--mode=serial",
            f"--num-policies={policies}",
            "--learner.threads=1",
        ]
        config, _ = parse_train([*common, f"--rows={rows}", *more])
        resolved = ResolvedRun.resolve(config, MACHINE)
        self.frames = policies * rows * STEPS
        self.groups = resolved.plan.packs[0].groups
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
            made = registry.make_resident(env, policies * rows, 0, "cpu", registry.DEFAULTS)
            self._unit = ResidentUnit(made, default_shaping_source(resolved.spec))
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


Clock = Callable[[], float]


def in_turns(
    rounds: int, *functions: Callable[[], object], clock: Clock = time.process_time
) -> list[list[float]]:
    """Return the seconds of each function, called in turns after two calls that do not count."""

    def cost(function: Callable[[], object]) -> float:
        began = clock()
        function()
        return clock() - began

    for function in functions:
        function()
        function()
    return [list(one) for one in zip(*([cost(f) for f in functions] for _ in range(rounds)), strict=True)]


def ratio(rounds: int, one: Any, other: Any) -> str:
    """Return speed of a batch of `one` over that of `other`, and steps/s of each."""
    a, b = in_turns(rounds, one.batch, other.batch)
    speeds = [(one.frames / x, other.frames / y) for x, y in zip(a, b, strict=True)]
    one.close()
    other.close()
    found = sorted(x / y for x, y in speeds)
    mine, theirs = (statistics.median(each) / 1e3 for each in zip(*speeds, strict=True))
    return (
        f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f}; "
        f"{mine:,.0f} k against {theirs:,.0f} k steps/s)"
    )


def members(rounds: int) -> str:
    """P = 16 against P = 1, each with 1,024 rows a member."""
    return ratio(rounds, Side(16, ROWS), Side(1, ROWS))


def members_few(rounds: int) -> str:
    """P = 16 against P = 1, each with 128 rows a member."""
    return ratio(rounds, Side(16, 128), Side(1, 128))


def mailbox(rounds: int) -> str:
    """Resident against the mailbox route in serial mode: P = 4, b = 1,024."""
    return ratio(rounds, Side(4, ROWS), Side(4, ROWS, mailbox=True))


def mailbox_few(rounds: int) -> str:
    """Resident against the mailbox route in serial mode: P = 4, b = 128."""
    return ratio(rounds, Side(4, 128), Side(4, 128, mailbox=True))


def of_rsl(rows: int, epochs: int, minibatches: int) -> Callable[[int], str]:
    """Return the case of P = 1 against RSL-RL's own runner."""

    def case(rounds: int) -> str:
        peer = import_module("lab.peers.rsl_pendulum")  # it needs rsl_rl
        passes = (f"--learner.epochs={epochs}", f"--learner.minibatches={minibatches}")
        return ratio(rounds, Side(1, rows, *passes), peer.RslSide(rows, epochs, minibatches))

    case.__doc__ = f"P = 1 against RSL-RL's own runner, {rows:,} rows, {epochs} x {minibatches}."
    return case


def of_jit(policies: int) -> Callable[[int], str]:
    """Return the case of gymnax against PPO in one compiled function."""

    def case(rounds: int) -> str:
        peer = import_module("lab.peers.jit_ppo")  # it needs JAX
        passes = ("--learner.epochs=5", "--learner.minibatches=4", "--learner.rollout=24")
        net = ("--model.hidden=64", "--model.layers=2", "--model.critic=separate", "--hypers.unroll=24")
        ours = Side(policies, ROWS, *passes, *net, env="gymnax/Pendulum-v1")
        return ratio(rounds, ours, peer.JitSide(policies, ROWS, 5, 4))

    case.__doc__ = f"gymnax Pendulum against PPO compiled as one function, P = {policies}, b = 1,024."
    return case


def _compute() -> None:
    until = time.thread_time() + SLOW_SECONDS
    while time.thread_time() < until:
        pass


def _slow(env: Any, wait: Callable[[], object]) -> None:
    quick = env.step

    def step(action: Any) -> Any:
        wait()
        return quick(action)

    env.step = step


def _networks(policies: int, rows: int) -> Callable[[], object]:
    """Return the products and tanh of a step of all policies alone: what no program can leave out."""
    sizes = ((3, 64), (64, 64), (64, 1))
    layers = [[(torch.randn(m, n), torch.randn(n)) for m, n in sizes] for _ in range(2 * policies)]
    obs = torch.randn(rows, 3)

    def step() -> None:
        for net in layers:
            x = obs
            for w, bias in net[:-1]:
                x = tanh(torch.addmm(bias, x, w))
            torch.addmm(net[-1][1], x, net[-1][0])

    return torch.no_grad()(step)


def of_alone(rows: int, wait: Callable[[], object], doing: str, clock: Clock) -> Callable[[int], str]:
    """Return the case of acting against the environment alone."""

    def case(rounds: int) -> str:
        side = Side(4, rows)
        env = registry.make_resident("tensors/pendulum", 4 * rows, 0, "cpu", registry.DEFAULTS)
        env.attach(torch.ones(4, 3))
        env.reset()
        sampler: Any = side.learner.sampler
        _slow(env, wait)
        _slow(sampler._env, wait)  # noqa: SLF001 - the simulator that it steps
        action, networks = torch.zeros(4 * rows, 1), _networks(4, rows)

        def steps() -> None:
            for _ in range(STEPS):
                env.step(action)

        def least() -> None:
            for _ in range(STEPS):
                networks()

        ours, theirs, bare = (
            1e3 * statistics.median(costs) / STEPS
            for costs in in_turns(rounds, side.act, steps, least, clock=clock)
        )
        side.close()
        return (
            f"{theirs / ours:.2f} ({ours:.2f} against {theirs:.2f} ms a step); {theirs / (theirs + bare):.2f} if the "
            f"networks' products and tanh ({bare:.2f} ms) were all"
        )

    case.__doc__ = f"Acting against the environment alone, whose step {doing} 5 ms more, P = 4, b = {rows:,}."
    return case


class Calls(TorchDispatchMode):
    """Counts calls that a device would carry out, and what makes the host wait for one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's has no annotations
        self.launches = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, schema = func.name(), func._schema  # noqa: SLF001 - what it returns: views launch nothing
        returns = [one.alias_info for one in schema.returns]
        view = bool(returns) and all(one is not None and not one.is_write for one in returns)
        if name.startswith(("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")):
            self.waits += 1
        elif not view and not name.startswith(
            ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::scalar_tensor")
        ):
            self.launches += 1
        return func(*args, **(kwargs or {}))


def _as_on_a_device(stack: ExitStack) -> None:
    """Let everything be computed by tensors, as where there are no kernels for a CPU, and without looks at values."""
    places = {
        "pbt_rl.algos.distributions.has_kernels": lambda _: False,
        "pbt_rl.learner.simulators.rounds.nowhere": lambda _: False,
        "pbt_rl.learner.simulators.finals.nowhere": lambda _: False,
        "pbt_rl.algos.optim.adam_on": lambda _: (optim.adam_torch, ""),
    }
    for place, stand_in in places.items():
        stack.enter_context(patch(place, stand_in))
    stack.enter_context(patch.dict(ACTIVATIONS, tanh=torch.tanh))


def of_counts(policies: int, packing: str) -> Callable[[int], str]:
    """Return the case that counts calls."""

    def case(_rounds: int) -> str:
        side = Side(policies, 256, f"--learner.packing={packing}")
        with ExitStack() as stack:
            _as_on_a_device(stack)
            side.batch()
            sampler: Any = side.learner.sampler
            env, read = sampler._env, []  # noqa: SLF001 - the simulator that it steps
            fetch = torch.Tensor.cpu

            def own(x: torch.Tensor) -> torch.Tensor:
                read.append(x.nbytes)
                return fetch(x)

            with Calls() as alone:
                for _ in range(STEPS):
                    env.step(torch.zeros(policies * 256, 1))
            with patch("torch.Tensor.cpu", own), Calls() as acting:
                assert sampler.serve()
            with Calls() as learning:
                side.learner.trainer.learn()
        side.close()
        steps = 20
        return (
            f"{(acting.launches - alone.launches) / STEPS:.0f} calls a step beside the environment's "
            f"{alone.launches / STEPS:.0f}, {learning.launches / steps:.0f} an optimiser step; waits in a rollout: "
            f"{acting.waits} and {len(read)} fetch of {sum(read):,} bytes for {policies * side.groups} groups of rows"
        )

    case.__doc__ = f"Calls counted, P = {policies}, b = 256, {packing}."
    return case


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


def observed(rounds: int) -> str:
    """Statistics of observations, 65,536 rows of 48 numbers."""
    normalizers = Normalizers({"obs": 48}, returns=False)
    stats = normalizers.empty(lambda *shape, dtype=torch.float32: torch.zeros(1, *shape, dtype=dtype))
    obs, valid = torch.randn(1, 4, 2**16, 48), torch.ones(1, 4, 2**16, dtype=torch.bool)
    (costs,) = in_turns(rounds, lambda: normalizers.observe_obs(stats, slice(0, 1), {"obs": obs}, valid))
    return f"{1e3 * statistics.median(costs) / 4:.1f} ms a step"


PASSES = ((ROWS, 5, 4), (ROWS, 1, 1), (4096, 5, 4), (4096, 1, 1))
CASES: dict[str, Callable[[int], str]] = {
    **{case.__name__: case for case in (memory, episodes, observed)},
    "counts_1": of_counts(1, "loop"),
    "counts_16": of_counts(16, "vmap"),
    "alone": of_alone(ROWS, _compute, "computes for", time.process_time),
    "alone_few": of_alone(64, _compute, "computes for", time.process_time),
    "asleep": of_alone(ROWS, lambda: time.sleep(SLOW_SECONDS), "sleeps for", time.perf_counter),
    "asleep_few": of_alone(64, lambda: time.sleep(SLOW_SECONDS), "sleeps for", time.perf_counter),
    **{f"rsl_{rows}_{epochs}x{parts}": of_rsl(rows, epochs, parts) for rows, epochs, parts in PASSES},
    "jit_1": of_jit(1),
    "jit_4": of_jit(4),
    **{case.__name__: case for case in (mailbox_few, mailbox, members_few, members)},
}


def main() -> None:
    """Measure what is not in the file, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file", type=Path, default=Path("build/resident_bench.json"))
    given = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in CHILD_ENVIRONMENT.items()):
        begun_again = [sys.executable, *sys.argv]
        os.execve(sys.executable, begun_again, os.environ | CHILD_ENVIRONMENT | ONE_THREAD)  # noqa: S606 - this script
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(given.file.read_text()) if given.file.exists() else {}
    for name in given.cases or CASES:
        if name in done:
            continue
        before, began = os.getloadavg()[0], time.monotonic()
        try:
            found = CASES[name](given.rounds)
        except ModuleNotFoundError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        done[name] = {"found": found, "rounds": given.rounds, "load": [before, os.getloadavg()[0]]}
        given.file.parent.mkdir(parents=True, exist_ok=True)
        given.file.write_text(json.dumps(done, indent=1))
        print(f"{name}: {found} [{time.monotonic() - began:.0f} s]", flush=True)
    print("\n| what | found | rounds | load before and after |\n| --- | --- | --- | --- |")
    for name, one in done.items():
        what = (CASES[name].__doc__ or "").rstrip(".")
        print(f"| {what} | {one['found']} | {one['rounds']} | {one['load'][0]:.0f}, {one['load'][1]:.0f} |")


if __name__ == "__main__":
    main()
