"""Stages of gpu_check.py with a learner in this process.

Each stage is a function from a Job to figures by name. The figure `passed` is False after an error. The other stages,
which train complete runs or check CUDA graphs, are in gpu_check.py.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Pipe
from typing import Any
from unittest import mock

import numpy as np
import torch
from bench import DEFAULT
from bench_beside import together
from gpu_timing import device_calls, timed, timed_once

from pbt_rl.actors.mailbox import OBSERVATIONS, Mailbox
from pbt_rl.actors.messages import Load, Save, SetValues
from pbt_rl.algos.rollout import Rollout
from pbt_rl.config.command import parse_train
from pbt_rl.learner.cuda import recording as product
from pbt_rl.learner.learner import Learner
from pbt_rl.learner.sampler import Sampler
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun

CPU = torch.device("cpu")
RACE_SECONDS, RACE_TURNS = 15.0, 30
STILL_TURNS = 6
"""Number of inference batches with equal observations after which all stacked frames are equal."""
NEAR_ENOUGH = 1e-3
LEAK_SECONDS = 25.0
SEGMENT = 64 << 20
"""Bytes of one allocator segment. `leak` tolerates one new segment after the first third of LEAK_SECONDS."""


@dataclass(frozen=True)
class Job:
    """Arguments of a stage. limit: steps/s that the stage `limit` measured, or 0. keep: folder for output, or ""."""

    device: str
    env: str
    seconds: float
    policies: tuple[int, ...]
    limit: float
    stage: str = ""
    keep: str = ""

    @property
    def torch_device(self) -> torch.device:
        """Device as a torch object."""
        return torch.device(self.device)

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.torch_device.type == "cuda"

    def machine(self) -> dict[str, Any]:
        """Return facts about the machine: torch version, cores, GPU."""
        card = {"card": torch.cuda.get_device_name(self.torch_device)} if self.on_gpu else {}
        return {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))} | card


class Stand:
    """Learner of one pack in this process. `advance` fills the mailboxes. words: options of `pbt-rl train`."""

    def __init__(
        self, job: Job, policies: int, *words: str, device: torch.device | None = None, actors: int = 2
    ) -> None:
        options = [
            f"--env={job.env}",
            f"--num-policies={policies}",
            f"--actors={actors}",
            "--vector-envs-per-actor=1",
        ]
        config = parse_train([*options, "--devices=cpu", "--seed=3", *words])
        resolved = ResolvedRun.resolve(config, Machine(cpus=16, gpus=0))
        (pack,) = resolved.plan.packs
        self.plan = replace(pack, device=str(device or job.device), threads=1)
        resolved = replace(resolved, plan=replace(resolved.plan, packs=(self.plan,)))
        self.values = resolved.controller().initial(policies)[0]
        self._memory = Memory(resolved, Start.fresh(resolved.plan, resolved.controller().initial(policies)))
        self.pool = self._memory.pool
        self._ours, theirs = Pipe()
        self.learner = Learner(self._memory.learners[0], theirs)
        self.said = self._ours.recv().note
        """The learner's note at its start: packing trial, programs that are not replayed, kind of Adam step."""
        assert isinstance(self.learner.sampler, Sampler)
        self.sampler, self.trainer = self.learner.sampler, self.learner.trainer
        self.pack, self.shared = self.learner.pack, self.learner.shared
        self.boxes = [box for record in self._memory.actors for box in record.boxes]
        self._rng = np.random.default_rng(0)

    def advance(self, *, still: bool = False) -> None:
        """Write a random step into each mailbox that waits for a step. still: True to write equal observations."""
        for box in self.boxes:
            if not box.learner_has_turn:
                self._step(box)
                if still:
                    for array in box.step.obs.values():
                        array[:] = 1
                    box.step.first[:] = box.step.terminated[:] = False

    def give_back(self) -> None:
        """Free full rollouts without learning."""
        while self.shared.full:
            rollout = self.shared.full.popleft()
            assert isinstance(rollout, Rollout), "of mailboxes"
            self.shared.free.append(rollout)

    def repeat_steps(self) -> None:
        """Replay the recorded optimiser step of each group once, without a change of weights.

        All slots are excluded from the step, so their weights stay. Do nothing if no optimiser step is recorded.
        """
        if "steps" not in self.learner.acceleration.report():
            return
        updater = self.trainer.updater
        updater.current.begin_batch(np.zeros(self.pack.num_policies, np.bool_))
        with self.pack.streams.learning():
            for steps in updater._steps.values():  # noqa: SLF001 - runs do not need access to it
                steps._step_1.zero_()  # type: ignore[attr-defined] # noqa: SLF001
                steps.run(0)

    def _step(self, box: Mailbox) -> None:
        step, rng = box.step, self._rng
        for array in step.obs.values():
            pixels = array.dtype == np.uint8
            array[:] = rng.integers(0, 256, array.shape) if pixels else rng.normal(size=array.shape)
        step.reward[:] = rng.normal(size=box.rows)
        step.terminated[:] = rng.random(box.rows) < 0.02
        step.truncated[:] = step.episode_done[:] = False
        step.first[:] = (rng.random(box.rows) < 0.02) | (box.header[OBSERVATIONS] == 0)
        box.header[OBSERVATIONS] += 1

    def fill(self) -> list[Any]:
        """Step environments and run inference until a batch is full. Return all actions."""
        actions = []
        while not self.trainer.has_batch:
            self.advance()
            self.sampler.run_inference()
            actions.append(np.concatenate([box.action.ravel() for box in self.boxes]))
        return actions

    def learn(self) -> None:
        """Learn from a batch, as the learning thread of a run does."""
        with self.pack.streams.learning():
            self.trainer.learn()

    def acted(self) -> dict[str, torch.Tensor]:
        """Return the critic's values of the first observations of a batch, on the CPU.

        Later observations are left out, because they depend on actions.
        """
        self.finish()
        full = [one for one in self.learner.shared.full if isinstance(one, Rollout)]
        return {"value": torch.cat([one.value[0].cpu().float() for one in full])}

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of all arrays of the policies, on the CPU."""
        self.finish()
        return {name: x.cpu().clone() for name, x in self.pack.state.items()}

    def finish(self) -> None:
        """Wait until the device has finished its work."""
        if self.pack.device.type == "cuda":
            torch.cuda.synchronize(self.pack.device)

    def close(self) -> None:
        """Release the learner's memory."""
        self.learner.close()
        self._memory.close()


def stand(job: Job, policies: int, *words: str, **options: Any) -> closing[Stand]:
    """Return a context manager that yields a new Stand, and closes the Stand at the end."""
    return closing(Stand(job, policies, *words, **options))


# -- correctness ----------------------------------------------------------------------------------------------


def facts(job: Job) -> dict[str, Any]:
    """Measure the cost of kernel launches, and collect versions and the name of the GPU."""
    found: dict[str, Any] = job.machine() | {"python": sys.version.split()[0]}
    if not job.on_gpu:
        return found
    card, x = torch.cuda.get_device_properties(job.torch_device), torch.zeros(1, device=job.torch_device)

    def launches() -> None:
        for _ in range(200):
            x.add_(1)

    finish = partial(torch.cuda.synchronize, job.torch_device)
    whole, cpu = timed(launches, finish, 20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    replayed, _ = timed(graph.replay, finish, 20)
    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    code = torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)
    return found | {
        "memory GiB": card.total_memory / 2**30,
        "launch us": whole * 5,
        "launch cpu us": cpu * 5,
        "launch in a graph us": replayed * 5,
        "page-locking (0: works)": int(code),
    }


SMALL = ("--learner.rollout=8", "--learner.batch=128", "--learner.epochs=2", "--hypers.unroll=8")
NEAR = {"float32": 1e-4, "bf16": 2e-2}
"""dtype -> maximum relative distance between results of device and CPU, and between outputs and recomputed outputs."""
SAME = {"float32": 1e-5, "bf16": 1e-3}
"""dtype -> maximum relative distance between the weights after learning with replays and without replays."""


def math(job: Job) -> dict[str, Any]:
    """Compare acting and learning on the CPU and on the device, with equal environment steps and random numbers."""
    _exactly()
    found: dict[str, Any] = {"passed": True}
    cases = (("loop", ()), ("vmap", ("--model.core=gru",)), ("bmm", ()), ("streams", ()))
    for precision, (packing, more) in itertools.product(NEAR, cases):
        words = (f"--learner.packing={packing}", f"--learner.precision={precision}", *more)
        actions, acted, states = [], [], []
        for device in (CPU, job.torch_device):
            with (
                one_source_of_chance(),
                stand(job, 2, *words, *SMALL, "--learner.minibatches=2", device=device) as at,
            ):
                actions.append(np.concatenate(at.fill()))
                acted.append(at.acted())
                at.learn()
                states.append(at.state())
                found["passed"] &= steps_are_replayed(at)
        same = float(np.mean(actions[0] == actions[1])) if len(actions[0]) == len(actions[1]) else 0.0
        compared = states[0] if precision == "float32" else {"param"}
        error = max(
            *(_distance(acted[1][name], acted[0][name]) for name in acted[0]),
            *(_distance(states[1][name], states[0][name]) for name in compared),
        )
        name = f"{packing} {precision}"
        found[f"{name} error"], found[f"{name} same actions"] = error, same
        found["passed"] &= error < NEAR[precision] and same > (0.999 if precision == "float32" else 0.9)
    return found


def steps_are_replayed(at: Stand) -> bool:
    """Return True if all optimiser steps are replayed, or if recording is off."""
    replays = at.learner.acceleration.report().get("steps")
    return replays is None or (not replays.why_not and 0 < replays.replayed == replays.of)


LEARNERS = (
    ("loop", "float32", ()),
    ("vmap", "float32", ("--model.core=gru",)),
    ("bmm", "float32", ()),
    ("bmm", "bf16", ()),
    ("streams", "float32", ()),
    ("streams", "bf16", ()),
    ("vmap", "bf16", ("--model.core=lstm", "--learner.returns=vtrace")),
    ("loop", "bf16", ("--model.core=gru",)),
    ("loop", "bf16", ("--algo=unreal",)),
    ("vmap", "float32", ("--algo=fun",)),
)


def replays(job: Job) -> dict[str, Any]:
    """Learn a batch, edit a member, and learn another batch. Compare the weights with and without recorded steps."""
    _exactly()
    found: dict[str, Any] = {"passed": True}
    for packing, precision, more in LEARNERS:
        words = (f"--learner.packing={packing}", f"--learner.precision={precision}", *SMALL, *more)
        own = replace(job, env="toy/treasure") if "--algo=unreal" in more else job
        name = " ".join((packing, precision, *more))
        states = []
        for recorders in (product.RECORDERS, {}):
            with (
                mock.patch.object(product, "RECORDERS", recorders),
                one_source_of_chance(),
                stand(own, 2, *words) as at,
            ):
                at.fill()
                at.learn()
                with at.pack.streams.learning():
                    at.trainer.load(Load(1, 1, 1, at.values | {"entropy_coef": 0.02}, of_slot=0, donor=0))
                at.fill()
                at.learn()
                states.append(at.state()["param"])
                replayed = steps_are_replayed(at)
            if not replayed:
                found["passed"] = False
                found[name] = f"not replayed: {at.learner.acceleration.report()}"
        far = _distance(*states)
        found["passed"] &= far < SAME[precision]
        found.setdefault(name, far)
    return found


def _exactly() -> None:
    """Disable TF32 and enable deterministic cuDNN.

    TF32 has errors of 1e-3, which depend on the number of rows. By default, cuDNN adds gradients in any order. Adam
    divides gradients by their size, and therefore amplifies tiny differences.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


@contextmanager
def one_source_of_chance() -> Iterator[None]:
    """Make `torch.rand` and `torch.randn` use one seeded generator on the CPU, for tensors of all devices."""
    chance = torch.Generator().manual_seed(1)

    def draw(
        make: Callable[..., torch.Tensor],
        *shape: Any,
        device: Any = CPU,
        generator: Any = None,  # noqa: ARG001 - replaced
        **rest: Any,
    ) -> torch.Tensor:
        return make(*shape, generator=chance, **rest).to(device)

    with (
        mock.patch.object(torch, "rand", partial(draw, torch.rand)),
        mock.patch.object(torch, "randn", partial(draw, torch.randn)),
    ):
        yield


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    far = float((a - b).norm() / b.norm().clamp(min=1e-12)) if a.numel() else 0.0
    return far if np.isfinite(far) else float("inf")


def answers(job: Job) -> dict[str, Any]:
    """Run inference batches of changing size, and compare their outputs with recomputed outputs."""
    _exactly()
    found: dict[str, Any] = {"passed": True}
    for precision, packing in itertools.product(NEAR, ("auto", "loop")):
        words = (f"--learner.precision={precision}", f"--learner.packing={packing}", "--model.core=none")
        with stand(job, 3, *words, actors=5) as at:
            error, impossible = _answers(at)
            replayed = at.learner.acceleration.report().get("turns")
            good = replayed is None or (not replayed.why_not and replayed.replayed > 20)
        found[f"{packing} {precision} error"] = error
        found[f"{packing} {precision} actions that differ"] = impossible
        found[f"{packing} {precision} turns"] = "not recorded" if replayed is None else vars(replayed)
        found["passed"] &= error < NEAR[precision] and impossible == 0 and good
    return found


def _answers(at: Stand) -> tuple[float, int]:
    error, impossible = 0.0, 0
    pack, boxes = at.pack, at.boxes
    for number, served in enumerate([5, *(1, 2, 3, 4, 5) * 5]):
        at.boxes = boxes[:served]
        at.advance()
        if number == 10:
            with pack.streams.learning():
                at.trainer.load(Load(1, 1, 1, at.values, of_slot=0, donor=0))
        at.sampler.run_inference()
        at.finish()  # the values below are computed on another stream
        at.give_back()
        for vector_env in at.sampler.vector_envs[:served]:
            t, rollout = vector_env.t - 1, vector_env.rollout
            kept = {name: vector_env.stacks.get(name, obs[t]) for name, obs in rollout.obs.items()}
            obs = {name: rollout.layouts[name].as_seen(x.unflatten(0, (3, -1))) for name, x in kept.items()}
            first = torch.from_numpy(rollout.first[t].reshape(3, -1)).to(pack.device)
            params, value, _ = pack.infer(obs, vector_env.state.unflatten(0, (3, -1)), first)
            action = rollout.action[t].unflatten(0, (3, -1))
            log_prob = at.sampler.distribution.log_prob(params, action)
            error = max(error, _distance(value.flatten(), rollout.value[t]))
            error = max(error, _distance(log_prob.flatten(), rollout.log_prob[t]))
            given = at.sampler.distribution.delivered(action.flatten(0, 1).cpu().numpy())
            impossible += int((given != vector_env.box.action).sum())
    return error, impossible


def races(job: Job) -> dict[str, Any]:
    """Publish two sets of weights alternately during acting. Check that no output mixes the two sets.

    Optimiser steps are replayed at the same time. Inference batches with constant observations alternate with forward
    passes without a CUDA graph.
    """
    with stand(job, 3, "--model.core=none") as at:
        pack, layouts = at.pack, at.sampler._layouts  # noqa: SLF001 - the shapes that the sampler stores
        stored = {n: torch.ones((3, 32, *of.stored[1]), dtype=of.stored[0]) for n, of in layouts.items()}
        obs = {name: layouts[name].as_seen(x.to(pack.device)) for name, x in stored.items()}
        state = torch.zeros((3, 32, pack.state_size), device=pack.device)
        first = torch.zeros((3, 32), dtype=torch.bool, device=pack.device)
        sets = [[pack.fresh_state() for _ in range(3)] for _ in range(2)]
        at.finish()

        def act() -> torch.Tensor:
            with pack.streams.acting():
                return pack.act(obs, state, first)[0].cpu()

        def take_turn() -> torch.Tensor:
            at.advance(still=True)
            at.sampler.run_inference()
            at.give_back()
            vector_env = at.sampler.vector_envs[0]
            with pack.streams.acting():
                values: torch.Tensor = (
                    vector_env.rollout.value[vector_env.t - 1].unflatten(0, (3, -1)).to(CPU, copy=True)
                )
                return values

        def bring(number: int) -> None:
            with pack.streams.learning():
                for slot, one in enumerate(sets[number]):
                    pack.import_member(slot, one)

        ways = (act, take_turn)
        wanted: list[list[torch.Tensor]] = [[], []]
        for number in range(2):
            bring(number)
            at.finish()
            for _ in range(STILL_TURNS):
                take_turn()
            for way, answers_of in zip(ways, wanted, strict=True):
                answers_of.append(way())
        ended = threading.Event()

        def publish() -> None:
            number = 0
            while not ended.is_set():
                number ^= 1
                bring(number)
                at.repeat_steps()

        writer = threading.Thread(target=publish)
        writer.start()
        turns, mixed, seen = 0, 0, [0, 0]
        end = time.monotonic() + min(RACE_SECONDS, job.seconds / 3)
        while time.monotonic() < end or turns < RACE_TURNS:
            answer, known = ways[turns % 2](), wanted[turns % 2]
            turns += 1
            for p in range(3):
                matches = [_distance(answer[p], one[p]) < NEAR_ENOUGH for one in known]
                mixed += not any(matches)
                seen = [n + match for n, match in zip(seen, matches, strict=True)]
        ended.set()
        writer.join()
    return {"turns": turns, "mixed": mixed, "passed": mixed == 0 and min(seen) > 0}


def leak(job: Job) -> dict[str, Any]:
    """Check that acting, learning and edits reserve at most one new allocator segment after a third of LEAK_SECONDS."""
    if not job.on_gpu:
        return {"left out": "no GPU"}
    reserved: list[int] = []
    with stand(job, 8) as at:
        began, edits = time.monotonic(), 0
        while (gone := time.monotonic() - began) < LEAK_SECONDS:
            at.fill()
            at.learn()
            with at.pack.streams.learning():
                edits += 1
                slot = 1 + edits % 7
                if edits % 3 == 0:
                    at.trainer.load(Load(slot, slot, edits, at.values, of_slot=0, donor=0))
                elif edits % 3 == 1:
                    at.trainer.load(Load(slot, slot, edits, at.values, initialised=(slot, edits)))
                else:
                    at.trainer.set_values(SetValues(slot, edits, at.values))
            if gone > LEAK_SECONDS / 3:
                reserved.append(torch.cuda.memory_reserved(job.torch_device))
    more = reserved[-1] - reserved[0]
    found = {"edits": edits, "reserved GiB": reserved[-1] / 2**30, "rise MiB": more / 2**20}
    return found | {"passed": more <= SEGMENT}


def members(job: Job) -> dict[str, Any]:
    """Check and time replacements by members of the same pack, and by saved states."""
    taken: dict[str, list[float]] = {"copy": [], "saved": []}
    right = True
    with stand(job, 8) as at, at.pack.streams.learning():
        assert at.pool is not None
        at.pool.grow(1)
        at.trainer.members.save(Save(0, 0, 0))
        for number in range(1, 15):
            slot, weights = 1 + number % 7, "copy" if number % 2 else "saved"
            load = Load(slot, slot, number, at.values, donor=0)
            source = replace(load, of_slot=0) if weights == "copy" else replace(load, entry=0)
            applied = at.trainer.load(source)
            assert applied is not None
            taken[weights].append(applied.milliseconds)
            right &= applied.donor_unchanged
            right &= all(torch.equal(x[0], x[slot]) for x in at.pack.state.values())
    in_pack, between = (statistics.median(taken[weights]) for weights in ("copy", "saved"))
    return {"in a pack ms": in_pack, "between packs ms": between, "passed": right}


# -- speed ----------------------------------------------------------------------------------------------------


def limit(job: Job) -> dict[str, Any]:
    """Measure environment steps/s of all cores with random actions, without a learner."""
    cores = len(os.sched_getaffinity(0))
    cost = together(job.env, 1, job.seconds / 4, DEFAULT, {"environment": cores})["environment"]
    return {"cores": cores, "us a step": cost, "steps/s": cores * 1e6 / cost}


def turn(job: Job) -> dict[str, Any]:
    """Time inference batches of 1 to 16 vector envs, with 8 policies."""
    found: dict[str, Any] = {}
    with stand(job, 8, actors=16) as at:
        vector_envs = list(at.sampler.vector_envs)

        def serve() -> None:
            at.sampler.run_inference()
            at.give_back()

        for number in (1, 2, 4, 8, 16):
            at.sampler.vector_envs = vector_envs[:number]
            taken = []
            for _ in range(25):
                at.advance()
                taken.append(timed_once(serve, at.finish))
            at.advance()
            calls = device_calls(at.pack.device, serve)
            whole, cpu = zip(*taken[5:], strict=True)  # without warm-up of libraries and recording of calls
            found[f"{number} units ms"] = statistics.median(whole)
            found[f"{number} units cpu ms"] = statistics.median(cpu)
            found |= {f"{number} units {name}": value for name, value in calls.items()}
        found["rows"] = 16 * at.plan.rows
    return found


def step(job: Job) -> dict[str, Any]:
    """Time learning from a batch of 8 policies, with the environment's recipe and automatic packing."""
    began = time.perf_counter()
    with stand(job, 8) as at:
        at.fill()
        at.learn()
        at.finish()
        first = time.perf_counter() - began
        config = at.learner._setup.config.learner  # noqa: SLF001 - of the recipe
        taken = []
        for _ in range(4 if job.on_gpu else 1):  # a batch takes many seconds on a CPU
            at.fill()
            taken.append(timed_once(at.learn, at.finish))
        whole, cpu = map(min, zip(*taken, strict=True))
        at.fill()
        calls = device_calls(at.pack.device, at.learn)
        steps = config.minibatches * config.epochs
        samples = at.plan.vector_envs_per_batch * at.plan.rows * config.rollout
        return {
            "packing": at.pack.packing,
            "said": at.said,
            "ms": whole / steps,
            "cpu ms": cpu / steps,
            "steps/s": samples / whole * 1e3,
            "first batch s": first,
            "longest": calls.pop("longest", []),
            **{f"{name} a step": value / steps for name, value in calls.items()},
        }
