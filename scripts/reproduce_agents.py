"""Do UNREAL's auxiliary tasks help on a sparse task seen as an image? Same network and frames, with and without.

    python scripts/reproduce_agents.py                       # 3 seeds of each, some hours on one core
    python scripts/reproduce_agents.py --seeds 1 --arms a3c  # a part; what is in the CSV already is not run again

The task is toy/treasure: a walk over 7 x 7 cells, reward 1 at the treasure, 20 steps at most; a random walk finds it in
a fifth of the games, the best policy always. Each run is a single policy in serial mode, of the paper's network at a
quarter of its width. Learning rates are tried for each arm alike, and all are reported. The score is of fresh games of
the saved weights; the curve is the mean of the last 100 training games at each quarter of the run.

The rows in docs/results/unreal_treasure.csv are of 150,000 frames, 940 updates: too few, neither arm had left chance.
Nothing is known yet about whether the tasks help.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

from reproduce_fresh import fresh_games
from reproduce_rl import T_95

from pbt_rl.record.journal import read_journal

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "unreal_treasure.csv"
FIELDS = ("arm", "learning_rate", "seed", "frames", "quarter", "half", "three_quarters", "fresh", "seconds")
COMMON = (
    *(
        "--env",
        "toy/treasure",
        "--mode",
        "serial",
        "--num-policies",
        "1",
        "--pbt.no-enabled",
        "--devices",
        "cpu",
    ),
    *("--actors", "1", "--envs-per-unit", "8", "--learner.rollout", "20", "--hypers.unroll", "20"),
    *("--model.encoder", "a3c", "--model.hidden", "64", "--model.core", "lstm", "--model.core-size", "64"),
    *("--model.last-action-reward", "--save-every-seconds", "0", "--no-figures", "--learner.threads", "1"),
)
ARMS: Mapping[str, tuple[str, ...]] = {
    "a3c": ("--algo", "a3c"),
    "unreal": ("--algo", "unreal"),
}
RATES = (1e-3, 3e-3)


def run(arm: str, rate: float, seed: int, frames: int) -> dict[str, object]:
    """Train one policy and play its fresh games."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pbt_rl.cli",
            "train",
            *COMMON,
            *ARMS[arm],
            "--out",
            folder,
            "--name",
            "x",
        ]
        command += [
            "--seed",
            str(seed),
            "--train-for-frames",
            str(frames),
            "--hypers.learning-rate",
            str(rate),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        curve = training_curve(Path(folder) / "x", frames)
        fresh = fresh_games(Path(folder) / "x").scores[0]
    numbers = [*(f"{score:.3f}" for score in curve), f"{fresh:.3f}", f"{time.monotonic() - began:.0f}"]
    return dict(zip(FIELDS, (arm, rate, seed, frames, *numbers), strict=True))


def training_curve(run: Path, frames: int) -> list[float]:
    """Return the objective at a quarter, a half and three quarters of the run, as the journal has it."""
    points = []
    for event in read_journal(run / "journal.jsonl"):
        if event["event"] == "progress":
            member = event["members"][0]
            points.append((member["frames"], member["objective"] or 0.0))
    return [
        min(points, key=lambda p: abs(p[0] - share * frames), default=(0, 0.0))[1]
        for share in (0.25, 0.5, 0.75)
    ]


def main() -> None:
    """Run what is missing in the CSV, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(chosen.seeds):
        for rate in chosen.rates:
            for arm in chosen.arms:
                rows = read(chosen.results)
                if not any(key(row) == (arm, rate, seed, chosen.frames) for row in rows):
                    write(chosen.results, [*rows, run(arm, rate, seed, chosen.frames)])
                    print(read(chosen.results)[-1], flush=True)
    table(read(chosen.results), chosen.frames)


def key(row: Mapping[str, object]) -> tuple[str, float, int, int]:
    """Identify a run."""
    return str(row["arm"]), float(str(row["learning_rate"])), int(str(row["seed"])), int(str(row["frames"]))


def read(path: Path) -> list[dict[str, object]]:
    """Return the rows of the CSV, none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write all rows; a run that is killed meanwhile leaves the file as it was."""
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def table(rows: list[dict[str, object]], frames: int) -> None:
    """Print the mean of each arm and rate, and the paired difference of the arms with its 95 % interval."""
    of: dict[tuple[str, float], dict[int, float]] = {}
    for row in rows:
        arm, rate, seed, length = key(row)
        if length == frames:
            of.setdefault((arm, rate), {})[seed] = float(str(row["fresh"]))
    for (arm, rate), scores in sorted(of.items()):
        each = ", ".join(f"{score:.2f}" for _, score in sorted(scores.items()))
        print(f"{arm:7} learning rate {rate:g}: fresh games {fmean(scores.values()):.3f} ({each})")
    for rate in sorted({rate for _, rate in of}):
        with_tasks, without = of.get(("unreal", rate), {}), of.get(("a3c", rate), {})
        gains = [with_tasks[seed] - without[seed] for seed in with_tasks.keys() & without.keys()]
        if len(gains) > 1:
            half = T_95[len(gains)] * stdev(gains) / len(gains) ** 0.5
            print(
                f"unreal - a3c, learning rate {rate:g}: {fmean(gains):+.3f} +- {half:.3f} ({len(gains)} seeds)"
            )
    print(json.dumps({"runs": len(rows)}))


if __name__ == "__main__":
    main()
