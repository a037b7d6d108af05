"""The stages of gpu_check.py on a device alone, without a run; those of whole runs are in gpu_runs.py.

Each gets a Job and returns figures by name; `passed` is False if it found an error.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpu_stand import CPU, Job, device_calls, stand, timed, timed_once

from pbt_rl.wire.messages import Load, Save

RACE_SECONDS, RACE_TURNS = 15.0, 30


# -- correctness ----------------------------------------------------------------------------------------------


def facts(job: Job) -> dict[str, Any]:
    """Versions, the card, and what a launch costs."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
    }
    if not job.on_gpu:
        return found
    card, x = torch.cuda.get_device_properties(job.torch_device), torch.zeros(1, device=job.torch_device)

    def launches() -> None:
        for _ in range(200):
            x.add_(1)

    def finish() -> None:
        torch.cuda.synchronize(job.torch_device)

    whole, cpu = timed(launches, finish, 20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    replayed, _ = timed(graph.replay, finish, 20)
    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    code = torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)
    return found | {
        "card": card.name,
        "memory GiB": card.total_memory / 2**30,
        "launch us": whole * 5,
        "launch cpu us": cpu * 5,
        "launch in a graph us": replayed * 5,
        "page-locking (0: works)": int(code),
    }


def math(job: Job) -> dict[str, Any]:
    """Act and learn from the same steps with the same random numbers, on the CPU and on the device."""
    _full_float32()
    found: dict[str, Any] = {"passed": True}
    cases = (("loop", ()), ("vmap", ("--model.core=gru",)), ("bmm", ()))
    for packing, more in cases:
        words = (f"--learner.packing={packing}", "--learner.precision=float32", "--learner.rollout=8", *more)
        batch = ("--learner.batch=128", "--learner.minibatches=2", "--learner.epochs=1", "--hypers.unroll=8")
        actions, states = [], []
        for device in (CPU, job.torch_device):
            with one_source_of_chance(), stand(job, 2, *words, *batch, device=device) as at:
                actions.append(np.concatenate(at.fill()))
                at.learn()
                states.append(at.state())
        same = float(np.mean(actions[0] == actions[1])) if len(actions[0]) == len(actions[1]) else 0.0
        error = max(_distance(states[1][name], x) for name, x in states[0].items())
        found[f"{packing} error"], found[f"{packing} same actions"] = error, same
        found["passed"] &= error < 1e-4 and same > 0.999
    return found


def _full_float32() -> None:
    """Let float32 be computed as such: TF32 differs by 1e-3, and by the number of rows."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@contextmanager
def one_source_of_chance() -> Iterator[None]:
    """Let both devices draw the CPU's random numbers."""
    generator = torch.Generator().manual_seed(1)

    def drawn(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def draw(*shape: Any, device: Any = CPU, generator: Any = None, **rest: Any) -> torch.Tensor:  # noqa: ARG001
            return make(*shape, generator=source, **rest).to(device)

        source = generator
        return draw

    with (
        mock.patch.object(torch, "rand", drawn(torch.rand)),
        mock.patch.object(torch, "randn", drawn(torch.randn)),
    ):
        yield


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    far = float((a - b).norm() / b.norm().clamp(min=1e-12)) if a.numel() else 0.0
    return far if np.isfinite(far) else float("inf")


def answers(job: Job) -> dict[str, Any]:
    """Serve units in turns of changing size, and compute anew what was written for each of their last steps."""
    error, turns, impossible = 0.0, 0, 0
    _full_float32()
    with stand(job, 3, "--learner.precision=float32", "--model.core=none", actors=5) as at:
        pack, boxes = at.pack, at.boxes
        for served in [5, *(1, 2, 3, 4, 5) * 5]:
            at.boxes = boxes[:served]
            at.advance()
            at.sampler.serve()
            at.finish()  # what is looked at below was asked of another stream
            while at.shared.full:
                at.shared.free.give(at.shared.full.popleft())
            for unit in at.sampler.units[:served]:
                t, rollout = unit.t - 1, unit.rollout
                kept = {name: unit.stacks.get(name, obs[t]) for name, obs in rollout.obs.items()}
                obs = {
                    name: rollout.layouts[name].as_seen(x.unflatten(0, (3, -1))) for name, x in kept.items()
                }
                first = torch.from_numpy(rollout.first[t].reshape(3, -1)).to(pack.device)
                params, value, _ = pack.serve(obs, unit.state.unflatten(0, (3, -1)), first)
                action = rollout.action[t].unflatten(0, (3, -1))
                log_prob = at.sampler.distribution.log_prob(params, action)
                error = max(error, _distance(value.flatten(), rollout.value[t]))
                error = max(error, _distance(log_prob.flatten(), rollout.log_prob[t]))
                given = at.sampler.distribution.delivered(action.flatten(0, 1).cpu().numpy())
                impossible += int((given != unit.box.action).sum())
            turns += 1
        recorded = at.sampler.recorded_turns
    return {
        "turns": turns,
        "recorded": recorded,
        "error": error,
        "actions that differ": impossible,
        "passed": error < 1e-4 and impossible == 0 and (recorded or not job.on_gpu),
    }


def races(job: Job) -> dict[str, Any]:
    """Publish two sets of weights in turns while acting: each answer is that of one set, policy by policy."""
    with stand(job, 3) as at:
        pack, layouts = at.pack, at.sampler._layouts  # noqa: SLF001 - the shapes that the sampler stores
        obs = {
            name: layout.as_seen(
                torch.ones((3, 32, *layout.stored[1]), dtype=layout.stored[0], device=pack.device)
            )
            for name, layout in layouts.items()
        }
        state = torch.zeros((3, 32, pack.state_size), device=pack.device)
        first = torch.zeros((3, 32), dtype=torch.bool, device=pack.device)
        sets = [[pack.fresh_state() for _ in range(3)] for _ in range(2)]
        at.finish()

        def act() -> torch.Tensor:
            with pack.streams.acting():
                return pack.act(obs, state, first)[0].cpu()

        def bring(number: int) -> None:
            with pack.streams.learning():
                for slot, one in enumerate(sets[number]):
                    pack.import_member(slot, one)

        wanted = []
        for number in range(2):
            bring(number)
            wanted.append(act())
        ended = threading.Event()

        def publish() -> None:
            number = 0
            while not ended.is_set():
                number ^= 1
                bring(number)

        writer = threading.Thread(target=publish)
        writer.start()
        turns, mixed, seen = 0, 0, [0, 0]
        end = time.monotonic() + min(RACE_SECONDS, job.seconds / 3)
        while time.monotonic() < end or turns < RACE_TURNS:
            answer = act()
            turns += 1
            for p in range(3):
                matches = [_distance(answer[p], one[p]) < 1e-3 for one in wanted]
                mixed += not any(matches)
                seen = [n + match for n, match in zip(seen, matches, strict=True)]
        ended.set()
        writer.join()
    return {"turns": turns, "mixed": mixed, "passed": mixed == 0 and min(seen) > 0}


def members(job: Job) -> dict[str, Any]:
    """Replace members by others of the pack and by saved states."""
    taken: dict[str, list[float]] = {"copy": [], "saved": []}
    right = True
    with stand(job, 8) as at, at.pack.streams.learning():
        at.pool.grow(1)
        at.trainer.members.save(Save(0, 0, 0))
        for number in range(1, 15):
            slot, weights = 1 + number % 7, "copy" if number % 2 else "saved"
            source = {"of_slot": 0} if weights == "copy" else {"entry": 0}
            applied = at.trainer.load(Load(slot, slot, number, at.values, donor=0, **source))
            assert applied is not None
            taken[weights].append(applied.milliseconds)
            right &= applied.donor_unchanged
            right &= all(torch.equal(x[0], x[slot]) for x in at.pack.state.values())
    in_pack, between = (statistics.median(taken[weights]) for weights in ("copy", "saved"))
    return {"in a pack ms": in_pack, "between packs ms": between, "passed": right}


# -- speed ----------------------------------------------------------------------------------------------------


def limit(job: Job) -> dict[str, Any]:
    """Step environments on all cores at once, with random actions and nothing else."""
    cores = len(os.sched_getaffinity(0))
    bench = Path(__file__).with_name("bench.py")
    command = [sys.executable, str(bench), "--env", job.env, "--stage", "environment"]
    command += ["--num-policies", "1", "--seconds", str(job.seconds / 4)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    costs = [float(process.communicate()[0].split()[-1]) for process in running]
    return {
        "cores": cores,
        "us a step": statistics.median(costs),
        "steps/s": sum(1e6 / cost for cost in costs),
    }


def turn(job: Job) -> dict[str, Any]:
    """Time turns of 1 to 16 units of 8 policies."""
    found: dict[str, Any] = {}
    with stand(job, 8, actors=16) as at:
        units = list(at.sampler.units)

        def serve() -> None:
            at.sampler.serve()
            while at.shared.full:
                at.shared.free.give(at.shared.full.popleft())

        for number in (1, 2, 4, 8, 16):
            at.sampler.units = units[:number]
            whole, cpu = [], []
            for turns in range(25):
                at.advance()
                milliseconds = timed_once(serve, at.finish)
                if turns >= 5:  # before that, libraries warm up and calls are recorded
                    whole.append(milliseconds[0])
                    cpu.append(milliseconds[1])
            at.advance()
            calls = device_calls(job, serve)
            found[f"{number} units ms"] = statistics.median(whole)
            found[f"{number} units cpu ms"] = statistics.median(cpu)
            found |= {f"{number} units {name}": value for name, value in calls.items()}
        found["rows"] = 16 * at.plan.rows
    return found


def step(job: Job) -> dict[str, Any]:
    """Time learning from a batch of 8 policies as the environment's recipe has it, by the packing that `auto` takes."""
    began = time.perf_counter()
    with stand(job, 8) as at:
        at.fill()
        at.learn()
        at.finish()
        first = time.perf_counter() - began
        config = at.learner._setup.config.learner  # noqa: SLF001 - the recipe's
        whole, cpu = [], []
        for _ in range(4 if job.on_gpu else 1):  # a batch takes many seconds on a CPU
            at.fill()
            milliseconds = timed_once(at.learn, at.finish)
            whole.append(milliseconds[0])
            cpu.append(milliseconds[1])
        at.fill()
        calls = device_calls(job, at.learn)
        steps = config.minibatches * config.epochs
        samples = at.plan.units_per_batch * at.plan.rows * config.rollout
        return {
            "packing": at.pack.packing,
            "ms": min(whole) / steps,
            "cpu ms": min(cpu) / steps,
            "steps/s": samples / min(whole) * 1e3,
            "first batch s": first,
            **{f"{name} a step": value / steps for name, value in calls.items()},
        }
