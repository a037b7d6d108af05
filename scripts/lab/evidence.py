"""Does PBT help? Methods side by side by the protocols of docs/lab/evidence.md, seed by seed, restartable.

    python scripts/lab/evidence.py run cartpole                  # trains what docs/lab/results/cartpole.csv lacks
    python scripts/lab/evidence.py run atari --seconds 1500      # a part: stops then; the same command goes on
    python scripts/lab/evidence.py run cartpole --seeds 0:5 --arms random pbt
    python scripts/lab/evidence.py table cartpole                # the statistics of all rows that are there

The experiments are in evidence_experiments.py. A row per member of every run: its score in validation games, by which
the method picks a member, and in test games. A run that was cut off has no rows; the same command goes on with it from
where it saved itself: in `unroll` bit for bit as if nothing had happened, elsewhere with new episodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from evidence_experiments import EXPERIMENTS, Arm, Experiment
from evidence_table import picked, table
from reproduce_fresh import fresh_games
from reproduce_runs import folder_name, trained
from results_rows import append_rows, read_rows, seed_range

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "lab" / "results"
COLUMNS = ("seed", "arm", "member", "frames", "validation", "test")
VALIDATION_SEED, TEST_SEED = 1_000_003, 2_000_003


def command(options: Sequence[str], arm: Arm, seed: int, run: Path) -> list[str]:
    """Return the command of one run, which also goes on with it. options: of all arms. run: its folder."""
    train = [sys.executable, "-m", "pbt_rl.cli", "train", *options, *arm.options]
    train += ["--num-policies", f"{arm.members}", "--train-for-frames", f"{arm.frames}"]
    train += ["--seed", f"{seed}", "--out", f"{run.parent}", "--name", run.name]
    return [*train, "--learner.threads", "1", *arm.start(seed, arm.members)]


def judge(experiment: Experiment, run: Path, arm: str, seed: int) -> list[tuple[object, ...]]:
    """Play fresh games of all saved members of a whole run; return its rows."""
    validation = fresh_games(run, experiment.games, VALIDATION_SEED).scores
    test = fresh_games(run, experiment.games, TEST_SEED).scores
    frames = json.loads((run / "summary.json").read_text())["frames"]
    return [(seed, arm, m, frames, f"{validation[m]:.2f}", f"{test[m]:.2f}") for m in sorted(test)]


def run_all(experiment: Experiment, chosen: argparse.Namespace, results: Path) -> None:
    """Train and judge what is missing until the time is over, and append its rows."""
    until = time.monotonic() + chosen.seconds
    for seed in chosen.seeds or range(experiment.seeds):
        for name in chosen.arms or experiment.arms:
            if any((row["seed"], row["arm"]) == (f"{seed}", name) for row in read_rows(results)):
                continue
            run = chosen.out / chosen.experiment / folder_name(name, seed)
            arm, began = experiment.arms[name], time.monotonic()
            if began > until or not trained(command(experiment.options, arm, seed, run), run, until):
                print(f"seed {seed}, {name}: stopped; the same command goes on")
                return
            rows = judge(experiment, run, name, seed)
            append_rows(results, COLUMNS, rows)
            score = picked([(float(str(row[4])), float(str(row[5]))) for row in rows])
            print(f"seed {seed}, {name}: {score:.4g} ({time.monotonic() - began:.0f} s)", flush=True)


def main() -> None:
    """Run or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=seed_range, help="FIRST:END; default: all of the experiment")
    parser.add_argument("--arms", nargs="+", help="default: all of the experiment")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop the training after this long")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "evidence", help="folder of the runs")
    chosen = parser.parse_args()
    experiment, results = EXPERIMENTS[chosen.experiment](), RESULTS / f"{chosen.experiment}.csv"
    if unknown := [arm for arm in chosen.arms or () if arm not in experiment.arms]:
        parser.error(f"--arms {', '.join(unknown)}: choose from {', '.join(experiment.arms)}")
    if chosen.what == "run":
        run_all(experiment, chosen, results)
    else:
        table(read_rows(results), experiment)


if __name__ == "__main__":
    main()
