"""Check correctness and speed of the CUDA path on a machine with a GPU, in nine minutes.

    python scripts/gpu_check.py [--minutes 9] [--quick] [--json FILE] [--keep FOLDER] [--only facts,math,...]
    python scripts/gpu_check.py --device cpu --policies 2      # every stage, no GPU

The script needs pbt_rl with its dependencies, and leaves no files. Each stage runs in a separate process. The most
informative stages are first. --quick takes four minutes and skips the stages with a dash:

      facts      card, cores, cost of a launch and of a replayed graph, page-locking of mailboxes
      limit      steps/s of all cores with the environment only
      train8     a run of 8 policies: fraction of the limit, replays, discards, policy lag, cores, memory
      answers    outputs of replayed inference batches are equal to recomputed outputs, also after edits of members
      replays    weights are equal after optimiser steps with and without CUDA graphs, by packing, core and dtype
      math       actions and learned weights are equal on device and CPU
      races      weights that are published during replayed inference and learning are never mixed
      recording  CUDA graphs, failed recordings and page-locked memory behave as the tests assume
    - step       an optimiser step: time, launches, syncs; time from the start to the first batch
    - turn       inference batches of different size: time, launches, syncs
    - train1, train40, ...   runs of 1, 40, ... policies
    - members    replacements in a pack and from saved states: exactness and milliseconds
    - leak       reserved memory is constant during acting, learning and edits
    - serial     two serial runs with one seed have equal weights
    - two        a run on two devices: all members train evenly; skipped on a machine with one GPU

A stage that takes too long is stopped, and the other stages still run. The exit code is 1 if a stage is wrong, or if a
figure is worse than its limit. A stage for which no time is left does not fail. Shares, replays, ages, discards and
syncs have limits on every GPU. Milliseconds, GiB and steps/s have limits only on machines with 16 cores and an H200 or
a similar card. With --device cpu, figures have no limits. Messages of learners are below the table. Send the last line
with a bug report. The file of --json includes the longest kernels of a step and of inference batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gpu_stages
import numpy as np
import torch
from bench import run_training
from gpu_stages import Job

from pbt_rl.algos.distributions import TanhGaussian
from pbt_rl.learner.cuda import recording as product
from pbt_rl.learner.cuda.host_memory import PageLocks, host_buffer
from pbt_rl.processes.child import CHILD_ENVIRONMENT

TRAIN = "train"
"""Prefix of the names of stages that train. The rest of the name is the number of policies."""
WORTH = ("facts", "limit", f"{TRAIN}8", "answers", "replays", "math", "races", "recording")
"""Stages of --quick, the most informative stages."""
MORE = ("step", "turn", f"{TRAIN}1", f"{TRAIN}40", "members", "leak", "serial", f"{TRAIN}16", "two")
RIGHT = ("answers", "replays", "math", "races", "recording", "members", "leak", "serial", "two")
LEAST_SECONDS = 10.0
"""Minimum time left to start a stage."""
MOST_SECONDS = {"facts": 90.0, "limit": 60.0, "replays": 120.0, "math": 90.0, "serial": 80.0, "two": 120.0}
RESERVED_SECONDS = {"limit": 25, "answers": 15, "replays": 30, "math": 20, "races": 15, "recording": 5}
"""Stage -> seconds that earlier stages must leave for this stage, as measured on two idle cores. All other time is
available to the first stage that needs it."""
STAGE_SECONDS = 75.0
"""Maximum time of a stage that is not in MOST_SECONDS. For stages that train, the training time is added."""
CARDS, CORES = ("H100", "H200", "B200"), 16
"""GPUs, and minimum number of cores, on which all figures have limits."""
ANYWHERE = ("share", "turns replayed", "steps replayed", "discarded", "age", "8 units syncs")
"""Keys of the figures that have limits on every GPU."""
Results = dict[str, dict[str, Any]]
"""Stage -> figures by name."""
THREADS_SECONDS = 5.0


@dataclass(frozen=True)
class Figure:
    """Figure of a stage with its limits. most: True for upper limits, False for lower limits.

    accept: limit beyond which the check fails. For inference batches, steps and learning, this limit is 25 to 50 %
    worse than the figure of an H200 (docs/lab/results/gpu_h200.json). stretch: target.
    """

    name: str
    stage: str
    key: str
    accept: float
    stretch: float
    most: bool = False

    def accepted(self, results: Results) -> bool | None:
        """Return True if the figure is within its limit, and False if it is not or if its stage failed.

        None means that the figure has no limit on this machine, or that its stage did not run.
        """
        if verdict(self.stage, results) in ("left out", "no time"):
            return None
        machine = results.get("machine", {})
        card = str(machine.get("card", ""))
        ours = any(name in card for name in CARDS) and machine["cores"] >= CORES
        if not card or not (self.key in ANYWHERE or ours):
            return None
        value = results[self.stage].get(self.key)
        return value is not None and (value <= self.accept if self.most else value >= self.accept)


FIGURES = (
    Figure("8 policies: share of the limit", "train8", "share", 0.90, 0.95),
    Figure("8 policies: inference batches replayed", "train8", "turns replayed", 0.98, 1),
    Figure("8 policies: optimiser steps replayed", "train8", "steps replayed", 1, 1),
    Figure("8 policies: discarded rollouts", "train8", "discarded", 0, 0, most=True),
    Figure("8 policies: mean age over the plan's most", "train8", "age", 1, 0.9, most=True),
    Figure("8 policies: cores of the learner", "train8", "learner cores", 0.8, 0.3, most=True),
    Figure("8 policies: GPU memory, GiB", "train8", "gpu GiB", 4, 3, most=True),
    Figure("1 policy: share of the limit", "train1", "share", 0.85, 0.95),
    Figure("40 policies: share of the limit", "train40", "share", 0.80, 0.90),
    Figure("40 policies: GPU memory, GiB", "train40", "gpu GiB", 16, 8, most=True),
    Figure("16 policies: share of the limit", "train16", "share", 0.85, 0.95),
    Figure("inference batch of 8 vector envs, 8 policies: ms", "turn", "8 units ms", 3.0, 0.8, most=True),
    Figure(
        "inference batch of 8 vector envs, 8 policies: CPU ms", "turn", "8 units cpu ms", 2.0, 0.4, most=True
    ),
    Figure("inference batch of 8 vector envs, 8 policies: syncs", "turn", "8 units syncs", 1, 1, most=True),
    Figure("optimiser step, 8 policies: ms", "step", "ms", 7.0, 2.0, most=True),
    Figure("optimiser step, 8 policies: CPU ms", "step", "cpu ms", 1.3, 0.15, most=True),
    Figure("learning alone, 8 policies: steps/s", "step", "steps/s", 70_000, 200_000),
    Figure("learner made to first batch learned, s", "step", "first batch s", 10, 6, most=True),
    Figure("replacement in a pack, ms", "members", "in a pack ms", 1, 0.5, most=True),
    Figure("replacement between packs, ms", "members", "between packs ms", 20, 5, most=True),
)


def main() -> int:
    """Run the stages and print a table. Return the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", default="cuda:0")
    add("--env", default="atari/pong")
    add("--only", default="", help="run only these stages, separated by commas")
    add("--minutes", type=float, default=9.0, help="total time limit")
    add("--quick", action="store_true", help="run only the most informative stages, in four minutes")
    add("--seconds", type=float, default=20.0, help="measured time of a run of `train`, once it is steady")
    add("--policies", default="8,1,40,16", help="populations of `train`")
    add("--json", type=Path, help="write all figures to this file")
    add("--keep", default=os.environ.get("GPU_CHECK_KEEP", ""), help="folder for the output of runs")
    add("--stage", help=SUPPRESS)
    arguments = parser.parse_args()
    stages = planned(arguments.policies, quick=arguments.quick)
    only = tuple(filter(None, arguments.only.split(",")))
    unknown = set(only) - set(stages)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))} cannot be used: give some of {', '.join(stages)}")
    if arguments.stage:
        print(json.dumps(one_stage(arguments)))
        return 0
    results: Results = {}
    asked = only or stages
    end = time.monotonic() + 60 * (min(4.0, arguments.minutes) if arguments.quick else arguments.minutes)
    for stage in asked:
        began = time.monotonic()
        seconds = seconds_of(stage, asked, end - began, arguments.seconds)
        if seconds < LEAST_SECONDS:
            results[stage] = {"no time": True}
        else:
            results[stage] = in_process(stage, results, seconds)
        figures = {name: value for name, value in results[stage].items() if not isinstance(value, list)}
        shown = "  ".join(f"{name}={_short(value)}" for name, value in figures.items())
        print(f"[{stage}, {time.monotonic() - began:.0f} s] {shown}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(report(results, asked), indent=2) + "\n")
    lines, good = table(results, asked)
    print("\n".join([*lines, "", last_line(results, asked)]))
    return 0 if good else 1


def planned(policies: str, *, quick: bool) -> tuple[str, ...]:
    """Return the names of the stages in order. policies: numbers of policies of the stages that train."""
    populations = [f"{TRAIN}{number}" for number in policies.split(",")]
    usual = WORTH if quick else (*WORTH, *MORE)
    stages = [s for s in usual if not s.startswith(TRAIN) or s in populations]
    others = [s for s in populations if s not in (*WORTH, *MORE)]
    first = stages.index("limit") + 1
    return (*stages[:first], *others, *stages[first:])


def seconds_of(stage: str, asked: Sequence[str], left: float, training: float) -> float:
    """Return the time limit of a stage in seconds. left: total seconds left. training: seconds of a training run."""
    most = MOST_SECONDS.get(stage, STAGE_SECONDS + stage.startswith(TRAIN) * training)
    later = [other for other in asked[asked.index(stage) + 1 :] if other in WORTH]
    reserved = sum(
        1.5 * training if other.startswith(TRAIN) else RESERVED_SECONDS.get(other, 0) for other in later
    )
    return min(most, max(left - reserved, LEAST_SECONDS), left)


def in_process(stage: str, results: Results, seconds: float = STAGE_SECONDS) -> dict[str, Any]:
    """Run a stage in a separate process. A device fault or a timeout therefore does not affect other stages."""
    limit = results.get("limit", {}).get("steps/s", 0.0)
    environment = os.environ | CHILD_ENVIRONMENT | {"GPU_CHECK_LIMIT": str(limit)}
    command, pipe = [sys.executable, __file__, *sys.argv[1:], "--stage", stage], subprocess.PIPE
    options: dict[str, Any] = {"stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=environment, **options) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")[-1500:]
            return {"passed": False, "error": f"took longer than {seconds:.0f} s\n{said}".strip()}
        finally:  # also ends a run that the stage has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        machine, found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {"passed": False, "error": f"ended with code {process.returncode}: {errors[-1500:]}"}
    results["machine"] = machine
    return dict(found)


def one_stage(arguments: Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a stage in this process. Return facts about the machine, and figures. An exception is the figure `error`."""
    job = Job(
        device=arguments.device,
        env=arguments.env,
        seconds=arguments.seconds,
        policies=tuple(int(number) for number in arguments.policies.split(",")),
        limit=float(os.environ.get("GPU_CHECK_LIMIT", "0")),
        stage=arguments.stage,
        keep=arguments.keep,
    )
    name, populations = arguments.stage, arguments.stage.removeprefix(TRAIN)
    if populations.isdecimal():
        name, job = TRAIN, replace(job, policies=(int(populations),))
    stage: Callable[[Job], dict[str, Any]] = globals().get(name) or getattr(gpu_stages, name)
    machine: dict[str, Any] = {}
    try:
        machine = job.machine()
        return machine, stage(job)
    except Exception:  # noqa: BLE001 - the other stages must still run
        return machine, {"passed": False, "error": traceback.format_exc()[-2500:]}


def verdict(stage: str, results: Results) -> str:
    """Return `right`, `WRONG`, `no time` (no time was left) or `left out` (not possible on this machine)."""
    found = results.get(stage, {"no time": True})
    for said in ("no time", "left out"):
        if said in found:
            return said
    return "right" if found.get("passed", "error" not in found) else "WRONG"


def report(results: Results, asked: Sequence[str]) -> dict[str, Any]:
    """Return verdicts, figures with their limits, and results of stages as JSON types."""
    figures = {
        figure.name: {
            "here": results.get(figure.stage, {}).get(figure.key),
            "accept": figure.accept,
            "stretch": figure.stretch,
            "ok": figure.accepted(results),
        }
        for figure in FIGURES
        if figure.stage in asked
    }
    verdicts = {stage: verdict(stage, results) for stage in asked}
    return {"verdicts": verdicts, "figures": figures, "stages": results}


def table(results: Results, asked: Sequence[str]) -> tuple[list[str], bool]:
    """Return the report as lines, and True if no stage is wrong and no figure is beyond its limit."""
    lines = ["", f"{'correctness':44}{'':>12}"]
    good = True
    for stage in asked:
        found, said = results.get(stage, {}), verdict(stage, results)
        good &= said != "WRONG"
        if stage in RIGHT or said != "right":
            why = f"  ({found['left out']})" if "left out" in found else ""
            lines.append(f"  {stage:42}{said:>12}{why}")
            lines += [f"    {line}" for line in str(found.get("error", "")).splitlines()]
    lines += ["", f"{'speed':44}{'here':>12}{'accept':>12}{'stretch':>12}"]
    for figure in FIGURES:
        if figure.stage not in asked:
            continue
        value, accepted = results.get(figure.stage, {}).get(figure.key), figure.accepted(results)
        sign = "<=" if figure.most else ">="
        said = {None: "", True: "  ok", False: "  MISSED"}[accepted]
        good &= accepted is not False
        limits = f"{f'{sign} {figure.accept:g}':>12}{f'{sign} {figure.stretch:g}':>12}"
        lines.append(f"  {figure.name:42}{'-' if value is None else _short(value):>12}{limits}{said}")
    lines.append(
        "  (the limits are for 16 cores and an H200; figures without a verdict have no limit on this machine)"
    )
    notes = [f"  {stage:10}{results[stage]['said']}" for stage in asked if results.get(stage, {}).get("said")]
    return [*lines, *(["", "said by learners", *notes] if notes else [])], good


def last_line(results: Results, asked: Sequence[str]) -> str:
    """Return a one-line summary for a bug report."""
    facts, found = results.get("machine", {}), report(results, asked)
    machine = f"torch {facts.get('torch')}, {facts.get('card', 'no GPU')}, {facts.get('cores')} cores"
    bad = [f"{stage} {said}" for stage, said in found["verdicts"].items() if said in ("WRONG", "no time")]
    bad += [
        f"{name} {'-' if one['here'] is None else _short(one['here'])} (accept {one['accept']:g})"
        for name, one in found["figures"].items()
        if one["ok"] is False
    ]
    return f"gpu_check: {machine}: {'; '.join(bad) or 'all is right'}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# -- stages of whole runs ----------------------------------------------------------------------------------


def serial(job: Job) -> dict[str, Any]:
    """Train twice in serial mode with one seed, and compare the saved weights."""
    found = []
    with tempfile.TemporaryDirectory() as out:
        for name in ("one", "two"):
            words = (
                f"-m pbt_rl train --env={job.env} --num-policies=2 --devices={job.device} --mode=serial --seed=5 "
                f"--train-for-frames=3000 --out={out} --name={name} --no-figures"
            )
            command = [sys.executable, *words.split()]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise RuntimeError(f"{words} ended with {ran.returncode}:\n{ran.stderr[-1500:]}")
            files = sorted((Path(out) / name / "checkpoints").rglob("*.safetensors"))
            found.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    return {"members": len(found[0]), "passed": bool(found[0]) and found[0] == found[1]}


def train(job: Job) -> dict[str, Any]:
    """Train a population, and measure after all emulators have started."""
    (policies,) = job.policies
    with watched(job) as used:
        keep = Path(job.keep) if job.keep else None
        summary = run_training(job.env, policies, job.seconds, f"--devices={job.device}", keep)
    account = summary["account"]
    rate = account["steps"] / account["seconds"]
    found: dict[str, Any] = {"steps/s": rate} | ({"share": rate / job.limit} if job.limit else {})
    for name, one in summary.get("replayed", {}).items():
        found[f"{name} replayed"] = one["replayed"] / max(1, one["of"])
        found |= {f"{name} not replayed": one["why_not"]} if one["why_not"] else {}
    lag, (_, most) = summary["policy_lag"], summary["planned_age"]
    found |= {"discarded": summary["discarded_rollouts"], "lag mean": lag["mean"], "lag max": lag["max"]}
    found |= {"age": lag["mean"] / max(1, most), "steady after s": summary["start"]["seconds_to_steady_rate"]}
    found |= {"learner cores": account["inference cores"] + account["learning cores"]}
    found |= {name: account[name] for name in ("environment cores", "idle cores", "others cores")}
    return found | used | {"said": "; ".join(summary["warnings"])}


def two(job: Job) -> dict[str, Any]:
    """Train a population on two devices."""
    if job.on_gpu and torch.cuda.device_count() < 2:
        return {"left out": "one GPU"}
    devices, even = ("cuda:0,cuda:1", 0.8) if job.on_gpu else ("cpu,cpu", 0.3)
    env = job.env if job.on_gpu else "toy/memory"  # learning from images takes minutes on a CPU
    policies = max(2, max(job.policies) // 2 * 2)
    with watched(job) as used:
        summary = run_training(env, policies, job.seconds, f"--devices={devices} --pbt.no-enabled")
    frames = [member["frames"] for member in summary["members"]]
    found = {
        "frames/s": summary["frames_per_second"],
        "discarded": summary["discarded_rollouts"],
        "fewest over most frames": min(frames) / max(frames),
    }
    right = min(frames) > even * max(frames) and used.get("GPUs of one process", 0) <= 1
    return found | used | {"passed": right}


@contextmanager
def watched(job: Job) -> Iterator[dict[str, float]]:
    """Yield a dict that gets figures of the `with` block: peak GPU memory, maximum number of GPUs of one process.

    The dict stays empty on a CPU.
    """
    found: dict[str, float] = {}
    ended = threading.Event()
    before = _used(job)  # this process's own context

    def look() -> None:
        while job.on_gpu and not ended.wait(1.0):
            found["gpu GiB"] = max(found.get("gpu GiB", 0.0), _used(job) - before)
            found["GPUs of one process"] = max(found.get("GPUs of one process", 0), _gpus_of_one_process())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _used(job: Job) -> float:
    """Return the used memory of the device in GiB."""
    if not job.on_gpu:
        return 0.0
    free, total = torch.cuda.mem_get_info(job.torch_device)
    return float(total - free) / 2**30


def _gpus_of_one_process() -> int:
    """Return the maximum number of GPUs on which one process has a context. 0 if nvidia-smi fails."""
    question = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    pairs = {tuple(line.split(", ")) for line in asked.stdout.splitlines() if ", " in line}
    return max(Counter(pid for pid, _ in pairs).values(), default=0)


# -- checks of CUDA graphs ---------------------------------------------------------------------------------


def recording(job: Job) -> dict[str, Any]:
    """Check CUDA graphs: replays, refused programs, acting during a recording, broken recordings, memory locks."""
    if not job.on_gpu:
        return {"left out": "no GPU"}
    checks = (replays_as_it_goes, refuses, beside_another_thread, locks_again, mends)
    found = {check.__name__: check(job.torch_device) for check in checks}
    return {**{name: said or "right" for name, said in found.items()}, "passed": not any(found.values())}


def recorded(program: Callable[[], Any], recorder: product.Recorder, *generators: torch.Generator) -> Any:
    """Record a program, which takes three runs. Return a function that replays the program."""
    one = product.Recording(program, generators)
    for _ in range(3):
        one.run(recorder)
    return lambda: one.run(recorder)


def replays_as_it_goes(device: torch.device) -> str:
    """Compare squashed Gaussian samples with and without replay. Return an error, or an empty text.

    Each replay must use new random numbers and the current values of the inputs.
    """
    recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(1)
    assert recorder is not None
    distribution = TanhGaussian((-1.0, 0.0), (1.0, 3.0))
    params, out = torch.zeros(64, 4, device=device), torch.zeros(64, 3, device=device)

    def program() -> None:
        action, log_prob = distribution.sample(params, generator)
        out.copy_(torch.cat((action, (log_prob + distribution.entropy(params)).unsqueeze(1)), 1))

    run = recorded(program, recorder, generator)
    answers = []
    for again in (run, program):
        generator.manual_seed(2)
        params.fill_(0.5)
        again()
        first = out.clone()
        again()
        answers.append(torch.stack((first, out)).cpu())
    if torch.equal(answers[0][0], answers[0][1]):
        return "a replay draws the same numbers as the previous one"
    return "" if torch.allclose(answers[0], answers[1], atol=1e-5) else "a replay computes something else"


def refuses(device: torch.device) -> str:
    """Check that a program that reads a value on the host is refused, and that the next program is recorded.

    Return an error, or an empty text.
    """
    x, y = torch.ones(4, device=device), torch.zeros(4, device=device)
    looks, takes = product.recorder_of(device), product.recorder_of(device)
    assert looks is not None
    assert takes is not None
    try:
        recorded(lambda: y.copy_(x if float(x.sum()) > 0 else -x), looks)
    except product.NotRecordedError:
        run = recorded(lambda: y.copy_(x * 2), takes)
        x.fill_(3.0)
        run()
        answer = y.cpu().tolist()
        return "" if answer == [6.0] * 4 else f"a replay gave {answer}"
    return "a program that reads a value on the host was recorded"


def beside_another_thread(device: torch.device) -> str:
    """Run inference batches while another thread records programs. Return an error, or an empty text.

    Replayed inference batches alternate with inference batches without a CUDA graph.
    """
    acting, learning = torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device)
    ended, said = threading.Event(), []

    def learn() -> None:
        def step() -> None:
            (weight @ weight).tanh().sum().backward()

        try:
            with torch.cuda.stream(learning):
                weight = torch.ones(256, 256, device=device, requires_grad=True)
                weight.grad = torch.zeros_like(weight)
                recorder = product.recorder_of(device)
                assert recorder is not None
                while not ended.is_set():
                    recorded(step, recorder)()
                    learning.synchronize()
        except Exception as error:  # noqa: BLE001 - it is the result
            said.append(f"recording during an inference batch: {error}")

    thread = threading.Thread(target=learn)
    thread.start()
    end = time.monotonic() + THREADS_SECONDS
    try:
        with torch.cuda.stream(acting):
            recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(3)
            assert recorder is not None
            x, out = torch.zeros(1 << 16, device=device), torch.zeros(1 << 16, device=device)
            on_host = host_buffer((1 << 16,), torch.float32, device)

            def act() -> None:
                out.copy_(x + torch.rand(1 << 16, generator=generator, device=device))

            run, turns = recorded(act, recorder, generator), 0
            while time.monotonic() < end and not said:
                turns += 1
                x.copy_(torch.from_numpy(np.full(1 << 16, turns, np.float32)), non_blocking=True)
                (run if turns % 2 else act)()
                if not product.ONE_RANDOM_STATE:
                    out += torch.rand(1, device=device) * 0
                on_host.copy_(out, non_blocking=True)
                event = torch.cuda.Event(blocking=True)
                event.record()
                event.query()
                event.synchronize()
                torch.empty(turns % 50 * 100_000, device=device), host_buffer((turns,), torch.uint8, device)
                if not bool(((on_host >= turns) & (on_host < turns + 1.01)).all()):
                    said.append(f"inference batch {turns} gave other numbers")
    except Exception as error:  # noqa: BLE001 - it is the result
        said.append(f"inference batch during a recording: {error}")
    ended.set()
    thread.join()
    return "; ".join(said)


def mends(device: torch.device) -> str:
    """Check that a program still runs after a `synchronize` in it has broken its recording. Return an error, or ""."""
    recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(4)
    assert recorder is not None
    x, before = torch.ones(4, device=device), torch.cuda.current_stream(device)

    def program() -> None:
        x.add_(torch.rand(4, generator=generator, device=device))
        torch.cuda.current_stream(device).synchronize()

    try:
        recorded(program, recorder, generator)
    except product.NotRecordedError:
        program()
        torch.cuda.empty_cache()
        drawn = torch.rand(4, generator=generator, device=device) + torch.rand(4, device=device)
        wrong = torch.cuda.current_stream(device) != before or not bool((x + drawn > 0).all())
        return "the current stream has changed" if wrong else ""
    return "a program that waits was recorded"


def locks_again(device: torch.device) -> str:
    """Page-lock memory, release it, and page-lock new memory, which is usually at an equal address.

    Return an error, or an empty text.
    """
    size = 1 << 22
    for number in (1, 2, 3):
        memory = mmap.mmap(-1, size)
        locks = PageLocks([memory], device)
        array = np.ndarray((size,), np.uint8, buffer=memory)
        array[:] = number
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        there.copy_(torch.from_numpy(array), non_blocking=True)
        wrong = int((there != number).sum())
        locks.release()
        del array
        memory.close()
        if wrong:
            return f"{wrong} bytes differ in the memory that was locked as number {number}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
