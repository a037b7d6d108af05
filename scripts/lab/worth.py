"""Experiment of docs/lab/worth.md: does PBT score more than its control, and with which default rule?

    python scripts/lab/worth.py run --seeds 100 101 --jobs 2   # may be interrupted: a repetition makes missing runs
    python scripts/lab/worth.py tell                           # print the tables of docs/lab/worth.md
    python scripts/lab/worth.py draw                           # draw docs/lab/worth.png

docs/lab/results/worth.csv has one row per run. worth_rules.csv, worth_budgets.csv, worth_values.csv, worth_unknown.csv,
worth_again.csv and worth_room.csv have the rows of the second to seventh experiment (--rows). All runs are in serial
mode. Other work on the machine therefore changes only the seconds of a run.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import wilcoxon

HERE = Path(__file__).resolve()
LAB = HERE.parents[2] / "docs" / "lab"
ROWS, PICTURE = LAB / "results" / "worth.csv", LAB / "worth.png"
COLUMNS = (
    "commit", "task", "arm", "seed", "frames_each", "comparisons", "replacements", "picked", "drawn", "greedy",
    "members", "seconds",
)  # fmt: skip
MEMBERS = 4
EPISODES, PICKING_EPISODES = 20, 10
SEEDS = tuple(range(100, 108))
FIRST_SHARE, COMPARISONS = 0.3, 15
"""Share of the budget before the first comparison, and number of later comparisons, in the arms `near` and `pb2`."""


@dataclass(frozen=True)
class Task:
    """Environment, with the options of its runs. frames: budget of a member. members: size of the population.

    recipe: values of the environment's recipe. Members begin near these values.
    options: with EIGHT, a member has only eight rows, because all rows must end an episode within a period. Longer
    rollouts then keep the usual size of a batch.
    random, best: scores of the random policy and of the best known policy. Results are normalised with these scores.
    """

    env: str
    frames: int
    options: str
    recipe: Mapping[str, float]
    shaping: tuple[str, ...] = ()
    random: float = 0.0
    best: float = 1.0
    members: int = MEMBERS


EIGHT = "--actors 1 --vector-envs-per-actor 2 --envs-per-vector-env 4"
CONTINUOUS = {
    "learning_rate": 3e-4, "clip_ratio": 0.2, "gamma": 0.995, "gae_lambda": 0.97, "entropy_coef": 1e-4,
}  # fmt: skip
DISCRETE = {
    "learning_rate": 1e-3, "clip_ratio": 0.2, "gamma": 0.99, "gae_lambda": 0.95, "entropy_coef": 5e-3,
}  # fmt: skip
MUJOCO = f"{EIGHT} --learner.rollout 256 --hypers.unroll 256"
COURIER = (
    "--env-option limit=100 --rows 32 --model.encoder mlp --model.hidden 64 --learner.rollout 64 --hypers.unroll 64 "
    "--learner.batch 2048 --learner.minibatches 2 --learner.epochs 4 --learner.lr-schedule constant "
    "--hypers.learning-rate 1e-3 --hypers.entropy-coef 0.003 --hypers.clip-ratio 0.2"
)
TASKS: dict[str, Task] = {
    "halfcheetah": Task("gym/HalfCheetah-v5", 300_000, MUJOCO, CONTINUOUS, random=-280, best=5831),
    "hopper": Task("gym/Hopper-v5", 300_000, MUJOCO, CONTINUOUS, random=18, best=2410),
    "walker2d": Task("gym/Walker2d-v5", 300_000, MUJOCO, CONTINUOUS, random=2, best=3452),
    "swimmer": Task("gym/Swimmer-v5", 300_000, MUJOCO, CONTINUOUS, random=0, best=282),
    "lunarlander": Task(
        "gym/LunarLander-v3",
        300_000,
        f"{EIGHT} --learner.rollout 128 --hypers.unroll 128",
        DISCRETE,
        random=-180,
        best=242,
    ),
    "acrobot": Task(
        "gym/Acrobot-v1",
        150_000,
        f"{EIGHT} --learner.rollout 128 --hypers.unroll 128",
        DISCRETE,
        random=-500,
        best=-73,
    ),
    "courier": Task(
        "courier:make_env",
        200_000,
        COURIER,
        DISCRETE | {"entropy_coef": 3e-3},
        ("near", "slow", "effort"),
        random=0.1,
        best=7.0,
    ),
}

BUDGETS: dict[str, Task] = {
    "courier_long": replace(TASKS["courier"], frames=1_000_000),
    "courier_many": replace(TASKS["courier"], members=16),
}
"""Tasks of the third experiment."""
SHAPING_RANGE = (0.001, 1.0)
NEVER = 10**12


@dataclass(frozen=True)
class Arm:
    """Compared method. first: share of the budget before the first comparison. None: members are never changed.

    period: share of the budget between two comparisons.
    wide: True if members begin, and values are tuned, within a factor of 16 of the recipe. False: members begin within
    a factor of 2.
    ranges: True if values are tuned within a factor of 4 of the recipe. If `wide` and `ranges` are False, PBT tunes
    `values` within their default ranges. With `wide` or `ranges`, gamma may reach 0.9999.
    values: names of tuned values. If empty, PBT tunes the values that it tunes by default.
    unknown: True if learning rate and entropy coefficient are within a factor of 100 of the recipe. `wide` applies to
    the other values.
    Reward weights are tuned within SHAPING_RANGE.
    """

    first: float | None
    period: float = 0.04
    options: str = ""
    wide: bool = False
    ranges: bool = False
    values: tuple[str, ...] = ()
    unknown: bool = False

    def factor(self, name: str) -> float:
        """Return the largest factor between a value and the recipe's value, for start values and for bounds."""
        if self.unknown and name in ("learning_rate", "entropy_coef"):
            return 100.0
        return 16.0 if self.wide else 4.0 if self.ranges else 2.0


LIMITED = "--pbt.exploit rules:LimitedTruncation --pbt.explore"
FINALISTS = "--pbt.exploit rules:Finalists --pbt.explore"
NEAR_EXPLORE = "resample --pbt.factors 1.25 0.8 --pbt.explore-probability 0.25"
LATER = (1 - FIRST_SHARE) / COMPARISONS
ARMS: Mapping[str, Arm] = {
    "control": Arm(None),
    "default": Arm(0.05),
    "later": Arm(FIRST_SHARE),
    "near": Arm(FIRST_SHARE, LATER, f"{LIMITED} {NEAR_EXPLORE}", ranges=True),
    "pb2": Arm(FIRST_SHARE, LATER, f"{LIMITED} pb2", ranges=True),
    "random": Arm(None, wide=True),
    "wide": Arm(0.05, wide=True),
    "finalists": Arm(0.1, 0.045, f"{FINALISTS} {NEAR_EXPLORE}", wide=True),
    "finalists_pb2": Arm(0.1, 0.045, f"{FINALISTS} pb2", wide=True),
    "three": Arm(0.05, values=("learning_rate", "gamma", "gae_lambda")),
    "random_unknown": Arm(None, wide=True, unknown=True),
    "wide_unknown": Arm(0.05, wide=True, unknown=True),
}
PAIRED: Mapping[str, tuple[str, str, int]] = {
    "worth_budgets": ("wide", "random", 48),
    "worth_values": ("three", "default", 72),
    "worth_unknown": ("wide_unknown", "random_unknown", 72),
    "worth_again": ("wide_unknown", "random_unknown", 96),
    "worth_room": ("wide_unknown", "random_unknown", 60),
}
"""File of rows -> compared arms with equal starts, and number of runs, in the third to seventh experiment."""
USUAL = ("learning_rate", "entropy_coef", "value_coef", "clip_ratio", "clip_value", "max_grad_norm")
"""Values that PBT tunes by default."""


def on_scale(name: str, value: float, factor: float) -> float:
    """Multiply a value by a factor. For gamma and lambda, multiply 1 - value instead."""
    return 1 - (1 - value) * factor if name in ("gamma", "gae_lambda") else value * factor


def starts(task: Task, seed: int, arm: Arm) -> list[str]:
    """Return the initial values of each member. Member 0 begins with the recipe unless `arm.wide`.

    Arms with equal `wide` and `unknown` begin with equal values. A larger population begins with those of a smaller
    one.
    """
    draw, drawn = random.Random(f"{task.env} {seed} {arm.wide}"), replace(arm, ranges=False)
    low, high = map(math.log, SHAPING_RANGE)
    members = []
    for member in range(task.members):
        values = {
            name: on_scale(name, value, drawn.factor(name) ** draw.uniform(-1, 1))
            for name, value in task.recipe.items()
        }
        if member == 0 and not arm.wide:
            values = dict(task.recipe)
        values["clip_ratio"] = min(values["clip_ratio"], 1.0)
        values |= {f"shaping.{name}": math.exp(draw.uniform(low, high)) for name in task.shaping}
        members.append(",".join(f"{name}={value:.6g}" for name, value in values.items()))
    return members


def tuned(task: Task, arm: Arm) -> list[str]:
    """Return the ranges of the tuned values.

    Hyperparameters are within `arm.factor` of the recipe, but gamma may reach 0.9999, and clip_ratio is at most 1.
    Reward weights are within SHAPING_RANGE.
    """
    ranges = []
    for name, value in task.recipe.items():
        factor = arm.factor(name)
        low, high = sorted((on_scale(name, value, factor), on_scale(name, value, 1 / factor)))
        scale = "one-minus" if name in ("gamma", "gae_lambda") else "log"
        high = {"gamma": 0.9999, "clip_ratio": min(high, 1.0)}.get(name, high)
        ranges.append(f"{name}={low:.6g}:{high:.6g}:{scale}")
    low, high = SHAPING_RANGE
    return [*ranges, *(f"shaping.{name}={low:g}:{high:g}:log" for name in task.shaping)]


def command(task: Task, arm: Arm, seed: int) -> list[str]:
    """Return the options of a run."""
    first = NEVER if arm.first is None else round(arm.first * task.frames)
    words = [
        "--env", task.env, "--num-policies", str(task.members), "--seed", str(seed), "--mode", "serial",
        "--train-for-frames", str(task.frames), "--learner.threads", "1", "--no-figures", *shlex.split(task.options),
        "--pbt.start-frames", str(first), "--pbt.period-frames", str(max(1, round(arm.period * task.frames))),
        "--final-episodes", str(PICKING_EPISODES), *shlex.split(arm.options),
    ]  # fmt: skip
    if arm.ranges or arm.wide:
        words += ["--pbt.tune", *tuned(task, arm)]
    elif task.shaping or arm.values:
        weights = [entry for entry in tuned(task, arm) if entry.startswith("shaping.")]
        words += ["--pbt.tune", *(arm.values or USUAL), *weights]
    return [*words, "--pbt.start-values", *starts(task, seed, arm)]


def ours(*words: str) -> str:
    """Run a pbt-rl command, and return the output. Raises RuntimeError if the command fails."""
    path = os.pathsep.join((str(HERE.parents[2]), str(HERE.parent), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "pbt_rl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}\n{done.stdout[-3000:]}")
    return done.stdout


def train_and_play(name: str, kind: str, seed: int) -> dict[str, object]:
    """Make one run in a temporary folder, and evaluate the picked member. Return the row of the run.

    The evaluation seeds differ from the seeds of the final evaluation, which picks the member.
    """
    task, folder = (TASKS | BUDGETS)[name], Path(tempfile.mkdtemp(prefix="worth-"))
    try:
        ours("train", *command(task, ARMS[kind], seed), "--out", str(folder), "--name", "run")
        run = folder / "run"
        summary = json.loads((run / "summary.json").read_text())
        events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
        (final,) = (event for event in events if event["event"] == "final")
        final_scores = {one["member"]: one["mean"] for one in final["members"]}
        picked, played = summary["best_member"], {}
        for how in ("drawn", "greedy"):
            greedy = ["--greedy"] if how == "greedy" else []
            text = ours(
                "eval", str(run), "--trust", "--episodes", str(EPISODES), "--seed", str(seed), *greedy
            )
            found = re.search(rf"over {EPISODES} episodes: mean (\S+),", text)
            assert found, text
            played[how] = float(found[1])
    finally:
        shutil.rmtree(folder)
    return {
        "commit": commit(),
        "task": name,
        "arm": kind,
        "seed": seed,
        "frames_each": max(member["frames"] for member in summary["members"]),
        "comparisons": sum(e["event"] == "round" for e in events),
        "replacements": summary["replacements"],
        "picked": picked,
        **played,
        "members": " ".join(f"{final_scores[m]:.6g}" for m in sorted(final_scores)),
        "seconds": round(summary["training_seconds"]),
    }


def commit() -> str:
    """Return the commit of this checkout."""
    words = ["git", "-C", str(HERE.parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def read(rows: Path = ROWS) -> list[dict[str, str]]:
    """Return all rows of a file."""
    if not rows.exists():
        return []
    with rows.open(newline="") as file:
        return list(csv.DictReader(file))


def missing(chosen: Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield (task, arm, seed) for each run without a row, seed by seed. An interrupted experiment is then balanced."""
    done = {(row["task"], row["arm"], int(row["seed"])) for row in read(chosen.rows)}
    for seed in chosen.seeds:
        for task in chosen.tasks:
            yield from ((task, arm, seed) for arm in chosen.arms if (task, arm, seed) not in done)


def run(chosen: Namespace) -> None:
    """Make the missing runs, at most --jobs at the same time."""
    if not chosen.rows.exists():
        chosen.rows.write_text(",".join(COLUMNS) + "\n")

    def one(which: tuple[str, str, int]) -> None:
        row = train_and_play(*which)
        with chosen.rows.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
        print(row, flush=True)

    with ThreadPoolExecutor(chosen.jobs) as pool:
        for _ in pool.map(one, missing(chosen)):
            pass


# -- tables ---------------------------------------------------------------------------------------------------

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Task -> arm -> seed -> score of the picked member."""
BOOTSTRAPS = 10_000


def scores(rows: Sequence[Mapping[str, str]], how: str) -> Scores:
    """Return the scores of all rows. how: column of the score, `drawn` (sampled actions) or `greedy`."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row["task"]][row["arm"]][int(row["seed"])] = float(row[how])
    return found


def improvement(of: ArrayLike, over: ArrayLike) -> float:
    """Return the probability that a run in `of` scores more than a run in `over`. A tie counts half.

    The result is Mann-Whitney's U divided by the number of pairs.
    """
    a, b = np.asarray(of)[:, None], np.asarray(over)[None, :]
    return float((a > b).mean() + 0.5 * (a == b).mean())


def pooled(found: Scores, arm: str, than: str, level: float = 0.95) -> tuple[float, float, float, int]:
    """Return the mean of `improvement` over tasks, both ends of its interval, and the fewest seeds of any task and arm.

    The interval is a bootstrap of the seeds within each task (Agarwal et al. 2021, "Deep RL at the edge of the
    statistical precipice", section 4). arm, than: compared arms. level: probability of the interval.
    """
    pairs = [
        (np.array([*arms[arm].values()]), np.array([*arms[than].values()]))
        for arms in found.values()
        if arms.get(arm) and arms.get(than)
    ]
    if not pairs:
        return math.nan, math.nan, math.nan, 0
    generator = np.random.default_rng(0)
    means = [
        np.mean([improvement(generator.choice(a, len(a)), generator.choice(b, len(b))) for a, b in pairs])
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return (
        float(np.mean([improvement(a, b) for a, b in pairs])),
        float(low),
        float(high),
        min(min(len(a), len(b)) for a, b in pairs),
    )


def normalised(task: str, score: float) -> float:
    """Return a score as a share of the distance from the random to the best known policy."""
    about = (TASKS | BUDGETS)[task]
    return (score - about.random) / (about.best - about.random)


def iqm(found: Scores, arm: str) -> float:
    """Return the interquartile mean of an arm's normalised scores over all tasks and seeds."""
    all_scores = sorted(
        normalised(task, score) for task, arms in found.items() for score in arms.get(arm, {}).values()
    )
    cut = len(all_scores) // 4
    return float(np.mean(all_scores[cut : len(all_scores) - cut])) if all_scores else math.nan


def tell_pairs(rows: Sequence[Mapping[str, str]], arm: str, than: str, runs: int) -> None:
    """Print for each task, and for all, how many runs of `arm` score more than the run of `than` with the same starts.

    p: two-sided, Wilcoxon's signed-rank test. Differences over all tasks are of normalised scores. Exit with code 1
    before all `runs` are there, as the protocols demand.
    """
    if len(rows) < runs:
        sys.exit(f"{len(rows)} of {runs} runs are there: the tables are made after the last run")
    for how in ("drawn", "greedy"):
        all_gains = []
        for task, arms in scores(rows, how).items():
            seeds = sorted(arms[arm].keys() & arms[than].keys())
            tell_gains(f"{task}, {how} actions", [arms[arm][seed] - arms[than][seed] for seed in seeds])
            all_gains += [normalised(task, arms[arm][s]) - normalised(task, arms[than][s]) for s in seeds]
        tell_gains(f"all tasks, {how} actions, normalised", all_gains)


def tell_gains(what: str, gains: Sequence[float]) -> None:
    """Print the number of positive differences, their median, and p."""
    print(
        f"{what}: {(np.array(gains) > 0).sum()} of {len(gains)} pairs better, median difference "
        f"{np.median(gains):.2f}, p = {wilcoxon(gains).pvalue:.2g}"
    )


def tell(chosen: Namespace) -> None:
    """Print the tables of docs/lab/worth.md."""
    rows = read(chosen.rows)
    if chosen.rows.stem in PAIRED:
        tell_pairs(rows, *PAIRED[chosen.rows.stem])
    present = {row["arm"] for row in rows}
    arms = [arm for arm in ARMS if arm in present]
    for how in ("greedy", "drawn"):
        found = scores(rows, how)
        print(f"\n{how} actions, {EPISODES} evaluation episodes of the picked member: median (runs)\n")
        print("| task | " + " | ".join(arms) + " |\n| --- |" + " --- |" * len(arms))
        for task, of in found.items():
            cells = [
                f"{np.median([*of[arm].values()]):.4g} ({len(of[arm])})" if of[arm] else "" for arm in arms
            ]
            print(f"| {task} | " + " | ".join(cells) + " |")
        print("| IQM, normalised | " + " | ".join(f"{iqm(found, arm):.3f}" for arm in arms) + " |")
        for than in (
            arm for arm in ("control", "default", "random", "wide", "random_unknown") if arm in present
        ):
            print(
                f"\n| P(improvement) over {than} | pooled, 95 %, fewest seeds | 97.5 % |\n| --- | --- | --- |"
            )
            for arm in (arm for arm in arms if arm != than):
                value, low, high, least = pooled(found, arm, than)
                _, lower, higher, _ = pooled(found, arm, than, 0.975)
                print(
                    f"| {arm} | {value:.2f} ({low:.2f} to {high:.2f}; {least}) | {lower:.2f} to {higher:.2f} |"
                )


TITLES = {"halfcheetah": "HalfCheetah", "walker2d": "Walker2d", "lunarlander": "LunarLander"}


def draw(_chosen: Namespace) -> None:
    """Draw the normalised greedy scores of PBT and of its control, for both kinds of starts."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - not needed for runs

    found = scores(read(), "greedy")
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    pairs = (("wide", "random", "far from the recipe"), ("default", "control", "near the recipe"))
    for axes, (arm, control, where) in zip(panels, pairs, strict=True):
        for name, shift, colour, label in (
            (control, -0.16, "#888888", "control group"),
            (arm, 0.16, "#1f6fb4", "PBT"),
        ):
            for x, (task, arms) in enumerate(found.items()):
                about = TASKS[task]
                ys = np.array(
                    [(score - about.random) / (about.best - about.random) for score in arms[name].values()]
                )
                xs = x + shift + np.linspace(-0.07, 0.07, len(ys))
                axes.plot(xs, ys, "o", color=colour, alpha=0.55, markersize=5, label=label if x == 0 else "")
                axes.plot(
                    [x + shift - 0.13, x + shift + 0.13], [np.median(ys)] * 2, color=colour, linewidth=2.5
                )
        axes.set_title(f"Members start {where}", loc="left", fontsize=11)
        axes.set_ylabel("0: random, 1: best known")
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, ncols=2, loc="upper right")
    panels[1].set_xticks(range(len(found)), [TITLES.get(task, task.capitalize()) for task in found])
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Make runs, print the tables, or draw the picture."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    makes = commands.add_parser("run")
    makes.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    makes.add_argument("--tasks", nargs="+", choices=TASKS | BUDGETS, default=[*TASKS])
    makes.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    makes.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    makes.set_defaults(do=run)
    tells = commands.add_parser("tell")
    tells.set_defaults(do=tell)
    for parses in (makes, tells):
        parses.add_argument("--rows", type=Path, default=ROWS, help="file of rows; default: %(default)s")
    commands.add_parser("draw").set_defaults(do=draw)
    chosen = parser.parse_args()
    chosen.do(chosen)


if __name__ == "__main__":
    main()
