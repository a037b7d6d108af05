"""Which default options hold one policy back? The experiment of docs/lab/single.md.

    python scripts/lab/single.py design --jobs 2              # 16 cells x 5 tasks; continues with missing runs
    python scripts/lab/single.py confirm --cells ab --jobs 2  # cells beside today's default, on new seeds
    python scripts/lab/single.py tables                       # the tables of docs/lab/single.md

Rows are in docs/lab/results/single.csv, one per run. All runs are in serial mode, so other work on the machine changes
only their seconds.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import shutil
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata
from worth import ROWS as WORTH_ROWS
from worth import commit, ours, pooled

ROWS = WORTH_ROWS.with_name("single.csv")
COLUMNS = ("commit", "stage", "task", "cell", "seed", "frames", "drawn", "greedy", "seconds")
FACTORS = {
    "a": "--model.initial-std 0.5",
    "b": "--hypers.gamma 0.995 --hypers.gae-lambda 0.97",
    "c": "--learner.minibatches 32 --hypers.learning-rate 3e-4",
    "d": "--learner.lr-schedule linear",
    "e": "--model.action-bounds tanh",
}
"""Letter -> options of the second level. The first level is today's default."""
DEFAULT = "1"
"""Name of the cell with the first level of all factors."""
CELLS = [DEFAULT] + ["".join(cell) for n in (2, 4) for cell in itertools.combinations(FACTORS, n)]
"""Fraction 2^(5-1) of resolution V (I = ABCDE): cells with an even number of factors at the second level."""
TASKS = {name: f"gym/{name}-v5" for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")}


class Stage(NamedTuple):
    """frames: budget of a run. episodes: evaluation episodes with each kind of actions."""

    frames: int
    episodes: int
    seeds: Sequence[int]


STAGES = {"design": Stage(300_000, 10, range(40, 41)), "confirm": Stage(1_000_000, 20, range(60, 68))}
PERMUTATIONS = 20_000


def options(cell: str) -> list[str]:
    """Return the options of a cell."""
    return [word for letter in cell if letter != DEFAULT for word in shlex.split(FACTORS[letter])]


def train_and_evaluate(stage: str, task: str, cell: str, seed: int) -> dict[str, object]:
    """Train one policy in a temporary folder and evaluate its last weights."""
    frames, episodes, _ = STAGES[stage]
    folder = Path(tempfile.mkdtemp(prefix="single-"))
    run = folder / "run"
    try:
        ours(
            "train", "--env", TASKS[task], "--num-policies", "1", "--mode", "serial", "--seed", str(seed),
            "--train-for-frames", str(frames), "--learner.threads", "1", "--no-figures",
            *options(cell), "--out", str(folder), "--name", "run",
        )  # fmt: skip
        summary = json.loads((run / "summary.json").read_text())
        means = {}
        for actions, words in {"drawn": [], "greedy": ["--greedy"]}.items():
            text = ours("eval", str(run), "--trust", "--episodes", str(episodes), "--seed", str(seed), *words)
            found = re.search(rf"over {episodes} episodes: mean (\S+),", text)
            assert found, text
            means[actions] = float(found[1])
    finally:
        shutil.rmtree(folder)
    seconds = round(summary["training_seconds"])
    done = {"commit": commit(), "stage": stage, "task": task, "cell": cell, "seed": seed}
    return done | {"frames": summary["members"][0]["frames"], **means, "seconds": seconds}


def read(stage: str) -> list[dict[str, str]]:
    """Return the rows of a stage."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["stage"] == stage]


def run(stage: str, cells: Sequence[str], jobs: int) -> None:
    """Train the missing runs of a stage, seed by seed."""
    if not ROWS.exists():
        ROWS.write_text(",".join(COLUMNS) + "\n")
    done = {(row["task"], row["cell"], int(row["seed"])) for row in read(stage)}

    def one(which: tuple[str, str, int]) -> None:
        row = train_and_evaluate(stage, *which)
        with ROWS.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
        print(row, flush=True)

    wanted = ((task, cell, seed) for seed in STAGES[stage].seeds for task in TASKS for cell in cells)
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, (which for which in wanted if which not in done)):
            pass


# -- tables -------------------------------------------------------------------------------------------------------


def contrasts(cells: Sequence[str]) -> dict[str, np.ndarray]:
    """Return effect -> [cells] of +-1, for each factor and each pair of factors."""
    sign = {letter: np.array([1 if letter in cell else -1 for cell in cells]) for letter in FACTORS}
    pairs = {a + b: sign[a] * sign[b] for a, b in itertools.combinations(FACTORS, 2)}
    return sign | pairs


def effects(scores: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return effect -> (mean rank at the second level less at the first, p of a two-sided permutation test).

    scores: task -> cell -> score. Ranks are within a task: 1 is the worst cell. The test permutes the ranks of each
    task.
    """
    ranks = np.stack([rankdata([of[cell] for cell in CELLS]) for of in scores.values()])
    signs = np.stack([*contrasts(CELLS).values()]) * 2 / len(CELLS)
    found = (signs @ ranks.T).mean(1)
    generator = np.random.default_rng(0)
    permuted = np.stack([(signs @ generator.permuted(ranks, axis=1).T).mean(1) for _ in range(PERMUTATIONS)])
    p = ((np.abs(permuted) >= np.abs(found) - 1e-9).sum(0) + 1) / (PERMUTATIONS + 1)
    return {name: (float(e), float(q)) for name, e, q in zip(contrasts(CELLS), found, p, strict=True)}


def tables(actions: str) -> None:
    """Print the tables of both stages. actions: `drawn` or `greedy`."""
    print(f"\n{actions} actions\n")
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read("design"):
        scores[row["task"]][row["cell"]] = float(row[actions])
    whole = {task: of for task, of in scores.items() if len(of) == len(CELLS)}
    lines: list[Sequence[object]] = [("cell", *whole, "mean rank")]
    ranks = {task: rankdata([of[cell] for cell in CELLS]) for task, of in whole.items()}
    for i, cell in enumerate(CELLS):
        mean = np.mean([of[i] for of in ranks.values()]) if whole else np.nan
        lines.append((cell, *(f"{of[cell]:,.0f}" for of in whole.values()), f"{mean:.1f}"))
    show(lines)
    if whole:
        by_task = {
            task: {name: sign @ [of[c] for c in CELLS] / 8 for name, sign in contrasts(CELLS).items()}
            for task, of in whole.items()
        }
        show(
            [("effect", "mean rank", "p", *whole)]
            + [
                (name, f"{e:+.2f}", f"{p:.4f}", *(f"{by_task[task][name]:+,.0f}" for task in whole))
                for name, (e, p) in effects(whole).items()
            ]
        )
    confirmed: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read("confirm"):
        confirmed[row["task"]][row["cell"]][int(row["seed"])] = float(row[actions])
    cells = sorted({cell for of in confirmed.values() for cell in of})
    show(
        [("task", *cells)]
        + [
            (task, *(", ".join(f"{of[cell][seed]:,.0f}" for seed in sorted(of[cell])) for cell in cells))
            for task, of in confirmed.items()
        ]
    )
    for cell in cells:
        if cell != DEFAULT:
            mean, low, high, seeds = pooled(confirmed, cell, DEFAULT, 0.99)
            print(
                f"P({cell} better than {DEFAULT}) = {mean:.2f}, 99 % {low:.2f} to {high:.2f}, {seeds} seeds at least"
            )


def show(lines: Iterable[Sequence[object]]) -> None:
    """Print a table of Markdown."""
    head, *rows = lines
    for line in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(map(str, line)) + " |")
    print()


def main() -> None:
    """Run the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*STAGES, "tables"))
    parser.add_argument(
        "--cells", nargs="+", default=[], help="confirm: cells beside the default, such as ab"
    )
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    unknown = {c for cell in chosen.cells for c in cell} - {*FACTORS}
    if unknown:
        parser.error(
            f"--cells has the unknown factors {', '.join(sorted(unknown))}: give letters of {''.join(FACTORS)}"
        )
    if chosen.what == "tables":
        tables("greedy")
        tables("drawn")
    else:
        run(chosen.what, CELLS if chosen.what == "design" else [DEFAULT, *chosen.cells], chosen.jobs)


if __name__ == "__main__":
    main()
