"""How well agents learn, by fresh games of saved weights along each run: one policy, serial, one core, restartable.

    python scripts/lab/reproduce_agents.py a3c                # all runs of an experiment that its rows lack
    python scripts/lab/reproduce_agents.py unreal_treasure --seeds 0:1 --arms a3c
    python scripts/lab/reproduce_agents.py unreal_treasure --seconds 200  # a part: stops then; the same command goes on
    python scripts/lab/reproduce_agents.py a3c --picture docs/lab/a3c.png    # what is there: curves and table

The experiments and their arms are in reproduce_arms.py. A run saves itself at each tenth of its frames, and is judged
when it is whole: 20 fresh games of every checkpoint, 100 of the last, on seeds of their own. Its rows are appended to
docs/lab/results/EXPERIMENT.csv, whatever they say. A run that was stopped waits in --out and goes on from where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill

import numpy as np
from reproduce_arms import EXPERIMENTS, Experiment
from reproduce_fresh import GAMES, fresh_games
from reproduce_rl import T_95
from reproduce_runs import folder_name
from reproduce_runs import trained as carried_on
from results_rows import append_rows, read_rows, seed_range

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "lab" / "results"
COLUMNS = ("arm", "seed", "frames", "games", "score")
CURVE_GAMES = 20

Curves = dict[str, dict[int, list[tuple[int, float]]]]
"""Arm -> seed -> (frames, score) of each checkpoint, in order."""


def read_curves(path: Path) -> Curves:
    """Return the rows of a CSV, none if there is no file."""
    curves: Curves = defaultdict(dict)
    for row in read_rows(path):
        points = curves[row["arm"]].setdefault(int(row["seed"]), [])
        points.append((int(row["frames"]), float(row["score"])))
    return curves


def trained(experiment: Experiment, arm: str, seed: int, out: Path, until: float) -> bool:
    """Train one run, or go on with it; return whether it is whole at the time `until`. Raises RuntimeError."""
    name = folder_name(arm, seed)
    command = [sys.executable, "-m", "pbt_rl", "train", *experiment.options, *experiment.arms[arm]]
    command += [
        "--mode",
        "serial",
        "--num-policies",
        "1",
        "--pbt.no-enabled",
        "--devices",
        "cpu",
    ]
    command += ["--train-for-frames", f"{experiment.frames}", "--save-every-frames", f"{experiment.step}"]
    command += [
        "--seed",
        f"{seed}",
        "--out",
        f"{out}",
        "--name",
        name,
        "--no-figures",
        "--learner.threads",
        "1",
    ]
    return carried_on(command, out / name, until)


def judge(experiment: Experiment, run: Path, arm: str, seed: int) -> list[tuple[object, ...]]:
    """Play fresh games of every checkpoint of a whole run; return its rows."""
    rows: list[tuple[object, ...]] = []
    for frames in sorted(int(folder.name.removeprefix("at_")) for folder in run.glob("checkpoints/at_*")):
        if frames < experiment.frames:
            score = fresh_games(run, CURVE_GAMES, at=frames).scores[0]
            rows.append((arm, seed, frames, CURVE_GAMES, f"{score:.3f}"))
    return [*rows, (arm, seed, experiment.frames, GAMES, f"{fresh_games(run).scores[0]:.3f}")]


def table(curves: Curves, arms: Sequence[str], step: int) -> None:
    """Print the last scores, their mean at each tenth, and the means of whole runs. step: frames of a tenth.

    A run that went on has checkpoints of its interruptions as well, which count in no mean.
    """
    there = {arm: curves[arm] for arm in arms if arm in curves}
    compare("last score", {a: {s: of[-1][1] for s, of in runs.items()} for a, runs in there.items()})
    tenths = {
        arm: {seed: [y for x, y in points if x % step == 0] for seed, points in runs.items()}
        for arm, runs in there.items()
    }
    for arm, runs in tenths.items():
        means = (fmean(scores) for scores in zip(*runs.values(), strict=True))
        print(f"{arm:24} mean at each tenth: {', '.join(f'{mean:.2f}' for mean in means)}")
    compare("mean of a run", {a: {s: fmean(of) for s, of in runs.items()} for a, runs in tenths.items()})


def compare(what: str, found: Mapping[str, Mapping[int, float]]) -> None:
    """Print each arm's scores, and the paired difference of the first two with its 95 % interval by Student's t."""
    print(f"{what}:")
    for arm, scores in found.items():
        each = ", ".join(f"{score:.3g}" for _, score in sorted(scores.items()))
        print(f"{arm:24} {len(scores)} seeds: {fmean(scores.values()):.3g} ({each})")
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        gains = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
        if len(gains) > 1:
            half = T_95[len(gains)] * stdev(gains) / len(gains) ** 0.5
            print(f"{one} - {other}: {fmean(gains):+.3g} +- {half:.3g} ({len(gains)} seeds)")


def picture(path: Path, title: str, curves: Mapping[str, Mapping[int, Sequence[tuple[int, float]]]]) -> None:
    """Draw every run's curve, a colour per arm, and each arm's mean."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `report`

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (arm, runs) in enumerate(curves.items()):
        for points in runs.values():
            axes.plot(*zip(*points, strict=True), color=f"C{number}", alpha=0.35, linewidth=1)
        frames = sorted({x for points in runs.values() for x, _ in points})  # a run that went on has one more
        interpolated = [
            np.interp(frames, [x for x, _ in points], [y for _, y in points]) for points in runs.values()
        ]
        label = f"{arm} ({len(runs)} seeds)"
        axes.plot(frames, np.mean(interpolated, axis=0), color=f"C{number}", linewidth=2.5, label=label)
    axes.set(title=fill(title, 60), xlabel="frames", ylabel="score of fresh games")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Run what is missing until the time is over, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=seed_range, help="FIRST:END; default: all of the experiment")
    parser.add_argument("--arms", nargs="+", help="default: all of the experiment")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop the training after this long")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "agents", help="folder of the runs")
    parser.add_argument("--picture", type=Path, help="draw the curves that are there; nothing is trained")
    chosen = parser.parse_args()
    experiment = EXPERIMENTS[chosen.experiment]
    results = RESULTS / f"{chosen.experiment}.csv"
    arms = chosen.arms or list(experiment.arms)
    if unknown := [arm for arm in arms if arm not in experiment.arms]:
        parser.error(f"--arms {' '.join(unknown)}: choose from {', '.join(experiment.arms)}")
    if chosen.picture:
        found = read_curves(results)
        picture(chosen.picture, experiment.title, {arm: found[arm] for arm in arms if arm in found})
    until = time.monotonic() + chosen.seconds
    missing = [
        (seed, arm)
        for seed in chosen.seeds or range(experiment.seeds)
        for arm in arms
        if not chosen.picture and seed not in read_curves(results)[arm]
    ]
    for seed, arm in missing:
        out = chosen.out / chosen.experiment
        if not trained(experiment, arm, seed, out, until):
            print(f"{arm}, seed {seed}: stopped; the same command goes on")
            break
        append_rows(results, COLUMNS, judge(experiment, out / folder_name(arm, seed), arm, seed))
        print(f"{arm}, seed {seed}: {read_curves(results)[arm][seed][-1][1]:.3g}", flush=True)
    table(read_curves(results), list(experiment.arms), experiment.step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
