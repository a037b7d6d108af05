"""Measure populations of different sizes on this machine: memory, time to the first frames, speed, what is discarded.

    python scripts/lab/packs_bench.py --json packs.json [--policies 1,4,8,16,40] [--env atari/pong] [--seconds 30]

One run after the other, each by the recipe of the environment with one epoch and one minibatch (as in scripts/bench.py)
and without comparisons. A population whose figures are in the file already is left out; so the command goes on where it
was ended. Remove the file to measure anew.

    first frames   seconds from the start of the process to the first frames that were learned from or may be
    whole          seconds until all emulators are there: the actors' memory has stood still for 8 s
    frames/s       over `--seconds` from then on
    memory         of all processes of the run, in MiB at the end: each page counts once, shared ones in parts (PSS)
    discarded      rollouts, of the whole run
    even           fewest over most frames of a member at the end
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

STILL_SECONDS, STILL_SHARE = 8.0, 0.01
LONGEST_SECONDS = 220.0
"""A run that is not whole and measured by then is ended; its figures say so."""
COLUMNS = ("first frames s", "whole s", "frames/s", "memory MiB", "learner MiB", "discarded", "even")


def megabytes(pid: int) -> dict[str, float]:
    """Return the memory (PSS, MiB) of a process and those below it: of all, of the learners, of the actors."""
    found = {"all": 0.0, "learner": 0.0, "actor": 0.0}
    parent = psutil.Process(pid)
    for process in [parent, *parent.children(recursive=True)]:
        try:
            command, memory = process.cmdline(), process.memory_full_info().pss / 2**20
        except psutil.Error:
            continue
        found["all"] += memory
        for name, module in (("learner", "pbt_rl.learner.learner"), ("actor", "pbt_rl.actors.actor")):
            found[name] += memory * (module in command)
    return found


@dataclass
class Watcher:
    """Follows a run through its reports; `figures` is whole when it has asked for the end."""

    seconds: float
    began: float
    figures: dict[str, Any] = field(default_factory=dict)
    _actors: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, MiB of the actors)"""
    _whole: tuple[float, int] | None = None
    """(seconds, frames) when all emulators were there."""
    _ended: bool = False
    """The last report comes when the processes have ended."""

    def see(self, view: Any) -> Any:
        """Look at the run about once a second; ends it when it has been measured."""
        from pbt_rl import Stop  # noqa: PLC0415 - the script's parent needs no product

        now = time.time() - self.began
        if self._ended or not view.frames:
            return None
        self.figures.setdefault("first frames s", now)
        if self._whole is None and self._stands_still(now):
            self._whole = now, view.frames
            self.figures["whole s"] = now
        late = now > LONGEST_SECONDS
        if not late and (self._whole is None or now < self._whole[0] + self.seconds):
            return None
        if self._whole is not None and now > self._whole[0]:
            self.figures["frames/s"] = (view.frames - self._whole[1]) / (now - self._whole[0])
        memory = megabytes(psutil.Process().pid)
        frames = [member.frames for member in view.members]
        self.figures |= {
            "memory MiB": memory["all"],
            "learner MiB": memory["learner"],
            "discarded": view.discarded_rollouts,
            "even": min(frames) / max(frames),
        }
        self._ended = True
        return Stop("it is measured" if not late else f"it took longer than {LONGEST_SECONDS:.0f} s")

    def _stands_still(self, now: float) -> bool:
        self._actors.append((now, megabytes(psutil.Process().pid)["actor"]))
        before = [memory for moment, memory in self._actors if moment <= now - STILL_SECONDS]
        return bool(before) and self._actors[-1][1] <= before[-1] * (1 + STILL_SHARE)


def measure_here(env: str, policies: int, seconds: float) -> dict[str, Any]:
    """Train in this process until the run has been measured."""
    import pbt_rl  # noqa: PLC0415

    watcher = Watcher(seconds, psutil.Process().create_time())
    with tempfile.TemporaryDirectory(prefix="pbt_rl-packs-") as out:
        pbt_rl.train(
            env=env,
            num_policies=policies,
            out=Path(out),
            name="run",
            train_for_frames=10**12,
            train_for_seconds=LONGEST_SECONDS + 60,
            learner={"epochs": 1, "minibatches": 1},
            pbt={"enabled": False},
            figures=False,
            on_report=watcher.see,
        )
    return watcher.figures


def measure(env: str, policies: int, seconds: float) -> dict[str, Any]:
    """Measure in a process of its own. Raises RuntimeError with its output if it fails."""
    command = [sys.executable, __file__, "--env", env, "--one", str(policies), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{policies} policies failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown, a line for each population."""
    lines = [f"| policies | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
    for policies in sorted(results, key=int):
        cells = [_shown(results[policies].get(column)) for column in COLUMNS]
        lines.append(f"| {policies} | {' | '.join(cells)} |")
    return lines


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Measure what the file lacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="atari/pong")
    parser.add_argument("--policies", default="1,4,8,16,40", help="sizes of populations")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of what is measured of a run")
    parser.add_argument(
        "--json", type=Path, help="figures of each population; what is there is not measured again"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_here(arguments.env, arguments.one, arguments.seconds)))
        return
    file: Path | None = arguments.json
    results = json.loads(file.read_text()) if file is not None and file.exists() else {}
    for policies in arguments.policies.split(","):
        if policies not in results:
            results[policies] = measure(arguments.env, int(policies), arguments.seconds)
            print(f"{policies} policies: {json.dumps(results[policies])}", flush=True)
        if file is not None:
            file.write_text(json.dumps(results, indent=2) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
