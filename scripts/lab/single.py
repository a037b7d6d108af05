"""Which default options hold one policy back? The experiment of docs/lab/single.md.

    python scripts/lab/single.py design --jobs 2              # cells x tasks; continues with missing runs
    python scripts/lab/single.py confirm --cells ab --jobs 2  # cells beside the default, on new seeds
    python scripts/lab/single.py tables                       # the tables of docs/lab/single.md

With `--discrete`, all three commands use the tasks and factors of discrete actions.

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
    "f": "--hypers.gamma 0.999 --hypers.gae-lambda 0.98",
    "h": "--learner.minibatches 16 --hypers.learning-rate 5e-4",
}
"""Letter of a factor -> options of its second level. Its first level is the default at the protocol's commit."""
DEFAULT = "1"
"""Name of the cell with the first level of all factors."""


class Stage(NamedTuple):
    """Stage of the experiment. frames: budget of a run. episodes: evaluation episodes with each kind of actions."""

    frames: int
    episodes: int


STAGES = {"design": Stage(300_000, 10), "confirm": Stage(1_000_000, 20)}
CONFIRM_SEEDS = range(60, 68)


class Design(NamedTuple):
    """Factorial design of the experiment.

    tasks: environments of the family `gym/`. seeds: seeds of each cell in the stage `design`.
    sizes: allowed numbers of factors at the second level. For each n in `sizes`, each choice of n factors is a cell.
    """

    tasks: Sequence[str]
    factors: str
    sizes: Sequence[int]
    seeds: Sequence[int]

    @property
    def cells(self) -> list[str]:
        """Names of all cells."""
        return [
            "".join(cell) or DEFAULT for n in self.sizes for cell in itertools.combinations(self.factors, n)
        ]


CONTINUOUS = Design(
    ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5"), "abcde", (0, 2, 4), (40,)
)
"""Fraction 2^(5-1) of resolution V: I = -ABCDE, where +1 is the second level."""
DISCRETE = Design(
    ("LunarLander-v3", "Acrobot-v1", "MountainCar-v0", "CartPole-v1"), "fh", (0, 1, 2), (40, 41, 42, 43)
)
PERMUTATIONS = 20_000


def options(cell: str) -> list[str]:
    """Return the options of a cell."""
    return [word for letter in cell if letter != DEFAULT for word in shlex.split(FACTORS[letter])]


def train_and_evaluate(stage: str, task: str, cell: str, seed: int) -> dict[str, object]:
    """Train one policy in a temporary folder and evaluate its last weights."""
    frames, episodes = STAGES[stage]
    folder = Path(tempfile.mkdtemp(prefix="single-"))
    run = folder / "run"
    try:
        ours(
            "train", "--env", f"gym/{task}", "--num-policies", "1", "--mode", "serial", "--seed", str(seed),
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


def run(stage: str, tasks: Sequence[str], cells: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """Train the missing runs of a stage, seed by seed."""
    if not ROWS.exists():
        ROWS.write_text(",".join(COLUMNS) + "\n")
    done = {(row["task"], row["cell"], int(row["seed"])) for row in read(stage)}

    def one(which: tuple[str, str, int]) -> None:
        row = train_and_evaluate(stage, *which)
        with ROWS.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
        print(row, flush=True)

    wanted = ((task, cell, seed) for seed in seeds for task in tasks for cell in cells)
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, (which for which in wanted if which not in done)):
            pass


# -- tables -------------------------------------------------------------------------------------------------------


Runs = Mapping[tuple[str, int], float]
"""(cell, seed) -> score."""


def contrasts(factors: str, runs: Iterable[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Return the signs (+1 or -1) of all runs for each factor and each pair of factors: effect -> [runs]."""
    sign = {letter: np.array([1 if letter in cell else -1 for cell, _ in runs]) for letter in factors}
    pairs = {a + b: sign[a] * sign[b] for a, b in itertools.combinations(factors, 2)}
    return sign | pairs


def effects(factors: str, tasks: Sequence[Runs]) -> dict[str, tuple[float, float]]:
    """Return effect -> (mean rank at the second level minus mean rank at the first level, p of a permutation test).

    tasks: scores of each task, with equal keys. Runs are ranked within each task: 1 is the worst run. The test is
    two-sided, and permutes the ranks of each task.
    """
    signs = contrasts(factors, [*tasks[0]])
    ranks = np.stack([rankdata([of[run] for run in tasks[0]]) for of in tasks])
    weights = np.stack([*signs.values()]) * 2 / len(tasks[0])
    found = (weights @ ranks.T).mean(1)
    generator = np.random.default_rng(0)
    permuted = np.stack(
        [(weights @ generator.permuted(ranks, axis=1).T).mean(1) for _ in range(PERMUTATIONS)]
    )
    p = ((np.abs(permuted) >= np.abs(found) - 1e-9).sum(0) + 1) / (PERMUTATIONS + 1)
    return {name: (float(e), float(q)) for name, e, q in zip(signs, found, p, strict=True)}


def design_tables(design: Design, actions: str) -> None:
    """Print scores and effects of the tasks that have all runs."""
    scores: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for row in read("design"):
        scores[row["task"]][row["cell"], int(row["seed"])] = float(row[actions])
    runs = [(cell, seed) for cell in design.cells for seed in design.seeds]
    whole = {
        task: {run: scores[task][run] for run in runs}
        for task in design.tasks
        if len(scores[task]) == len(runs)
    }
    if not whole:
        return
    ranks = np.mean([rankdata([*of.values()]) for of in whole.values()], axis=0).reshape(
        len(design.cells), -1
    )
    show(
        [("cell", *whole, "mean rank")]
        + [
            (
                cell,
                *(", ".join(f"{of[cell, seed]:,.0f}" for seed in design.seeds) for of in whole.values()),
                f"{r:.1f}",
            )
            for cell, r in zip(design.cells, ranks.mean(1), strict=True)
        ]
    )
    half = len(runs) / 2
    show(
        [("effect", "mean rank", "p", *whole)]
        + [
            (
                name,
                f"{e:+.2f}",
                f"{p:.4f}",
                *(
                    f"{contrasts(design.factors, runs)[name] @ [*of.values()] / half:+,.0f}"
                    for of in whole.values()
                ),
            )
            for name, (e, p) in effects(design.factors, [*whole.values()]).items()
        ]
    )


def confirm_tables(design: Design, actions: str) -> None:
    """Print the scores of the stage `confirm`, and the probability that each cell is better than the default."""
    confirmed: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read("confirm"):
        if row["task"] in design.tasks:
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
    parser.add_argument("--discrete", action="store_true", help="tasks and factors of discrete actions")
    parser.add_argument("--tasks", nargs="+", help="some of the tasks, such as Ant-v5")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    design = DISCRETE if chosen.discrete else CONTINUOUS
    tasks = chosen.tasks or design.tasks
    unknown = {c for cell in chosen.cells for c in cell} - {*design.factors}
    if unknown:
        parser.error(f"--cells has unknown factors {sorted(unknown)}: give letters of {design.factors}")
    if chosen.what == "tables":
        for actions in ("greedy", "drawn"):
            print(f"\n{actions} actions\n")
            design_tables(design, actions)
            confirm_tables(design, actions)
    elif chosen.what == "design":
        run("design", tasks, design.cells, design.seeds, chosen.jobs)
    else:
        run("confirm", tasks, [DEFAULT, *chosen.cells], CONFIRM_SEEDS, chosen.jobs)


if __name__ == "__main__":
    main()
