"""Measure the share of an environment's speed that our sampler reaches: one actor process, a policy without cost.

    python scripts/bench.py --sampling [--env atari/pong ...] [--seconds 10] [--rounds 3]

*alone*: the environment as its author wrote it, in one process, with random actions from one table, in a plain loop
(single environments one after the other, engines and vectors by their own call). *sampled*: one actor process
with two units, as in a run, and this process for the sampler: mailboxes, rollouts with frame stacks on the device,
random actions of a policy without a network. Nothing is learned. Both run in turns; given are medians, of the
shares the median of the pairs. *of CPU* is the same share counted in CPU time of the environment's process (and of its
engines'), for machines whose cores are busy with something else: two processes that take turns on one core are slow
whatever they do. It leaves out the sampler, which has a core of its own elsewhere.

DeepMind Lab is stepped alone by as many processes as the actor has rows, each with its Lab in a plain loop. If the
engine is not installed, the stand-in of the tests takes its place, and that is said: its steps cost far less.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Never

import gymnasium
import numpy as np
import psutil
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from pbt_rl.actors.child import CHILD_ENVIRONMENT, Child
from pbt_rl.actors.mailbox import STEPS, Mailbox
from pbt_rl.actors.polling import AdaptivePoller
from pbt_rl.algos.rollout import Rollout
from pbt_rl.algos.weights import Streams
from pbt_rl.config import Config, ModelConfig
from pbt_rl.envs import registry
from pbt_rl.envs.base import EnvSpec, default_shaping_source
from pbt_rl.envs.dmlab.options import DmlabOptions
from pbt_rl.learner.build import build_distribution
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.shared import SharedState
from pbt_rl.options import changed
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.plan import Machine
from pbt_rl.run.resolved import ResolvedRun

FAMILIES = (
    "atari/pong",
    "gym/CartPole-v1",
    "vizdoom/basic",
    "envpool/Pong-v5",
    "envpool/CartPole-v1",
    "envpool/HalfCheetah-v4",
    "sampling_bench:Drift",
    "dmlab/rooms_collect_good_objects",
)
STANDIN = Path(__file__).parents[2] / "tests" / "dmlab_standin"
"""Takes the place of DeepMind Lab where that is not installed."""
WARM_UP_SECONDS = 1.0
TABLE = 257
"""Rows of random actions drawn in advance."""


class Drift(VectorEnv[Any, Any, Any]):
    """A typical vector environment of a user: physics of a few arrays, 64 observed numbers, all rows at once."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-10, 10, (64,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        rng = np.random.default_rng(0)
        self.mix = rng.normal(size=(64, 64)).astype(np.float32) / 8
        self.push = rng.normal(size=(4, 64)).astype(np.float32)
        self.state = np.zeros((num_envs, 64), np.float32)
        self.steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002, D102 - Gymnasium's
        self.state[:] = 0
        self.steps[:] = 0
        return self.state.copy(), {}

    def step(self, actions: Any) -> Any:  # noqa: D102 - Gymnasium's
        starts = self.steps == 200
        for _ in range(5):
            self.state = np.tanh(self.state @ self.mix + self.push[actions])
        self.state[starts] = 0
        self.steps = np.where(starts, 0, self.steps + 1)
        over = self.steps == 200
        return self.state.copy(), self.state[:, 0].astype(np.float64), over & False, over, {}


class RandomPolicy:
    """Stands in for a pack: equal logits for everything, at no cost."""

    def __init__(self, spec: EnvSpec, model: ModelConfig) -> None:
        self.num_policies, self.state_size, self.device = 1, 0, torch.device("cpu")
        self.streams = Streams()
        self._size = build_distribution(spec, model).param_size

    def act(
        self, _obs: Mapping[str, Tensor], state_PBS: Tensor, first_PB: Tensor, _before_each: object
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Pack.act`."""
        return torch.zeros((*first_PB.shape, self._size)), torch.zeros(first_PB.shape), state_PBS


def resolve_run(env: str) -> ResolvedRun:
    """Plan one actor for one policy."""
    config: Config = changed(Config(env=env, num_policies=1, actors=1, devices="cpu"), registry.recipe(env))
    return ResolvedRun.resolve(config, Machine.here())


def alone(env: str, seconds: float) -> tuple[float, float]:
    """Return (steps/s, steps per CPU-second) of the environment alone."""
    if env.startswith("dmlab/"):
        return _raw_labs(env, seconds)
    resolved = resolve_run(env)
    rows = resolved.plan.packs[0].rows
    raw = registry.make_raw(env, resolved.options)
    step: Callable[[int], int]
    if isinstance(raw, gymnasium.Env):
        step, close = _one_by_one(raw)
    elif isinstance(raw, VectorEnv):
        raw.close()
        vector = Drift(rows)
        step, close = _vector(vector, vector.single_action_space, rows)
    else:
        unit = registry.make_unit(env, rows, 0, resolved.options, default_shaping_source(resolved.spec))
        step, close = _engine(unit, resolved.spec, rows)
    done, count = 0, 0
    with contextlib.ExitStack() as stack:
        stack.callback(close)
        end = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < end:
            step(count := count + 1)
        began, cpu = time.perf_counter(), _cpu_seconds(psutil.Process())
        while time.perf_counter() - began < seconds:
            done += step(count := count + 1)
        return done / (time.perf_counter() - began), done / (_cpu_seconds(psutil.Process()) - cpu)


def _one_by_one(env: Any) -> tuple[Callable[[int], int], Callable[[], None]]:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(TABLE)]
    env.reset(seed=0)

    def step(count: int) -> int:
        for i in range(count, count + 64):
            _, _, terminated, truncated, _ = env.step(actions[i % TABLE])
            if terminated or truncated:
                env.reset()
        return 64

    return step, env.close


def _vector(env: Any, space: Any, rows: int) -> tuple[Callable[[int], int], Callable[[], None]]:
    space.seed(0)
    actions = [np.stack([space.sample() for _ in range(rows)]) for _ in range(TABLE)]
    env.reset()

    def step(count: int) -> int:
        env.step(actions[count % TABLE])
        return rows

    return step, env.close


def _engine(unit: Any, spec: EnvSpec, rows: int) -> tuple[Callable[[int], int], Callable[[], None]]:
    """Step engines of many rows by their own call; Doom, which has none, through its unit."""
    from pbt_rl.envs.base import private_step_arrays  # noqa: PLC0415

    engine = getattr(unit, "_engine", None)
    if engine is not None:
        space = getattr(engine, "single_action_space", None)
        return _vector(engine, space, rows)
    rng = np.random.default_rng(0)
    actions = [
        rng.integers(spec.action.nvec, size=(rows, spec.action.components)).astype(np.int32)
        for _ in range(TABLE)
    ]
    out = private_step_arrays(spec, rows)
    unit.reset(out)

    def step(count: int) -> int:
        unit.step(actions[count % TABLE], out)
        return rows

    return step, unit.close


def _raw_labs(env: str, seconds: float) -> tuple[float, float]:
    """Step as many Labs as an actor has rows, in as many processes at once; return as `alone`."""
    resolved = resolve_run(env)
    rows = resolved.plan.packs[0].rows * resolved.plan.packs[0].units_per_actor
    with ThreadPoolExecutor(rows) as threads:
        each = list(threads.map(lambda _row: _apart("lab", env, seconds), range(rows)))
    rate = sum(steps for steps, _ in each)
    return rate, rate / sum(steps / of_cpu for steps, of_cpu in each)


def raw_lab(env: str, seconds: float) -> tuple[float, float]:
    """Return (steps/s, steps per CPU-second) of one Lab in a plain loop, with pictures and words as in training."""
    from pbt_rl.envs.dmlab.row import FRAME_SKIP, load_module  # noqa: PLC0415
    from pbt_rl.envs.dmlab.setup import level_scripts, row_setup  # noqa: PLC0415

    options = resolve_run(env).options.of(DmlabOptions)
    (script,) = level_scripts(env.partition("/")[2], options)
    setup = row_setup(options, {}, 0)
    lab = load_module().Lab(
        script,
        ["RGB_INTERLEAVED", "INSTR"],
        {**setup.config, **setup.of_level.get(script, {})},
        renderer=setup.renderer,
    )
    names = [entry["name"] for entry in lab.action_spec()]
    actions = [np.array([pressed.get(name, 0) for name in names], np.intc) for pressed in setup.actions]
    drawn = np.random.default_rng(0).integers(len(actions), size=TABLE)
    done, episodes = 0, 0
    lab.reset(seed=episodes)
    warm = time.perf_counter() + WARM_UP_SECONDS
    began = cpu = 0.0
    while (now := time.perf_counter()) < warm + seconds:
        if now >= warm and not began:
            began, cpu, done = now, time.process_time(), 0
        lab.step(actions[drawn[done % TABLE]], num_steps=FRAME_SKIP)
        done += 1
        if not lab.is_running():
            lab.reset(seed=(episodes := episodes + 1))
        lab.observations()
    rates = done / (time.perf_counter() - began), done / (time.process_time() - cpu)
    lab.close()
    return rates


def sampled(env: str, seconds: float) -> tuple[float, float]:
    """Return (steps/s through the sampler, steps per CPU-second of the actor and its engines)."""
    resolved = resolve_run(env)
    memory = Memory(resolved, Start.fresh(resolved.plan, resolved.controller().initial(1)))
    with closing(memory):
        (record,), learner = memory.actors, memory.learners[0]
        setup = record.setup
        actor: Child[Never, Never] = Child("pbt_rl.actors.actor", "actor", setup, setup.fds)
        try:
            boxes = [
                (Mailbox(resolved.spec, setup.rows, fd), wake)
                for fd, wake in zip(learner.mailbox_fds, learner.wake_fds, strict=True)
            ]
            policy: Any = RandomPolicy(resolved.spec, resolved.config.model)
            distribution = build_distribution(resolved.spec, resolved.config.model)
            length = resolved.config.learner.rollout
            shared = SharedState.new((0,), (0,))
            sampler = Sampler(
                policy, shared, resolved.spec, boxes, distribution, length, 4, 0, on_policy=False
            )
            listener = AdaptivePoller(learner.ready_fd)
            headers = [box.header for box, _ in boxes]
            process = psutil.Process(actor.pid)
            while not all(header[STEPS] for header in headers):
                _turn(sampler, shared, listener, actor)
            warm = time.perf_counter() + WARM_UP_SECONDS
            while time.perf_counter() < warm:
                _turn(sampler, shared, listener, actor)
            began, before, cpu = time.perf_counter(), _steps(headers), _cpu_seconds(process)
            while time.perf_counter() - began < seconds:
                _turn(sampler, shared, listener, actor)
            steps = _steps(headers) - before
            return steps / (time.perf_counter() - began), steps / (_cpu_seconds(process) - cpu)
        finally:
            actor.end(0)


def _steps(headers: list[Any]) -> int:
    return sum(int(header[STEPS]) for header in headers)


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def _turn(
    sampler: Sampler, shared: SharedState, listener: AdaptivePoller, actor: Child[Never, Never]
) -> None:
    if not sampler.serve():
        ready = listener.wait(5000.0)
        if ready:
            os.eventfd_read(ready[0])
        elif actor.exit_code() is not None:
            raise RuntimeError(actor.how_it_ended())
    while shared.full:
        rollout = shared.full.popleft()
        assert isinstance(rollout, Rollout), "of mailboxes"
        shared.free.give(rollout)
    shared.sampling.take()


def _apart(what: str, env: str, seconds: float) -> list[float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, what, env, str(seconds)]
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | CHILD_ENVIRONMENT | {"PYTHONPATH": paths},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{env}, {what}, failed:\n{done.stderr[-2000:]}")
    numbers: list[float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def compare(envs: tuple[str, ...], seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Print and return the figures of each environment: frames/s alone and sampled, and the shares."""
    results = {}
    if any(env.startswith("dmlab/") for env in envs) and find_spec("deepmind_lab") is None:
        print(
            "deepmind_lab is not installed: dmlab/ is measured on tests/dmlab_standin, which says nothing of it"
        )
        sys.path.append(str(STANDIN))
        paths = [str(STANDIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    print(f"{'environment':<34}{'alone':>12}{'sampled':>12}  frames/s{'share':>8}{'of CPU':>8}")
    for env in envs:
        pairs = [(_apart("alone", env, seconds), _apart("sampled", env, seconds)) for _ in range(rounds)]
        skip = resolve_run(env).spec.frame_skip
        row = {
            "alone_frames_per_second": skip * statistics.median(one[0] for one, _ in pairs),
            "sampled_frames_per_second": skip * statistics.median(many[0] for _, many in pairs),
            "share": statistics.median(many[0] / one[0] for one, many in pairs),
            "share_of_cpu": statistics.median(many[1] / one[1] for one, many in pairs),
        }
        results[env] = row
        print(
            f"{env:<34}{row['alone_frames_per_second']:>12,.0f}{row['sampled_frames_per_second']:>12,.0f}"
            f"{'':>10}{row['share']:>8.2f}{row['share_of_cpu']:>8.2f}",
            flush=True,
        )
    return results


if __name__ == "__main__":
    _, what, env, seconds = sys.argv
    measure = {"alone": alone, "lab": raw_lab, "sampled": sampled}[what]
    print(json.dumps(measure(env, float(seconds))))
