"""Measure speed: each stage alone, all stages in a run, and (with --peer) Sample Factory on the same job.

    python scripts/bench.py --env atari/pong [--peer] [--json FILE]
    python scripts/bench.py --replacements                  # see scripts/lab/replacement_bench.py
    python scripts/bench.py --env ENV --raw                 # the vector env and a bare loop, see scripts/bench_raw.py
    python scripts/bench.py --job default                   # only the job with default options

The stages are environment, inference and learning. Their costs are CPU-microseconds per step (one action of one
policy). Results:

- limit: cores / (sum of the costs), the speed of the machine without any loss between the stages.
- `achieved_over_limit`: speed of a real run / limit.
- `achieved_over_allowed`: speed of a real run / limit with costs measured in parallel (scripts/bench_beside.py).
- a table with the use of the cores (scripts/bench_account.py).

Two jobs are measured, each with one policy and with four policies. "default" has default options. "one-epoch" makes one
pass over each batch, like the job of the peers (Sample Factory).
The measurement of a run begins when all rows of all vector envs have started and an update was made. The time before
is reported separately. Because shared machines change their speed, a round measures the stages before and after the
run. If the costs of the stages have changed by more than 25 %, the round is discarded and repeated. The program fails
if a run is not steady, or if the table does not add up to the cores of the machine.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench_account import START_SECONDS, Watch, lost, table
from bench_beside import MORE_THAN_CORES, go_sign, shares, timed_cpu, together
from bench_raw import BUILT_IN, beside_raw, random_actions

from pbt_rl.actors.mailbox import OBSERVATIONS
from pbt_rl.config.command import parse_train
from pbt_rl.envs.base import cpu_clock, default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import make_vector_env
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun

STAGES = ("environment", "inference", "learning")
MOST_DRIFT = 0.25
"""Tolerated relative change of the stages' costs within a round."""
MOST_OTHERS = 0.05
"""Tolerated fraction of the cores that processes outside the run use."""
RAW_SECONDS, RAW_PAIRS = 2.0, 9
"""With --raw: maximum duration of a measurement, and number of measurements of each loop."""
LINES: list[Any] = []
"""Connections to learners. This list keeps the connections open, because a learner ends if its connection is closed."""


ONE_EPOCH, DEFAULT = "one-epoch", "default"
JOBS: Mapping[str, str] = {
    ONE_EPOCH: (
        "--learner.epochs 1 --learner.minibatches 1 --learner.no-normalize-images "
        "--pbt.start-frames 20000 --pbt.period-frames 20000 --pbt.min-episodes 1"
    ),
    DEFAULT: "",
}
"""Job -> options. With one epoch, images are not normalised, because peers do not normalise them."""


def job_options(env: str, num_policies: int, job: str) -> list[str]:
    """Return the options of `train` for a job."""
    return ["--env", env, "--num-policies", str(num_policies), *JOBS[job].split()]


def measure_stage(
    stage: str,
    env: str,
    num_policies: int,
    seconds: float,
    job: str = ONE_EPOCH,
    begins: Callable[[], bool] = lambda: True,
) -> float:
    """Return the CPU-microseconds per step of one stage on one thread. Rows, batch and epochs are as in a run.

    begins: see `timed_cpu`.
    """
    resolved = ResolvedRun.resolve(parse_train(job_options(env, num_policies, job)), Machine.here())
    pack_plan = replace(resolved.plan.packs[0], threads=1, parts=1)
    resolved = replace(resolved, plan=replace(resolved.plan, packs=(pack_plan, *resolved.plan.packs[1:])))
    rng = np.random.default_rng(0)
    if stage == "environment":
        vector_env = make_vector_env(
            env, pack_plan.rows, 0, resolved.options, default_shaping_source(resolved.spec)
        )
        out = private_step_arrays(resolved.spec, pack_plan.rows)
        vector_env.reset(out)
        shape = (pack_plan.rows, resolved.spec.action.components)

        def step_environment() -> int:
            vector_env.step(random_actions(resolved.spec, shape, rng), out)
            return pack_plan.rows

        with closing(vector_env):
            return timed_cpu(step_environment, seconds, cpu_clock(vector_env), begins)

    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    learner = _idle_learner(resolved)
    sampler, trainer, shared = learner.sampler, learner.trainer, learner.shared
    if stage == "inference":
        batch = inference_batch(sampler, shared, pack_plan.vector_envs_per_actor)
        return timed_cpu(batch, seconds, begins=begins)

    rollouts = [shared.free.popleft() for _ in range(pack_plan.vector_envs_per_batch)]
    for rollout in rollouts:
        assert rollout is not None
        _fill(rollout, rng, resolved.spec.action.nvec)

    def step_learning() -> int:
        for rollout in rollouts:
            rollout.weights_version[:] = shared.pack.weights_version
            rollout.lineage_version[:] = shared.pack.lineage_version
            shared.full.append(rollout)
        trainer.learn()
        for _ in rollouts:
            shared.free.popleft()
        return int(pack_plan.vector_envs_per_batch * pack_plan.rows * rollouts[0].steps)

    return timed_cpu(step_learning, seconds, begins=begins)


def inference_batch(sampler: Any, shared: Any, vector_envs_per_actor: int) -> Callable[[], int]:
    """Return a function that runs an inference batch and returns the number of steps in this batch.

    The batch contains one vector env of each actor. Inference batches of a run have about this size, because an actor
    steps one of its vector envs at a time.
    """
    batch = sampler.vector_envs[::vector_envs_per_actor]

    def serve() -> int:
        taken = sum(vector_env.taken for vector_env in batch)
        sampler.run_inference()
        while shared.full:
            shared.free.append(shared.full.popleft())
        return int(sum(vector_env.taken for vector_env in batch) - taken) * int(batch[0].box.rows)

    def step() -> int:
        for vector_env in batch:
            vector_env.taken = int(vector_env.box.header[OBSERVATIONS]) - 1  # so that the step counts as new
        return serve()

    for _ in range(2):  # the first step differs, because it has no previous action
        for vector_env in batch:
            vector_env.box.header[OBSERVATIONS] += 1
        serve()
    return step


def _idle_learner(resolved: Any) -> Any:
    """Create the learner of the plan's first pack, with mailboxes but no actors."""
    from pbt_rl.learner.learner import Learner  # noqa: PLC0415 - loads torch

    values = resolved.controller().initial(resolved.config.num_policies)
    memory = Memory(resolved, Start.fresh(resolved.plan, values))
    for box in [box for record in memory.actors for box in record.boxes]:
        for array in [*box.step.obs.values(), *vars(box.step).values()]:
            if isinstance(array, np.ndarray):  # others are None, depending on the environment
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


def run_training(
    env: str, num_policies: int, seconds: float, job: str = JOBS[ONE_EPOCH], keep: Path | None = None
) -> dict[str, Any]:
    """Train until `seconds` of a steady run are measured. Return the run's summary with additional entries.

    Additional entries: "frames_per_second", "account" (see bench_account.py), "start" (see `start_figures`) and
    "planned_age" (minimum and maximum rollout age in the plan).
    job: additional options. "" for the default options. keep: folder for the output of run and learners.
    Raises RuntimeError if the run fails or is not steady, or if the account of the cores is wrong.
    """
    folder = Path(tempfile.mkdtemp(prefix="pbt_rl-bench-"))
    options = (
        f"--env {env} --num-policies {num_policies} --out {folder} --name bench --no-figures "
        f"--train-for-frames {10**12} --train-for-seconds {2 * START_SECONDS + seconds} {job}"
    ).split()
    resolved = ResolvedRun.resolve(parse_train(options), Machine.here())
    vector_envs, rows = sum(pack.vector_envs for pack in resolved.plan.packs), resolved.plan.packs[0].rows
    command = [sys.executable, "-m", "pbt_rl", "train", *options]
    printed, run_folder = folder / "printed.txt", folder / "bench"
    began = time.time()
    try:
        with printed.open("w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as run:
            try:
                watch = Watch(run.pid, resolved.spec, vector_envs, rows, run_folder)
                figures = watch.follow(seconds, Machine.here().cpus)
            except (RuntimeError, psutil.Error) as error:
                raise RuntimeError(f"{error}\n{printed.read_text()[-4000:]}") from None
            finally:
                run.terminate()  # not SIGINT, because scripts ignore it for background jobs
        summary: dict[str, Any] = json.loads((run_folder / "summary.json").read_text())
        events = [json.loads(line) for line in (run_folder / "journal.jsonl").read_text().splitlines()]
        applied = [e for e in events if e["event"] == "applied" and e["donor"] is not None]
        waits = sorted(e["decision_to_applied_milliseconds"] for e in applied)
        summary["decision_to_weights_milliseconds"] = statistics.median(waits) if waits else None
        rate = figures["steps"] / figures["seconds"] * resolved.spec.frame_skip
        start = start_figures(events, began, watch, rate)
        measured = {"frames_per_second": rate, "account": figures, "start": start}
        return summary | measured | {"planned_age": resolved.plan.rollout_age}
    finally:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for path in (printed, *run_folder.glob("logs/learner*")):
                shutil.copy(path, keep / f"{num_policies}_{path.name}")
        shutil.rmtree(folder)


def start_figures(
    events: Sequence[Mapping[str, Any]], began: float, watch: Watch, rate: float
) -> dict[str, float]:
    """Return the seconds to the first update and to the steady rate, and the frames lost until then.

    Lost frames: frames that a run would have with `rate` frames/s from its start, minus the frames of this run. Both
    are counted at the first progress event of the steady run.
    events: events of the journal. began: start of the run, in seconds since the epoch.
    """
    first = next(e for e in events if e["event"] == "progress" and e["time"] >= watch.steady)
    return {
        "seconds_to_first_update": watch.updated - began,
        "seconds_to_steady_rate": watch.steady - began,
        "frames_lost_until_then": rate * (first["time"] - began) - sum(m["frames"] for m in first["members"]),
    }


def measure(env: str, num_policies: int, seconds: float, rounds: int, job: str) -> dict[str, Any]:
    """Measure the stages, a run, and again the stages, `rounds` times. Return medians.

    Figures about replacements and policy lag are from the last run. A table of the cores' use is printed for each run
    (`bench_account.table`).
    """
    cores = Machine.here().cpus
    summary: dict[str, Any] = {}

    def stages() -> tuple[Mapping[str, float], Mapping[str, float]]:
        measured = env, num_policies, seconds / 8, job
        alone = {stage: together(*measured, {stage: 1})[stage] for stage in STAGES}
        return alone, together(*measured, shares(alone, cores + MORE_THAN_CORES))

    def one_round() -> dict[str, float]:
        before = stages()
        summary.update(run_training(env, num_policies, seconds, JOBS[job]))
        after = stages()
        alone, beside = (
            {stage: (one[stage] + other[stage]) / 2 for stage in STAGES}
            for one, other in zip(before, after, strict=True)
        )
        rate, figures = summary["frames_per_second"], summary["account"]
        frames_of_a_step = rate / figures["steps"] * figures["seconds"]
        limit, allowed = (cores / sum(costs.values()) * 1e6 * frames_of_a_step for costs in (alone, beside))
        print("\n".join(table(figures, alone, beside, cores)), flush=True)
        measured: dict[str, float] = (
            {f"{stage}_microseconds": cost for stage, cost in alone.items()}
            | {f"{stage}_microseconds_beside": cost for stage, cost in beside.items()}
            | {"limit_frames_per_second": limit, "achieved_over_limit": rate / limit}
            | {"allowed_frames_per_second": allowed, "achieved_over_allowed": rate / allowed}
            | {"frames_per_second": rate, "drift": sum(after[0].values()) / sum(before[0].values()) - 1}
            | summary["start"]
            | figures
            | lost(figures, alone, cores)
            | {"others": figures["others cores"] / cores}
        )
        return measured

    found = steady(one_round, rounds)
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    of_the_last = (
        "replacements",
        "replacement_milliseconds",
        "decision_to_weights_milliseconds",
        "policy_lag",
    )
    return {"cores": cores} | medians | {name: summary[name] for name in of_the_last}


def steady(one_round: Callable[[], dict[str, float]], rounds: int) -> list[dict[str, float]]:
    """Return the figures of `rounds` undisturbed rounds. Disturbed rounds are repeated.

    Figures of a round that show a disturbance:

    - "drift": relative increase of the stages' costs from the start of the round to its end
    - "dearer than alone": see `lost`. A value below 0 shows that the cores were faster during the run than before and
      after it.
    - "others": fraction of the cores that other programs use

    Raises RuntimeError if no round is undisturbed.
    """
    found: list[dict[str, float]] = []
    left_out: list[str] = []
    while len(found) < rounds and len(left_out) < 2 * rounds:
        one = one_round()
        others, run = one.get("others", 0.0), one.get("dearer than alone", 0.0)
        if abs(one["drift"]) <= MOST_DRIFT and run >= -MOST_DRIFT / 2 and others <= MOST_OTHERS:
            found.append(one)
            continue
        left_out.append(f"{one['drift']:+.0%} longer at its end, {run:+.0%} in the run, others {others:.0%}")
        print(f"this round is discarded, because the same work took {left_out[-1]}", flush=True)
    if not found:
        raise RuntimeError(
            f"other programs disturbed the measurement in each of {len(left_out)} rounds: the same work took "
            f"{'; '.join(left_out)}; repeat it on an idle machine"
        )
    return found


def compare_with_peers(seconds: float, rounds: int) -> dict[str, Any]:
    """Run Sample Factory and pbt_rl on the same job, `rounds` times. Print and return the frames/s of each round."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    peers = {str(n): steady(partial(_beside_peers, n, seconds), rounds) for n in (1, 4)}
    return {"date": str(datetime.now(UTC).date()), "commit": commit, "peers": peers}


def _beside_peers(num_policies: int, seconds: float) -> dict[str, float]:
    """Run the peers between two runs of pbt_rl. The mean of the two runs cancels a change of the machine's speed.

    A third run of pbt_rl ("as_typed") has default options. (Atari's recipe has four epochs of four minibatches.)
    """
    from peer_bench import run_sample_factory  # noqa: PLC0415 - needed with --peer only

    def ours() -> float:
        return float(run_training("atari/pong", num_policies, seconds)["frames_per_second"])

    before = ours()
    peers = {
        "sample_factory": run_sample_factory(num_policies, "atari", seconds),
        "envpool": run_sample_factory(num_policies, "envpool", seconds),
    }
    typed = float(run_training("atari/pong", num_policies, seconds, JOBS[DEFAULT])["frames_per_second"])
    after = ours()
    results = {"pbt_rl": (before + after) / 2, **peers, "as_typed": typed, "drift": before / after - 1}
    print(num_policies, json.dumps(results), flush=True)
    return results


def main() -> None:
    """Print the figures. With --json, write the figures to a file."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--env", default=None, help="default: atari/pong")
    add("--replacements", action="store_true", help="measure the duration of replacements (atari/breakout)")
    add("--peer", action="store_true", help="also run Sample Factory (Atari Pong only), in a separate venv")
    add(
        "--raw",
        nargs="?",
        const=BUILT_IN,
        help="the vector env beside its raw engine; MODULE:FACTORY makes another one",
    )
    add("--rows", type=int, default=8, help="rows of the vector env, with --raw")
    add("--json", type=Path, help="write all figures to this file")
    add("--seconds", type=float, default=60.0, help="duration of a measurement, once the run is steady")
    add("--rounds", type=int, default=3, help="number of measurements; their medians are printed")
    add("--num-policies", type=int, default=0, help="only this population size (default: one and four)")
    add("--job", choices=JOBS, help="only this job (default: both)")
    add("--stage", choices=STAGES, help=SUPPRESS)
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).with_name("lab")))  # folder of peer_bench and replacement_bench
    if arguments.stage:
        env, num_policies = arguments.env or "atari/pong", arguments.num_policies or 1
        job = arguments.job or ONE_EPOCH
        print(measure_stage(arguments.stage, env, num_policies, arguments.seconds, job, go_sign()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends child processes
    try:
        figures = _measured(parser, arguments)
    except RuntimeError as error:
        sys.exit(f"no figures: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def _measured(parser: ArgumentParser, arguments: Namespace) -> dict[str, Any]:
    """Measure, print and return the requested figures."""
    if arguments.replacements:
        from replacement_bench import replacements  # noqa: PLC0415 - needed with --replacements only

        return dict(replacements(arguments.env or "atari/breakout", arguments.seconds))
    env = arguments.env or "atari/pong"
    if arguments.raw:
        return beside_raw(env, arguments.raw, arguments.rows, min(arguments.seconds, RAW_SECONDS), RAW_PAIRS)
    if arguments.peer and env != "atari/pong":
        parser.error(f"--peer compares on atari/pong only, not on {env}")
    results: dict[str, Any] = {"env": env}
    populations = [arguments.num_policies] if arguments.num_policies else [1, 4]
    for job in [arguments.job] if arguments.job else JOBS:
        results[job] = {}
        for num_policies in populations:
            print(f"{env}, {num_policies} policies, job {job}:", flush=True)
            figures = measure(env, num_policies, arguments.seconds, arguments.rounds, job)
            results[job][f"policies_{num_policies}"] = figures
            print(json.dumps(figures, indent=2), flush=True)
    for job, sizes in results.items():
        for size, figures in sizes.items() if job in JOBS else ():
            print(f"{job}, {size}: achieved_over_limit {figures['achieved_over_limit']:.3f}")
    if arguments.peer:
        results |= compare_with_peers(arguments.seconds, arguments.rounds)
    return results


if __name__ == "__main__":
    main()
