"""On a machine with a GPU: is the CUDA path right, and then how fast against its limits. In less than ten minutes.

    python scripts/gpu_check.py [--json FILE] [--only facts,math,...] [--seconds 40] [--policies 1,8,16,40]
    python scripts/gpu_check.py --device cpu --seconds 8 --policies 2      # every stage, no GPU: 5 minutes on 2 cores

It needs the product and its dependencies, and leaves nothing behind. Stages, each in a process of its own:

    facts     card, cores, cost of a launch and of a replayed graph, whether mailboxes can be page-locked
    math      actions and learned weights of the device against the CPU's, float32
    answers   what recorded turns wrote against the same computed anew by the weights that acted
    recording what the tests assume of CUDA graphs, of recordings that fail, and of locked memory
    races     weights that are published while acting are never mixed
    members   replacements in a pack and by saved states: bit for bit, and in milliseconds
    serial    two serial runs of one seed: the same weights
    limit     steps/s of all cores by the environment alone
    turn      a sampler's turn by the number of units: time, launches, syncs
    step      an optimiser step: time, launches, syncs; from nothing to the first batch learned from
    train     whole runs: share of the limit, discarded rollouts, lag, cores of the learner, GPU memory
    two       a run on two devices: all members train evenly; left out on a machine with one GPU

Correctness comes first: speed means nothing where a stage before `limit` fails. The exit code is 1 if one did, or if an
accepted figure is missed; --device cpu compares no speed, for the figures are those of 16 cores and an H200.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAGES = (
    "facts",
    "math",
    "answers",
    "recording",
    "races",
    "members",
    "serial",
    "limit",
    "turn",
    "step",
    "train",
    "two",
)
RIGHT = ("math", "answers", "recording", "races", "members", "serial", "two")
STAGE_SECONDS = 280.0


@dataclass(frozen=True)
class Figure:
    """A speed and its limits. most: the accepted value is the largest, not the least."""

    name: str
    stage: str
    key: str
    accept: float
    stretch: float
    most: bool = False


FIGURES = (
    Figure("1 policy: share of the limit", "train", "P1 share", 0.85, 0.95),
    Figure("8 policies: share of the limit", "train", "P8 share", 0.90, 0.95),
    Figure("40 policies: share of the limit", "train", "P40 share", 0.80, 0.90),
    Figure("16 policies over 1", "train", "P16 over P1", 0.9, 1.0),
    Figure("8 policies: discarded rollouts", "train", "P8 discarded", 0, 0, most=True),
    Figure("8 policies: mean lag, batches", "train", "P8 lag mean", 6, 4, most=True),
    Figure("8 policies: largest lag, batches", "train", "P8 lag max", 12, 8, most=True),
    Figure("8 policies: cores of the learner", "train", "P8 learner cores", 0.8, 0.3, most=True),
    Figure("8 policies: GPU memory, GiB", "train", "P8 gpu GiB", 4, 3, most=True),
    Figure("40 policies: GPU memory, GiB", "train", "P40 gpu GiB", 16, 8, most=True),
    Figure("turn of 8 units, 8 policies: ms", "turn", "8 units ms", 0.8, 0.4, most=True),
    Figure("turn of 8 units, 8 policies: CPU ms", "turn", "8 units cpu ms", 0.4, 0.2, most=True),
    Figure("turn of 8 units, 8 policies: syncs", "turn", "8 units syncs", 1, 1, most=True),
    Figure("optimiser step, 8 policies: ms", "step", "ms", 2.0, 1.0, most=True),
    Figure("optimiser step, 8 policies: CPU ms", "step", "cpu ms", 0.15, 0.05, most=True),
    Figure("learning alone, 8 policies: steps/s", "step", "steps/s", 120_000, 200_000),
    Figure("learner made to first batch learned, s", "step", "first batch s", 10, 6, most=True),
    Figure("replacement in a pack, ms", "members", "in a pack ms", 1, 0.5, most=True),
    Figure("replacement between packs, ms", "members", "between packs ms", 20, 5, most=True),
)


def main() -> int:
    """Run the stages; print a table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--env", default="atari/pong")
    parser.add_argument("--only", default="", help="these stages alone, separated by commas")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of one run of `train`")
    parser.add_argument("--policies", default="1,8,16,40", help="populations of `train`")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.only.split(","))) - set(STAGES)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there is {', '.join(STAGES)}")
    if arguments.stage:
        print(json.dumps(one_stage(arguments)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    for stage in arguments.only.split(",") if arguments.only else STAGES:
        began = time.monotonic()
        results[stage] = in_process(stage, results)
        shown = "  ".join(f"{name}={_short(value)}" for name, value in results[stage].items())
        print(f"[{stage}, {time.monotonic() - began:.0f} s] {shown}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    lines, good = table(results, compare=not arguments.device.startswith("cpu"))
    print("\n".join(lines))
    return 0 if good else 1


def in_process(stage: str, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Run a stage in a process of its own, so that a fault on the device ends nothing else."""
    from pbt_rl.procs.child import CHILD_ENVIRONMENT  # noqa: PLC0415 - stages load their own

    limit = results.get("limit", {}).get("steps/s", 0.0)
    environment = os.environ | CHILD_ENVIRONMENT | {"GPU_CHECK_LIMIT": str(limit)}
    command = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=STAGE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"passed": False, "error": f"took longer than {STAGE_SECONDS:.0f} s"}
        finally:  # a run that it has started ends with it, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {"passed": False, "error": f"ended with code {process.returncode}: {errors[-1500:]}"}
    return found


def one_stage(arguments: argparse.Namespace) -> dict[str, Any]:
    """Carry out a stage here; an exception is its result."""
    import gpu_recording  # noqa: PLC0415 - loads torch
    import gpu_runs  # noqa: PLC0415
    import gpu_stages  # noqa: PLC0415
    from gpu_stand import Job  # noqa: PLC0415

    job = Job(
        device=arguments.device,
        env=arguments.env,
        seconds=arguments.seconds,
        policies=tuple(int(number) for number in arguments.policies.split(",")),
        limit=float(os.environ.get("GPU_CHECK_LIMIT", "0")),
    )
    room = next(room for room in (gpu_stages, gpu_runs, gpu_recording) if hasattr(room, arguments.stage))
    stage: Callable[[Job], dict[str, Any]] = getattr(room, arguments.stage)
    try:
        return stage(job)
    except Exception:  # noqa: BLE001 - whatever it is, the other stages go on
        return {"passed": False, "error": traceback.format_exc()[-2500:]}


def table(results: dict[str, dict[str, Any]], *, compare: bool) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether all is right and, if `compare`, fast enough."""
    lines = ["", f"{'correctness':44}{'':>12}"]
    good = True
    for stage, found in results.items():
        passed = found.get("passed", "error" not in found)
        good &= bool(passed)
        if stage in RIGHT or not passed:
            lines.append(f"  {stage:42}{'right' if passed else 'WRONG':>12}")
            lines += [f"    {line}" for line in str(found.get("error", "")).splitlines()]
    lines += ["", f"{'speed':44}{'here':>12}{'accept':>12}{'stretch':>12}"]
    for figure in FIGURES:
        value = results.get(figure.stage, {}).get(figure.key)
        if value is None:
            continue
        sign = "<=" if figure.most else ">="
        accepted = value <= figure.accept if figure.most else value >= figure.accept
        verdict = "" if not compare else "  ok" if accepted else "  MISSED"
        good &= accepted or not compare
        limits = f"{f'{sign} {figure.accept:g}':>12}{f'{sign} {figure.stretch:g}':>12}"
        lines.append(f"  {figure.name:42}{_short(value):>12}{limits}{verdict}")
    if not compare:
        lines.append("  (limits are those of 16 cores and a GPU: nothing is compared on a CPU)")
    return lines, good


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
