"""Figure 5 of Jaderberg et al. (2017) in small: what of PBT helps, on a GAN and on a classifier. Restartable.

    python scripts/lab/reproduce_figure5.py run ring --seeds 0:12      # what docs/lab/results/figure5.csv lacks
    python scripts/lab/reproduce_figure5.py run digits --seeds 0:20
    python scripts/lab/reproduce_figure5.py table                      # all runs that are there
    python scripts/lab/reproduce_figure5.py picture docs/lab/figure5.png
    python scripts/lab/reproduce_figure5.py lines docs/lab/figure5_lines.png  # of the members that PBT ends with

The protocol is in docs/lab/evidence.md. Every arm begins at the same draws of the prior, and every member of every arm
takes the same number of steps. Needs scikit-learn for the digits and matplotlib for pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

from judged_arms import Arm, Comparison, Protocol, pairs
from judged_populations import FRESH, ROOT, Population, Results, Task, picked, train
from papers import digits, gan
from statistics_of_seeds import paired

from pbt_rl.controllers import BinaryTournament, Exploit, Schedule, StaticController, TTest, Values
from pbt_rl.controllers.decisions import CopyWhat

RESULTS = Results(ROOT / "docs" / "lab" / "results" / "figure5.csv")
MEMBERS = 6
LARGEST = 12
TASKS = {
    "ring": Task(
        "ring",
        gan.Gan,
        gan.TABLE,
        validation=lambda member: member.coverage(1, 10_000),
        test=lambda member: member.coverage(2, 10_000),
        steps=60,
        period=5,
        factors=(2.0, 0.5),
    ),
    "digits": Task(
        "digits",
        digits.Classifier,
        digits.TABLE,
        validation=lambda member: member.accuracy(digits.splits()[1]),
        test=lambda member: member.accuracy(digits.splits()[2]),
        steps=60,
        period=5,
        factors=(1.2, 0.8),
    ),
}


def pbt(members: int = MEMBERS, *, exploit: Exploit | None = None, copy: CopyWhat = "both") -> Arm:
    """Return an arm of PBT. exploit, copy: see `Task.pbt`."""
    return lambda task, seed: train(
        task, seed, task.pbt(seed, exploit=exploit, copy=copy), task.draws(seed, members)
    )


def random(task: Task, seed: int) -> Population:
    """Keep what was drawn. The largest population holds the smaller ones: they are its first members."""
    return train(task, seed, StaticController(task.table), task.draws(seed, LARGEST))


def line_of_pbt(task: Task, seed: int) -> list[tuple[int, Values]]:
    """Return the schedule of PBT's picked member. Raises SystemExit if that run is missing."""
    if line := RESULTS.lines(task.name, "pbt").get(seed):
        return line
    raise SystemExit(
        f"{task.name}, seed {seed}: this arm needs the run of pbt, which is missing: add --arms pbt"
    )


def held(task: Task, seed: int) -> Population:
    """Train new networks with the values that PBT ended with, held from the start."""
    last = line_of_pbt(task, seed)[-1][1]
    return train(task, seed, StaticController(task.table), [last] * MEMBERS, FRESH)


def schedule(task: Task, seed: int) -> Population:
    """Train new networks by the schedule that PBT's picked member went through."""
    steps = line_of_pbt(task, seed)
    return train(task, seed, Schedule(steps), [steps[0][1]] * MEMBERS, FRESH)


ARMS: Mapping[str, Arm] = {
    "random": random,
    "pbt": pbt(),
    "binary tournament": pbt(exploit=BinaryTournament()),
    "t-test": pbt(exploit=TTest(returns=5)),
    "weights only": pbt(copy="weights"),
    "hypers only": pbt(copy="hypers"),
    "final hypers held": held,
    "schedule followed": schedule,
    "pbt of 3": pbt(3),
    "pbt of 12": pbt(12),
}


COMPARISONS = (
    Comparison("a: population", "3 members", "pbt of 3", members=3),
    Comparison("a: population", "6 members", "pbt", members=MEMBERS),
    Comparison("a: population", "12 members", "pbt of 12", members=LARGEST),
    Comparison("b: exploit", "truncation", "pbt", members=MEMBERS),
    Comparison("b: exploit", "binary tournament", "binary tournament", members=MEMBERS),
    Comparison("b: exploit", "t-test", "t-test", members=MEMBERS),
    Comparison("c: targets", "both", "pbt", members=MEMBERS),
    Comparison("c: targets", "weights only", "weights only", members=MEMBERS),
    Comparison("c: targets", "hypers only", "hypers only", members=MEMBERS),
    Comparison("d: adaptivity", "PBT", "pbt", members=MEMBERS),
    Comparison("d: adaptivity", "its schedule, new networks", "schedule followed", members=MEMBERS),
    Comparison("d: adaptivity", "its final hypers, held", "final hypers held", members=MEMBERS),
    Comparison("directly", "truncation - binary tournament", "pbt", "binary tournament"),
    Comparison("directly", "truncation - t-test", "pbt", "t-test"),
    Comparison("directly", "both - weights only", "pbt", "weights only"),
    Comparison("directly", "both - hypers only", "pbt", "hypers only"),
    Comparison("directly", "PBT - final hypers held", "pbt", "final hypers held"),
    Comparison("directly", "PBT - its schedule followed", "pbt", "schedule followed"),
    Comparison("directly", "final hypers held - schedule", "final hypers held", "schedule followed"),
)


PROTOCOL = Protocol(RESULTS, TASKS, ARMS, COMPARISONS)


def picture(path: Path) -> None:
    """Draw the panels of figure 5: improvement over random search of the same size, with its 95 % interval."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `report`

    panels = sorted({one.panel for one in COMPARISONS} - {"directly"})
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots(len(TASKS), len(panels), sharey="row", squeeze=False)
    for row, task in enumerate(TASKS):
        runs = RESULTS.runs(task)
        seeds = min(len(runs[arm]) for arm in ARMS)
        for column, panel in enumerate(panels):
            place = axes[row][column]
            bars = [one for one in COMPARISONS if one.panel == panel and len(pairs(runs, one, picked)[0]) > 1]
            for x, one in enumerate(bars):
                gain = paired(*pairs(runs, one, picked))
                place.bar(x, gain.mean, color=f"C{x}", alpha=0.6)
                place.errorbar(
                    x, gain.mean, [[gain.mean - gain.low], [gain.high - gain.mean]], color="k", capsize=4
                )
            place.axhline(0, color="k", linewidth=0.8)
            place.set_xticks(range(len(bars)), [fill(one.label, 14) for one in bars], fontsize=7)
            place.set_title(f"{task} ({seeds} seeds), {panel}", fontsize=9)
        axes[row][0].set_ylabel("test score - random search", fontsize=8)
    figure.savefig(path, dpi=110)


def lines(path: Path) -> None:
    """Draw the schedules of the members that PBT picked, a line per seed."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `report`

    names = [(task, name) for task in TASKS for name in TASKS[task].table]
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    for place, (task, name) in zip(figure.subplots(1, len(names)), names, strict=True):
        for line in RESULTS.lines(task, "pbt").values():
            steps, values = [step for step, _ in line], [values[name] for _, values in line]
            place.step([*steps, TASKS[task].steps], [*values, values[-1]], where="post", alpha=0.5)
        place.set_title(f"{task}: {name}", fontsize=9)
        place.set_xlabel("step", fontsize=8)
        if TASKS[task].table[name].scale == "log":
            place.set_yscale("log")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(PROTOCOL.main(__doc__, {"picture": picture, "lines": lines}))
