"""Which values are worth tuning? The experiment of docs/lab/sensitivity.md.

    python scripts/lab/sensitivity.py run --jobs 2   # may be interrupted: a repetition makes missing runs
    python scripts/lab/sensitivity.py tell           # print the tables of docs/lab/sensitivity.md
    python scripts/lab/sensitivity.py starts         # the same analysis of the arm `random` of docs/lab/worth.md

Each run trains four members of the design, in serial mode. docs/lab/results/sensitivity.csv has one row per member.
"""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import qmc, rankdata, spearmanr
from worth import ARMS, MEMBERS, NEVER, PICKING_EPISODES, TASKS, commit, on_scale, ours, read, starts, tuned
from worth import ROWS as WORTH_ROWS

ROWS = WORTH_ROWS.with_name("sensitivity.csv")
COMMON = {"value_coef": 0.5, "clip_value": 1.0, "max_grad_norm": 0.5}
"""Recipe's values that all tasks share."""
VALUES = (
    "learning_rate", "clip_ratio", "gamma", "gae_lambda", "entropy_coef", "value_coef", "clip_value", "max_grad_norm",
)  # fmt: skip
FACTOR = 16
"""Each value is within this factor of the recipe's."""
CHOSEN = ("lunarlander", "acrobot", "halfcheetah")
RUNS = 16
POINTS = 20
"""Points of a learning curve, at equal shares of the budget."""
COLUMNS = ("commit", "task", "run", "member", *VALUES, "final", "curve")
PERMUTATIONS = 10_000


def design() -> np.ndarray:
    """Return [RUNS * MEMBERS, len(VALUES)] numbers from -1 to 1: a scrambled Sobol sequence, equal for all tasks."""
    points: np.ndarray = qmc.Sobol(len(VALUES), seed=0).random(RUNS * MEMBERS)
    return np.asarray(2 * points - 1)


def values(name: str, point: Sequence[float]) -> dict[str, float]:
    """Return the values of one member. name: task. point: row of the design."""
    recipe = COMMON | dict(TASKS[name].recipe)
    found = {v: on_scale(v, recipe[v], FACTOR**x) for v, x in zip(VALUES, point, strict=True)}
    return found | {"clip_ratio": min(found["clip_ratio"], 1.0)}


def train(name: str, run: int) -> list[dict[str, object]]:
    """Train four members of the design in a temporary folder. Return their rows."""
    task, folder = TASKS[name], Path(tempfile.mkdtemp(prefix="sensitivity-"))
    members = [values(name, point) for point in design()[run * MEMBERS : (run + 1) * MEMBERS]]
    try:
        ours(
            "train", "--env", task.env, "--num-policies", str(MEMBERS), "--seed", str(run), "--mode", "serial",
            "--train-for-frames", str(task.frames), "--learner.threads", "1", "--no-figures",
            *shlex.split(task.options), "--pbt.start-frames", str(NEVER), "--final-episodes", str(PICKING_EPISODES),
            "--pbt.tune", *tuned(replace(task, recipe=COMMON | dict(task.recipe), shaping=()), ARMS["random"]),
            "--pbt.start-values", *(",".join(f"{v}={x:.6g}" for v, x in of.items()) for of in members),
            "--out", str(folder), "--name", "run",
        )  # fmt: skip
        lines = (folder / "run" / "journal.jsonl").read_text().splitlines()
    finally:
        shutil.rmtree(folder)
    events = [json.loads(line) for line in lines]
    (final,) = (event["members"] for event in events if event["event"] == "final")
    scores = {one["member"]: one["mean"] for one in final}
    rows: list[dict[str, object]] = []
    for member, of in enumerate(members):
        seen = [event["members"][member] for event in events if event["event"] == "progress"]
        seen = [one for one in seen if one["objective"] is not None]
        at = np.linspace(task.frames / POINTS, task.frames, POINTS)
        curve = np.interp(at, [one["frames"] for one in seen], [one["objective"] for one in seen])
        rows.append(
            {"commit": commit(), "task": name, "run": run, "member": member}
            | {v: f"{x:.6g}" for v, x in of.items()}
            | {"final": f"{scores[member]:.6g}", "curve": " ".join(f"{y:.5g}" for y in curve)}
        )
    return rows


def run(jobs: int) -> None:
    """Make the missing runs, at most `jobs` at the same time. Tasks take turns."""
    if not ROWS.exists():
        ROWS.write_text(",".join(COLUMNS) + "\n")
    done = {(row["task"], int(row["run"])) for row in read(ROWS)}

    def one(which: tuple[str, int]) -> None:
        rows = train(*which)
        with ROWS.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(rows)
        print(*which, [row["final"] for row in rows], flush=True)

    wanted = ((task, n) for n in range(RUNS) for task in CHOSEN)
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, (which for which in wanted if which not in done)):
            pass


# -- tables -------------------------------------------------------------------------------------------------------


def terms(x: np.ndarray) -> np.ndarray:
    """Return the columns of the regression, [..., n, 1 + 2 k]: one, each value, and each square. x: [..., n, k]."""
    return np.concatenate([np.ones((*x.shape[:-1], 1)), x, x**2], -1)


def explained(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the share of y's variance that the regression on `terms(x)` explains. x: [..., n, k]. y: [n]."""
    q, _ = np.linalg.qr(terms(x))
    centred = y - y.mean()
    return np.asarray(((np.swapaxes(q, -1, -2) @ centred) ** 2).sum(-1) / (centred @ centred))


def shares(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each value [k]: explained share of the ranks of y that is lost without it, and its permuted shares.

    x: [n, k], rows of the design. y: [n], scores. Permuted shares [k, PERMUTATIONS]: the column of the value is
    permuted, which keeps its number of terms.
    """
    ranks, generator = rankdata(y), np.random.default_rng(0)
    found, permuted = [], []
    for column in range(x.shape[1]):
        without = explained(np.delete(x, column, 1), ranks)
        found.append(explained(x, ranks) - without)
        copies = np.repeat(x[None], PERMUTATIONS, 0)
        copies[:, :, column] = generator.permuted(copies[:, :, column], axis=1)
        permuted.append(explained(copies, ranks) - without)
    return np.array(found), np.array(permuted)


def p_values(found: np.ndarray, permuted: np.ndarray) -> np.ndarray:
    """Return the one-sided p of each value, [k], with Holm's correction for k tests."""
    p = ((permuted >= found[:, None] - 1e-9).sum(1) + 1) / (PERMUTATIONS + 1)
    order = np.argsort(p)
    corrected: np.ndarray = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected


def best(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return for each value [k] the factor of the recipe's value at which the regression of the ranks is highest."""
    coefficients, *_ = np.linalg.lstsq(terms(x), rankdata(y), rcond=None)
    grid = np.linspace(-1, 1, 201)
    k = x.shape[1]
    heights = np.outer(coefficients[1 : 1 + k], grid) + np.outer(coefficients[1 + k :], grid**2)
    return np.asarray(FACTOR ** grid[heights.argmax(1)])


def of_starts(rows: Path, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x [n, 5] and scores [n] of all members of the arm `random`: logarithms of the first five values."""
    x, y = [], []
    for row in read(rows):
        if (row["task"], row["arm"]) == (task, "random"):
            for text in starts(TASKS[task], int(row["seed"]), ARMS["random"]):
                found = {
                    name: float(value) for name, _, value in (one.partition("=") for one in text.split(","))
                }
                x.append(
                    [np.log(1 - found[v] if v in ("gamma", "gae_lambda") else found[v]) for v in VALUES[:5]]
                )
            y += [float(score) for score in row["members"].split()]
    return np.array(x), np.array(y)


def tell_starts() -> None:
    """Print the shares of five values in the runs of the arm `random`."""
    sets = [(WORTH_ROWS, task) for task in TASKS]
    sets += [
        (WORTH_ROWS.with_name("worth_rules.csv"), task) for task in ("halfcheetah", "lunarlander", "courier")
    ]
    found = [shares((x - x.mean(0)) / x.std(0), y) for x, y in (of_starts(*one) for one in sets)]
    pooled = p_values(np.mean([of[0] for of in found], 0), np.mean([of[1] for of in found], 0))
    print("| rows | " + " | ".join(VALUES[:5]) + " |\n" + "| --- " * 6 + "|")
    for (rows, task), (share, permuted) in zip(sets, found, strict=True):
        cells = [f"{s:.2f} ({p:.3f})" for s, p in zip(share, p_values(share, permuted), strict=True)]
        print(f"| {task}, {rows.stem} | " + " | ".join(cells) + " |")
    means = np.mean([of[0] for of in found], 0)
    print(
        "| **mean** | "
        + " | ".join(f"**{s:.2f}** ({p:.4f})" for s, p in zip(means, pooled, strict=True))
        + " |"
    )


def tell() -> None:
    """Print the tables. Exit with code 1 before the last run, as the protocol demands."""
    rows, points = read(ROWS), design()
    if len(rows) < (whole := len(points) * len(CHOSEN)):
        sys.exit(f"{len(rows)} of {whole} members are in {ROWS}: the tables are made after the last run")
    of_tasks = {}
    for task in CHOSEN:
        mine = [row for row in rows if row["task"] == task]
        x = points[[int(row["run"]) * MEMBERS + int(row["member"]) for row in mine]]
        curves = np.array([[float(y) for y in row["curve"].split()] for row in mine])
        of_tasks[task] = x, np.array([float(row["final"]) for row in mine]), curves
    found = {task: shares(x, y) for task, (x, y, _) in of_tasks.items()}
    pooled = tuple(np.mean([of[i] for of in found.values()], axis=0) for i in (0, 1))
    print(
        "| value | all tasks: share (p) | " + " | ".join(f"{t}: share (p), best factor" for t in found) + " |"
    )
    print("| --- " * (2 + len(found)) + "|")
    ps = {task: p_values(*of) for task, of in found.items()}
    all_p = p_values(*pooled)
    factors = {task: best(x, y) for task, (x, y, _) in of_tasks.items()}
    for i, value in enumerate(VALUES):
        cells = [f"{found[t][0][i]:.2f} ({ps[t][i]:.4f}), {factors[t][i]:.2g}" for t in found]
        print(f"| {value} | {pooled[0][i]:.2f} ({all_p[i]:.4f}) | " + " | ".join(cells) + " |")
    fits = [f"{explained(x, rankdata(y)):.2f} of {len(y)}" for x, y, _ in of_tasks.values()]
    print("| all values, members | | " + " | ".join(fits) + " |\n")
    print("| share of the budget | " + " | ".join(of_tasks) + " |")
    print("| --- " * (1 + len(of_tasks)) + "|")
    for at in (0, 1, 2, 3, 5, 9, 14, 19):
        cells = []
        for _, y, curves in of_tasks.values():
            kept = curves[:, at] >= np.quantile(curves[:, at], 0.75)
            cells.append(f"{spearmanr(curves[:, at], y)[0]:.2f}, {rankdata(y)[kept].max() / len(y):.2f}")
        print(f"| {(at + 1) / POINTS:.0%} | " + " | ".join(cells) + " |")


def main() -> None:
    """Make runs or print the tables."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "tell", "starts"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    chosen = parser.parse_args()
    if chosen.what == "run":
        run(chosen.jobs)
    elif chosen.what == "starts":
        tell_starts()
    else:
        tell()


if __name__ == "__main__":
    main()
