"""Does PBT help? Pendulum by the protocol of docs/reproducing.md, seed by seed, restartable.

    python scripts/evidence.py run --seeds 0:24        # trains what docs/results/pendulum.csv lacks; minutes per seed
    python scripts/evidence.py table                   # the statistics of all rows that are there

A row per member of every run: its score in validation games, by which the method picks a member, and in test games. A
run that was cut off has no rows; the same command goes on with it, bit for bit as if nothing had happened.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from reproduce_agents import ended
from reproduce_fresh import fresh_games
from reproduce_rl import drawn_defaults, train
from statistics_of_seeds import bootstrap, iqm

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "pendulum.csv"
COLUMNS = ("seed", "arm", "member", "frames", "validation", "test")
TUNED = ("learning_rate", "entropy_coef", "clip_ratio", "gamma", "gae_lambda", "max_grad_norm")
MEMBERS, FRAMES, PERIOD, GAMES = 12, 80_000, 8_000, 20
VALIDATION_SEED, TEST_SEED = 1_000_003, 2_000_003
TASK = (
    *("--env", "gym/Pendulum-v1", "--mode", "serial", "--num-policies", f"{MEMBERS}", "--no-figures"),
    *("--train-for-frames", f"{FRAMES}", "--learner.lr-schedule", "constant", "--pbt.tune", *TUNED),
)
ARMS: Mapping[str, tuple[str, ...]] = {
    "pbt": (
        *("--controller", "pbt", "--pbt.exploit", "truncation", "--pbt.replace-fraction", "0.25"),
        *("--pbt.replace-gap", "0", "--pbt.explore", "resample", "--pbt.objective-episodes", "20"),
        *("--pbt.period-frames", f"{PERIOD}", "--pbt.start-frames", f"{PERIOD}"),
    ),
    "random": ("--controller", "random"),
}
COLLAPSED = -1000.0
"""A picked member below this has learned next to nothing; a random policy has about -1,200."""

Row = Mapping[str, str]
Members = Sequence[tuple[float, float]]
"""(validation, test) of each member of a run."""
Scores = dict[str, dict[int, list[tuple[float, float]]]]
"""Arm -> seed -> (validation, test) of each member."""


def read_rows() -> list[Row]:
    """Return the rows of all runs so far."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def run(seeds: Sequence[int], out: Path) -> None:
    """Train and judge what is missing, and append its rows. out: folder of the runs."""
    done = {(row["seed"], row["arm"]) for row in read_rows()}
    for seed in seeds:
        for arm, options in ARMS.items():
            if (f"{seed}", arm) in done:
                continue
            name = f"{arm}-{seed}"
            if not ended(out / name):
                train(out, name, *TASK, *options, "--seed", f"{seed}", *drawn_defaults(seed, TUNED))
            validation = fresh_games(out / name, GAMES, VALIDATION_SEED).scores
            test = fresh_games(out / name, GAMES, TEST_SEED).scores
            frames = json.loads((out / name / "summary.json").read_text())["frames"]
            append([(seed, arm, m, frames, f"{validation[m]:.1f}", f"{test[m]:.1f}") for m in sorted(test)])
            print(f"seed {seed}, {arm}: {picked([(validation[m], test[m]) for m in test]):.0f}", flush=True)


def append(rows: Sequence[tuple[object, ...]]) -> None:
    """Write the rows of one run at once."""
    new = not RESULTS.exists()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows(rows)


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score."""
    return max(members)[1]


MEASURES: Mapping[str, Callable[[Members], float]] = {
    "picked by validation games (primary)": picked,
    "best by test games (oracle)": lambda members: max(test for _, test in members),
    "mean of members": lambda members: fmean(test for _, test in members),
}


def table() -> None:
    """Print each measure: interquartile means, the paired difference with its intervals, collapses, wins."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    for row in read_rows():
        scores[row["arm"]][int(row["seed"])].append((float(row["validation"]), float(row["test"])))
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in scores.values())) if scores else ())
    print(f"{len(seeds)} seeds with both arms: {seeds}")
    for name, measure in MEASURES.items() if len(seeds) > 1 else ():
        ours, theirs = ([measure(scores[arm][seed]) for seed in seeds] for arm in ("pbt", "random"))
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        low, high = bootstrap(gains)
        error = stdev(gains) / math.sqrt(len(gains))
        print(
            f"{name}: IQM {iqm(ours):.0f} against {iqm(theirs):.0f}; difference {fmean(gains):.0f}, "
            f"bootstrap 95 % {low:.0f} to {high:.0f}, standard error {error:.0f}; better in "
            f"{sum(g > 0 for g in gains)} of {len(gains)}; collapsed {sum(x < COLLAPSED for x in ours)}, "
            f"{sum(x < COLLAPSED for x in theirs)}"
        )


def main() -> None:
    """Run or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seeds", default="0:24", help="FIRST:END")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "evidence", help="folder of the runs")
    arguments = parser.parse_args()
    if arguments.what == "table":
        table()
        return
    first, _, end = arguments.seeds.partition(":")
    run(range(int(first), int(end)), arguments.out)


if __name__ == "__main__":
    main()
