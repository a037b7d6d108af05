"""Measure the stages between a decision and new weights: `python scripts/bench.py --replacements`.

The run has four policies, and a controller that ignores scores. Every second or two, either two members copy the two
other members (as many as the default rule allows), or one member changes only its hyperparameters. A minute of the run
has dozens of copies and of changes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pbt_rl.controllers.decisions import Decision, Mutate, PopulationReport, Replace, StateKey
from pbt_rl.controllers.hypers import HyperSpec

ROOT = Path(__file__).resolve().parents[2]
STAGES = {
    "sent": "the supervisor sends the edit",
    "received": "the learner finishes earlier work and reads messages",
    "begun": "other writers of the policy's state finish",
    "written": "checksum of the donor, copy of the state, new weights used for inference",
    "proved": "second checksum of the donor, values read back",
    "answered": "the supervisor receives the acknowledgement",
}
"""Stage of an edit -> work between the preceding stage and this stage."""
OPTIONS = (
    "--num-policies=4",
    "--train-for-frames=1000000000000",
    "--learner.epochs=1",
    "--learner.minibatches=1",
    "--controller=replacement_bench:Exchanges",
    "--no-figures",
)


@dataclass
class Exchanges:
    """Controller that ignores scores. Every `every` frames, two members copy the others, or one member mutates."""

    table: dict[str, HyperSpec]
    seed: int
    every: int = 3_000
    _rng: Random = field(init=False)
    _due: int = field(init=False)

    def __post_init__(self) -> None:
        """Schedule the first decision after a warm-up."""
        self._rng, self._due = Random(self.seed), 5 * self.every

    def initial(self, num_members: int) -> list[dict[str, float]]:
        """Return equal values for all members."""
        return [{name: spec.default for name, spec in self.table.items()}] * num_members

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return decisions if the next decision is due."""
        if report.frames < self._due:
            return []
        self._due = report.frames + self.every
        members = self._rng.sample(report.members, len(report.members))
        if self._rng.random() < 1 / 3:
            return [Mutate(members[0].member, members[0].values, "values only")]
        return [
            Replace(member.member, donor.member, "both", donor.values, "exchange")
            for member, donor in ((members[0], members[1]), (members[2], members[3]))
        ]

    def remembers(self) -> frozenset[StateKey]:
        """Return an empty set, because this controller needs no earlier states."""
        return frozenset()


def replacements(env: str, seconds: float) -> dict[str, Any]:
    """Train four policies with many replacements. Print and return the milliseconds of each stage in STAGES."""
    events = applied(env, seconds)
    copies = [_stages(event) for event in events if event["donor"] is not None]
    changes = [_stages(event) for event in events if event["donor"] is None]
    return {
        "replacements": _table("replacements", copies),
        "changes of values": _table("changes of values", changes),
    }


def applied(env: str, seconds: float) -> list[dict[str, Any]]:
    """Train, and return the journal's events of applied decisions."""
    folder = tempfile.mkdtemp(prefix="pbt_rl-bench-")
    command = [sys.executable, "-m", "pbt_rl", "train", "--env", env]
    command += ["--out", folder, "--name=bench", f"--train-for-seconds={seconds}", *OPTIONS]
    try:
        here = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)])}
        done = subprocess.run(command, capture_output=True, text=True, env=here, check=False)
        if done.returncode:
            raise RuntimeError(f"the run failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        events = (Path(folder) / "bench/journal.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, events) if event["event"] == "applied"]
    finally:
        shutil.rmtree(folder)


def _stages(event: dict[str, Any]) -> dict[str, float]:
    """Return the milliseconds of each stage of a change, and two sums of milliseconds since the decision."""
    until = [event["milliseconds_until"][name] for name in STAGES]
    took = (now - before for before, now in zip([0.0, *until], until, strict=False))
    sums = {"new weights serve": event["milliseconds_until"]["written"], "in all": until[-1]}
    return dict(zip(STAGES, took, strict=True)) | sums


def _table(kind: str, changes: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Print and return median and maximum of the milliseconds of each stage. kind: title of the table."""
    print(f"{kind}: {len(changes)}" + (", milliseconds:" if changes else ""))
    figures: dict[str, Any] = {"number": len(changes)}
    for name in changes[0] if changes else ():
        values = [change[name] for change in changes]
        middle, most = statistics.median(values), max(values)
        figures[name] = {"median": middle, "max": most}
        print(f"    {name:17} {middle:6.1f} median {most:6.1f} max   {STAGES.get(name, '')}", flush=True)
    return figures
