"""On a machine with a GPU: is the CUDA path right, and then how fast against its limits. In nine minutes.

    python scripts/gpu_check.py [--minutes 9] [--quick] [--json FILE] [--keep FOLDER] [--only facts,math,...]
    python scripts/gpu_check.py --device cpu --policies 2      # every stage, no GPU

It needs the product and its dependencies, and leaves nothing behind. Stages, each in a process of its own, the most
telling ones first; --quick takes four minutes and leaves out those marked with a dash:

      facts      card, cores, cost of a launch and of a replayed graph, whether mailboxes can be page-locked
      limit      steps/s of all cores by the environment alone
      train8     a whole run: share of the limit, what is replayed, discards, lag, cores of the learner, memory
      answers    what recorded turns wrote against the same computed anew by the weights that acted, after edits, too
      replays    optimiser steps replayed and call by call: the same weights, by packing, core and dtype
      math       actions and learned weights of the device against the CPU's
      races      weights that are published while replayed turns and steps go on are never mixed
      recording  what the tests assume of CUDA graphs, of recordings that fail, and of locked memory
    - step       an optimiser step: time, launches, syncs; from nothing to the first batch learned from
    - turn       a sampler's turn by the number of units: time, launches, syncs
    - train1, train40, ...   whole runs of the other populations
    - members    replacements in a pack and by saved states: bit for bit, and in milliseconds
    - leak       acting, learning and edits for a while: the memory that is reserved does not go on rising
    - serial     two serial runs of one seed: the same weights
    - two        a run on two devices: all members train evenly; left out on a machine with one GPU

A stage that takes too long costs itself alone. The exit code is 1 if a stage is wrong or an accepted figure is missed;
a stage for which no time was left is no failure. Shares, replays, lag, discards and syncs are compared on every GPU;
milliseconds, GiB and steps/s, which are those of 16 cores and an H200, on such machines alone; --device cpu compares
nothing. What learners said at their start stands below the table. The last line is for a report of an error.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TRAIN = "train"
"""Begins the names of stages that train; the number of policies follows."""
WORTH = ("facts", "limit", f"{TRAIN}8", "answers", "replays", "math", "races", "recording")
"""Stages of --quick."""
MORE = ("step", "turn", f"{TRAIN}1", f"{TRAIN}40", "members", "leak", "serial", f"{TRAIN}16", "two")
RIGHT = ("answers", "replays", "math", "races", "recording", "members", "leak", "serial", "two")
LEAST_SECONDS = 10.0
"""A stage for which less is left is not begun."""
MOST_SECONDS = {"facts": 90.0, "limit": 60.0, "replays": 120.0, "math": 90.0, "serial": 80.0, "two": 120.0}
RESERVED_SECONDS = {
    "answers": 15.0,
    "replays": 30.0,
    "math": 20.0,
    "races": 15.0,
    "limit": 25.0,
    "recording": 5.0,
}
"""What the stages before leave to one of WORTH, so that a slow one costs itself alone: what it takes on two idle cores.
What is left beyond that goes to the first that needs it."""
STAGE_SECONDS = 75.0
"""Most of any other stage, and of one that trains beside the training itself."""
CARDS, CORES = ("H100", "H200", "B200"), 16
"""Absolute limits hold on these and with so many cores at least."""
ANYWHERE = ("share", "turns replayed", "steps replayed", "discarded", "lag mean", "lag max", "8 units syncs")
"""Keys of figures that are compared on every GPU."""
SLOW = "GPU_CHECK_SLOW"
"""Environment variable with a stage that never ends, for tests."""


@dataclass(frozen=True)
class Figure:
    """A speed and its limits. most: the accepted value is the largest, not the least."""

    name: str
    stage: str
    key: str
    accept: float
    stretch: float
    most: bool = False

    def accepted(self, results: dict[str, dict[str, Any]]) -> bool | None:
        """Whether a figure is good enough, not if its stage failed; None if it is not compared here."""
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
    Figure("8 policies: turns replayed", "train8", "turns replayed", 0.98, 1),
    Figure("8 policies: optimiser steps replayed", "train8", "steps replayed", 1, 1),
    Figure("8 policies: discarded rollouts", "train8", "discarded", 0, 0, most=True),
    Figure("8 policies: mean lag, batches", "train8", "lag mean", 6, 4, most=True),
    Figure("8 policies: largest lag, batches", "train8", "lag max", 12, 8, most=True),
    Figure("8 policies: cores of the learner", "train8", "learner cores", 0.8, 0.3, most=True),
    Figure("8 policies: GPU memory, GiB", "train8", "gpu GiB", 4, 3, most=True),
    Figure("1 policy: share of the limit", "train1", "share", 0.85, 0.95),
    Figure("40 policies: share of the limit", "train40", "share", 0.80, 0.90),
    Figure("40 policies: GPU memory, GiB", "train40", "gpu GiB", 16, 8, most=True),
    Figure("16 policies: share of the limit", "train16", "share", 0.85, 0.95),
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
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--quick", action="store_true", help="four minutes: the most telling stages alone")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one run of `train`")
    parser.add_argument("--policies", default="8,1,40,16", help="populations of `train`")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--keep", default=os.environ.get("GPU_CHECK_KEEP", ""), help="folder for what runs print"
    )
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    stages = planned(arguments.policies, quick=arguments.quick)
    unknown = set(filter(None, arguments.only.split(","))) - set(stages)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there is {', '.join(stages)}")
    if arguments.stage:
        print(json.dumps(one_stage(arguments)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    asked = tuple(arguments.only.split(",")) if arguments.only else stages
    end = time.monotonic() + 60 * (min(4.0, arguments.minutes) if arguments.quick else arguments.minutes)
    for stage in asked:
        began = time.monotonic()
        seconds = seconds_of(stage, asked, end - began, arguments.seconds)
        if seconds < LEAST_SECONDS:
            results[stage] = {"no time": True}
        else:
            results[stage] = in_process(stage, results, seconds)
        shown = "  ".join(f"{name}={_short(value)}" for name, value in results[stage].items())
        print(f"[{stage}, {time.monotonic() - began:.0f} s] {shown}", flush=True)
        if arguments.json:
            found = report(results, asked)
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    lines, good = table(results, asked)
    print("\n".join([*lines, "", last_line(results, asked)]))
    return 0 if good else 1


def planned(policies: str, *, quick: bool) -> tuple[str, ...]:
    """Return the stages in order. policies: populations of `train`."""
    populations = [f"{TRAIN}{number}" for number in policies.split(",")]
    usual = WORTH if quick else (*WORTH, *MORE)
    stages = [s for s in usual if not s.startswith(TRAIN) or s in populations]
    others = [s for s in populations if s not in (*WORTH, *MORE)]
    first = stages.index("limit") + 1
    return (*stages[:first], *others, *stages[first:])


def _most_seconds(stage: str, training: float) -> float:
    return training + STAGE_SECONDS if stage.startswith(TRAIN) else MOST_SECONDS.get(stage, STAGE_SECONDS)


def _reserved_seconds(stage: str, training: float) -> float:
    return 1.5 * training if stage.startswith(TRAIN) else RESERVED_SECONDS.get(stage, 0.0)


def seconds_of(stage: str, asked: Sequence[str], left: float, training: float) -> float:
    """Return the most seconds of a stage. left: of all, in seconds. training: of one run of `train`, in seconds."""
    later = [other for other in asked[asked.index(stage) + 1 :] if other in WORTH]
    reserved = sum(_reserved_seconds(other, training) for other in later)
    return min(_most_seconds(stage, training), max(left - reserved, LEAST_SECONDS), left)


def in_process(
    stage: str, results: dict[str, dict[str, Any]], seconds: float = STAGE_SECONDS
) -> dict[str, Any]:
    """Run a stage in a process of its own, so that a fault on the device ends nothing else, nor what takes too long."""
    from pbt_rl.actors.child import CHILD_ENVIRONMENT  # noqa: PLC0415 - stages load their own

    limit = results.get("limit", {}).get("steps/s", 0.0)
    environment = os.environ | CHILD_ENVIRONMENT | {"GPU_CHECK_LIMIT": str(limit)}
    command = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")[-1500:]
            return {"passed": False, "error": f"took longer than {seconds:.0f} s\n{said}".strip()}
        finally:  # a run that it has started ends with it, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        machine, found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {"passed": False, "error": f"ended with code {process.returncode}: {errors[-1500:]}"}
    results["machine"] = machine
    return dict(found)


def one_stage(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Carry out a stage here; return the machine and what was found. An exception is a result."""
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
        stage=arguments.stage,
        keep=arguments.keep,
    )
    if os.environ.get(SLOW) == arguments.stage:
        time.sleep(3600)
    name, populations = arguments.stage, arguments.stage.removeprefix(TRAIN)
    if populations.isdecimal():
        name, job = TRAIN, replace(job, policies=(int(populations),))
    room = next(room for room in (gpu_stages, gpu_runs, gpu_recording) if hasattr(room, name))
    stage: Callable[[Job], dict[str, Any]] = getattr(room, name)
    machine: dict[str, Any] = {}
    try:
        machine = job.machine()
        return machine, stage(job)
    except Exception:  # noqa: BLE001 - whatever it is, the other stages go on
        return machine, {"passed": False, "error": traceback.format_exc()[-2500:]}


def verdict(stage: str, results: dict[str, dict[str, Any]]) -> str:
    """Return right, WRONG, `no time` (was left for it) or `left out` (the machine cannot have it)."""
    found = results.get(stage, {"no time": True})
    for said in ("no time", "left out"):
        if said in found:
            return said
    return "right" if found.get("passed", "error" not in found) else "WRONG"


def report(results: dict[str, dict[str, Any]], asked: Sequence[str]) -> dict[str, Any]:
    """Return everything as JSON: stages with their verdicts, and figures with their limits."""
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
    return {
        "verdicts": {stage: verdict(stage, results) for stage in asked},
        "figures": figures,
        "stages": results,
    }


def table(results: dict[str, dict[str, Any]], asked: Sequence[str]) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether all is right and, where that is compared, fast enough."""
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
    lines.append("  (limits are those of 16 cores and an H200; what has no verdict was not compared here)")
    notes = [f"  {stage:10}{results[stage]['said']}" for stage in asked if results.get(stage, {}).get("said")]
    return [*lines, *(["", "said by learners", *notes] if notes else [])], good


def last_line(results: dict[str, dict[str, Any]], asked: Sequence[str]) -> str:
    """Return one line that says all that matters, for a report of an error."""
    facts, found = results.get("machine", {}), report(results, asked)
    machine = (
        f"torch {facts.get('torch', '?')}, {facts.get('card', 'no GPU')}, {facts.get('cores', '?')} cores"
    )
    bad = [f"{stage} {said}" for stage, said in found["verdicts"].items() if said in ("WRONG", "no time")]
    bad += [
        f"{name} {'-' if one['here'] is None else _short(one['here'])} (accept {one['accept']:g})"
        for name, one in found["figures"].items()
        if one["ok"] is False
    ]
    return f"gpu_check: {machine}: {'; '.join(bad) or 'all is right'}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
