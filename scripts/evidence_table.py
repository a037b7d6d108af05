"""The statistics of `evidence.py`: interquartile means, and differences to random search paired by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from evidence_experiments import BASELINE, Experiment
from statistics_of_seeds import bootstrap, iqm

Members = Sequence[tuple[float, float]]
"""(validation, test) of each member of a run."""
Scores = Mapping[str, Mapping[int, Members]]
"""Arm -> seed -> members."""


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score."""
    return max(members)[1]


MEASURES: Mapping[str, Callable[[Members], float]] = {
    "picked by validation games (primary)": picked,
    "best by test games (oracle)": lambda members: max(test for _, test in members),
    "mean of saved members": lambda members: fmean(test for _, test in members),
}


def read_scores(rows: Sequence[Mapping[str, str]]) -> Scores:
    """Sort the rows of a CSV by arm and seed."""
    scores: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        scores[row["arm"]][int(row["seed"])].append((float(row["validation"]), float(row["test"])))
    return scores


def table(rows: Sequence[Mapping[str, str]], experiment: Experiment) -> None:
    """Print a table per measure as Markdown, and the frames of each arm."""
    scores = read_scores(rows)
    arms = [arm for arm in experiment.arms if arm in scores]
    print(experiment.title)
    for name, measure in MEASURES.items() if arms else ():
        print(f"\n| {name} | seeds | IQM | mean | less {BASELINE}'s, paired, 95 % | better | collapsed |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        values = {
            arm: {seed: measure(members) for seed, members in scores[arm].items()}
            for arm in {*arms, BASELINE}
            if arm in scores
        }
        for arm in arms:
            print(line(arm, values[arm], values.get(BASELINE, {}), experiment.collapsed))
    print()
    for arm in arms:
        frames = {row["seed"]: int(row["frames"]) for row in rows if row["arm"] == arm}
        print(f"frames of a run, mean: {arm} {fmean(frames.values()):,.0f}")


def line(arm: str, ours: Mapping[int, float], theirs: Mapping[int, float], collapsed: float) -> str:
    """Return one arm's line. ours, theirs: seed -> score."""
    values = list(ours.values())
    gains = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    gain = better = "-"
    if arm != BASELINE and len(gains) > 1:
        low, high = bootstrap(gains)
        gain = f"{fmean(gains):+.4g} ({low:+.4g} to {high:+.4g})"
        better = f"{sum(g > 0 for g in gains)} of {len(gains)}"
    lost = sum(value < collapsed for value in values)
    return f"| {arm} | {len(values)} | {iqm(values):.4g} | {fmean(values):.4g} | {gain} | {better} | {lost} |"
