"""Measure speed: each stage alone, all of them together, and (on request) the peers on the same job.

    python scripts/bench.py --env atari/pong [--peer] [--json FILE]
    python scripts/bench.py --sampling [--env ENV]          # see scripts/lab/sampling_bench.py
    python scripts/bench.py --replacements                  # see scripts/lab/replacement_bench.py

Costs are CPU-microseconds per step (one decision of one policy). The limit of a machine is
cores / (environment + inference + learning): what it would reach if no cycle were lost between the stages.
`achieved_over_limit` is how much of it a real run reaches; stages and run are measured side by side, because
shared machines change speed. One epoch, one policy (and four), defaults of the environment otherwise.
`achieved_over_allowed` compares with the stages measured all at once (scripts/bench_beside.py). The table says where
the cores' time went (scripts/bench_account.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from bench_account import follow, lost, table
from bench_beside import go_sign, measure_beside, timed_cpu

from pbt_rl.config import Config, LearnerConfig
from pbt_rl.envs.base import random_within
from pbt_rl.plan import Machine
from pbt_rl.procs.child import CHILD_ENVIRONMENT
from pbt_rl.wire.mailbox import OBSERVATIONS

STAGES = ("environment", "inference", "learning")
LINES: list[Any] = []
"""Our ends of the connections of learners without a supervisor: one that is closed would be heard."""


def bench_config(env: str, num_policies: int) -> Config:
    """Return the job that is measured: the environment's recipe with one epoch and one minibatch, images as they are.

    The peers' jobs do not normalise images either.
    """
    from pbt_rl.envs.registry import recipe  # noqa: PLC0415
    from pbt_rl.options import changed  # noqa: PLC0415 - stages run in fresh processes that import their own

    config: Config = changed(Config(env=env, num_policies=num_policies), recipe(env))
    learner: LearnerConfig = dataclasses.replace(
        config.learner, epochs=1, minibatches=1, normalize_images=False
    )
    return dataclasses.replace(config, learner=learner)


def measure_stage(
    stage: str, env: str, num_policies: int, seconds: float, begins: Callable[[], bool] = lambda: True
) -> float:
    """Measure one stage alone, on one thread, with the planned rows and batch. CPU-microseconds per step.

    begins: see `timed_cpu`.
    """
    from pbt_rl.run.resolved import ResolvedRun  # noqa: PLC0415

    resolved = ResolvedRun.resolve(bench_config(env, num_policies), Machine.here())
    pack_plan = resolved.plan.packs[0]
    rng = np.random.default_rng(0)
    if stage == "environment":
        from pbt_rl.envs.base import cpu_clock, default_shaping_source, private_step_arrays  # noqa: PLC0415
        from pbt_rl.envs.registry import make_unit  # noqa: PLC0415

        unit = make_unit(env, pack_plan.rows, 0, resolved.options, default_shaping_source(resolved.spec))
        out = private_step_arrays(resolved.spec, pack_plan.rows)
        unit.reset(out)
        shape = (pack_plan.rows, resolved.spec.action.components)

        def step_environment() -> int:
            unit.step(_random_actions(resolved.spec, shape, rng), out)
            return pack_plan.rows

        with closing(unit):
            return timed_cpu(step_environment, seconds, cpu_clock(unit), begins)

    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    learner = _idle_learner(resolved)
    sampler, trainer, shared = learner.sampler, learner.trainer, learner.shared
    if stage == "inference":
        turn = inference_turn(sampler, shared, pack_plan.units_per_actor)
        return timed_cpu(turn, seconds, begins=begins)

    rollouts = [shared.free.take() for _ in range(pack_plan.units_per_batch)]
    for rollout in rollouts:
        assert rollout is not None
        _fill(rollout, rng, resolved.spec.action.nvec)

    def step_learning() -> int:
        for rollout in rollouts:
            rollout.weights_version[:] = shared.pack.weights_version
            rollout.weights_epoch[:] = shared.pack.weights_epoch
            shared.full.append(rollout)
        trainer.learn()
        for _ in rollouts:
            shared.free.take()
        return int(pack_plan.units_per_batch * pack_plan.rows * rollouts[0].steps)

    return timed_cpu(step_learning, seconds, begins=begins)


def inference_turn(sampler: Any, shared: Any, units_per_actor: int) -> Callable[[], int]:
    """Return a function that serves one unit of every actor together, and returns the number of steps.

    That is about what a turn of a run serves: an actor steps one of its units at a time.
    """
    turn = sampler.units[::units_per_actor]

    def serve() -> int:
        taken = sum(unit.taken for unit in turn)
        sampler.serve()
        while shared.full:
            shared.free.give(shared.full.popleft())
        return int(sum(unit.taken for unit in turn) - taken) * int(turn[0].box.rows)

    def step() -> int:
        for unit in turn:
            unit.taken = (
                int(unit.box.header[OBSERVATIONS]) - 1
            )  # the step in the mailbox counts as new once more
        return serve()

    for _ in range(2):  # the first step of all is another one, without an action that it follows
        for unit in turn:
            unit.box.header[OBSERVATIONS] += 1
        serve()
    return step


def _random_actions(spec: Any, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    if spec.action.nvec:
        return rng.integers(0, spec.action.nvec, shape).astype(np.int32)
    return random_within(spec.action, shape[0], rng)


def _idle_learner(resolved: Any) -> Any:
    """Return the learner of the plan's first pack, with mailboxes that no actor serves."""
    from multiprocessing.connection import Pipe  # noqa: PLC0415

    from pbt_rl.learner.learner import Learner  # noqa: PLC0415
    from pbt_rl.run.memory import Memory, Start  # noqa: PLC0415

    values = resolved.controller().initial(resolved.config.num_policies)
    memory = Memory(resolved, Start.fresh(resolved.plan, values))
    for record in memory.actors:
        for box in record.boxes:
            arrays = [*box.step.obs.values(), *vars(box.step).values()]
            for array in arrays:
                if isinstance(array, np.ndarray):  # some exist for some environments only
                    array.fill(0)
    ours, theirs = Pipe()
    LINES.append(ours)
    return Learner(memory.learners[0], theirs)


def _fill(rollout: Any, rng: np.random.Generator, nvec: tuple[int, ...]) -> None:
    import torch  # noqa: PLC0415

    for obs in rollout.obs.values():
        if obs.dtype.is_floating_point:
            obs.copy_(torch.from_numpy(rng.normal(size=tuple(obs.shape)).astype(np.float32)))
        else:
            obs.random_(0, 256 if obs.dtype == torch.uint8 else 2**31)
    rollout.action.fill_(0)
    for component, size in enumerate(nvec):
        rollout.action[..., component].random_(0, size)
    rollout.log_prob.fill_(-1.8)
    rollout.value.zero_()
    rollout.state.zero_()
    rollout.reward[:] = rng.normal(size=rollout.reward.shape)
    rollout.terminated[:] = rng.random(rollout.reward.shape) < 0.01
    rollout.truncated[:] = False
    rollout.first[:] = False


def stage_in_process(stage: str, env: str, num_policies: int, seconds: float) -> float:
    """Run `measure_stage` in a fresh process with the learners' environment variables."""
    command = [sys.executable, __file__, "--env", env, "--stage", stage]
    command += ["--num-policies", str(num_policies), "--seconds", str(seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | CHILD_ENVIRONMENT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"stage {stage} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


def run_training(
    env: str,
    num_policies: int,
    seconds: float,
    watch: Callable[[int], dict[str, float]] = lambda _: {},
) -> dict[str, Any]:
    """Train for some seconds, with a comparison every 20,000 frames of a member; return the run's summary.

    watch: called with the process id of the run while it trains; what it finds is "watched" of the summary.
    """
    folder = tempfile.mkdtemp(prefix="pbt_rl-bench-")
    command = [sys.executable, "-m", "pbt_rl", "train", "--env", env, "--num-policies", str(num_policies)]
    command += ["--out", folder, "--name", "bench", "--train-for-seconds", str(seconds)]
    command += ["--train-for-frames", str(10**12), "--learner.epochs", "1", "--learner.minibatches", "1"]
    command += ["--learner.no-normalize-images"]
    command += ["--pbt.start-frames=20000", "--pbt.period-frames=20000", "--pbt.min-episodes=1"]
    printed = Path(folder) / "printed.txt"
    try:
        with (
            printed.open("w") as log,
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as run,
        ):
            watched = watch(run.pid)
        if run.returncode:
            raise RuntimeError(f"the run failed:\n{printed.read_text()[-4000:]}")
        summary: dict[str, Any] = json.loads((Path(folder) / "bench/summary.json").read_text())
        events = (Path(folder) / "bench/journal.jsonl").read_text().splitlines()
        applied = [e for e in map(json.loads, events) if e["event"] == "applied" and e["donor"] is not None]
        waits = sorted(e["decision_to_applied_milliseconds"] for e in applied)
        summary["decision_to_weights_milliseconds"] = statistics.median(waits) if waits else None
        return summary | {"watched": watched}
    finally:
        shutil.rmtree(folder)


def measure(env: str, num_policies: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure stages and run side by side, `rounds` times; return medians. Prints the account of each run."""
    cores, frame_skip = Machine.here().cpus, _frame_skip(env)
    summary: dict[str, Any] = {}
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        alone = {stage: stage_in_process(stage, env, num_policies, seconds / 8) for stage in STAGES}
        beside = measure_beside(env, num_policies, seconds / 8, alone, cores)
        summary = run_training(env, num_policies, seconds, watch=lambda pid: follow(pid, seconds, cores))
        rate = summary["frames_per_second"]
        limit, allowed = (cores / sum(costs.values()) * 1e6 * frame_skip for costs in (alone, beside))
        found.append(
            {f"{stage}_microseconds": cost for stage, cost in alone.items()}
            | {f"{stage}_microseconds_beside": cost for stage, cost in beside.items()}
            | {"limit_frames_per_second": limit, "allowed_frames_per_second": allowed}
            | {"frames_per_second": rate, "achieved_over_limit": rate / limit}
            | {"achieved_over_allowed": rate / allowed}
            | summary["watched"]
            | lost(summary["watched"], alone, cores)
        )
        print("\n".join(table(summary["watched"], alone, beside, cores)), flush=True)
    return {
        "cores": cores,
        **{name: statistics.median(one[name] for one in found) for name in found[0]},
        "replacements": summary["replacements"],
        "replacement_milliseconds": summary["replacement_milliseconds"],
        "decision_to_weights_milliseconds": summary["decision_to_weights_milliseconds"],
        "policy_lag": summary["policy_lag"],
    }


def compare_with_peers(seconds: float, rounds: int) -> dict[str, float]:
    """Run the peers on the same job, `rounds` times; return medians. Prints each round; keys as the docs name them."""
    results: dict[str, float] = {}
    for name, num_policies in (("one_policy", 1), ("four_policies", 4)):
        found = [_beside_peers(name, num_policies, seconds) for _ in range(rounds)]
        results |= {key: statistics.median(one[key] for one in found) for key in found[0]}
    print("peers, medians:", json.dumps(results, indent=2), flush=True)
    return results


def _beside_peers(name: str, num_policies: int, seconds: float) -> dict[str, float]:
    """Run the peers between two runs of ours, of which the mean counts: no drift of the machine favours anyone."""
    from peer_bench import run_sample_factory, run_sync_loop  # noqa: PLC0415 - needed with --peer only

    def ours() -> float:
        return float(run_training("atari/pong", num_policies, seconds)["frames_per_second"])

    before = ours()
    peers = {
        "peer": run_sample_factory(num_policies, "atari", seconds=seconds),
        "peer_envpool": run_sample_factory(num_policies, "envpool", seconds=seconds),
    }
    if num_policies == 1:
        peers["sync_loop"] = run_sync_loop("bf16", seconds=seconds)
    mean = (before + ours()) / 2
    results = {f"frames_per_second_{name}": mean}
    for peer, job in peers.items():
        results[f"{peer}_frames_per_second_{name}"] = job.frames_per_second
        results[f"{peer}_ratio_{name}"] = mean / job.frames_per_second
    print(json.dumps(results), flush=True)
    return results


def _frame_skip(env: str) -> int:
    from pbt_rl.envs.registry import EnvOptions, probe  # noqa: PLC0415

    return probe(env, EnvOptions()).frame_skip


def main() -> None:
    """Print the figures; with --json also write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default=None, help="default: atari/pong; with --sampling one of each family")
    parser.add_argument(
        "--sampling", action="store_true", help="the environment alone against our sampler without learning"
    )
    parser.add_argument(
        "--replacements", action="store_true", help="how long replacements take (default: of atari/breakout)"
    )
    parser.add_argument(
        "--peer", action="store_true", help="also run the peers (Atari Pong only), in venvs of their own"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one run")
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of measurements, of which medians are printed"
    )
    parser.add_argument(
        "--num-policies", type=int, default=0, help="only this population (default: one and four)"
    )
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).with_name("lab")))  # of the three benches below
    if arguments.stage:
        begins = go_sign() if arguments.beside else lambda: True
        env, num_policies = arguments.env or "atari/pong", arguments.num_policies or 1
        print(measure_stage(arguments.stage, env, num_policies, arguments.seconds, begins))
        return
    if arguments.sampling:
        from sampling_bench import FAMILIES, compare  # noqa: PLC0415 - needed with --sampling only

        envs = (arguments.env,) if arguments.env else FAMILIES
        figures = compare(envs, min(arguments.seconds, 10.0), arguments.rounds)
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
        return
    if arguments.replacements:
        from replacement_bench import replacements  # noqa: PLC0415 - needed with --replacements only

        figures = replacements(arguments.env or "atari/breakout", arguments.seconds)
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
        return
    arguments.env = arguments.env or "atari/pong"
    populations = [arguments.num_policies] if arguments.num_policies else [1, 4]
    results: dict[str, Any] = {"env": arguments.env}
    for num_policies in populations:
        figures = measure(arguments.env, num_policies, arguments.seconds, arguments.rounds)
        results[f"policies_{num_policies}"] = figures
        print(f"{arguments.env}, {num_policies} policies:", json.dumps(figures, indent=2), flush=True)
    results["achieved_over_limit"] = results[f"policies_{populations[0]}"]["achieved_over_limit"]
    print(f"achieved_over_limit: {results['achieved_over_limit']:.3f}")
    if arguments.peer:
        if arguments.env != "atari/pong":
            parser.error(f"--peer compares on atari/pong only, not on {arguments.env}")
        results |= compare_with_peers(arguments.seconds, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
