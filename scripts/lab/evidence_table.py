"""The statistics of `evidence.py`: interquartile means, and differences to random search paired by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from evidence_experiments import BASELINE, Experiment
from statistics_of_seeds import bootstrap, half_by_t, iqm

Members = Sequence[tuple[float, float]]
"""(validation, test) of each member of a run."""
Scores = Mapping[str, Mapping[int, Members]]
"""Arm -> seed -> members."""


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score; of equals the first, not the better one."""
    return max(members, key=lambda scores: scores[0])[1]


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
    print()
    compared = [arm for arm in arms if arm != BASELINE]
    for arm in compared:
        gains = paired_gains(*({seed: picked(of) for seed, of in scores[a].items()} for a in (arm, BASELINE)))
        if len(gains) > 1:
            alone, corrected = half_by_t(gains), half_by_t(gains, len(compared))
            print(
                f"picked, less {BASELINE}'s, by Student's t: {arm} {fmean(gains):+.4g} +- {alone:.4g}, "
                f"as one of {len(compared)} comparisons +- {corrected:.4g}"
            )


def paired_gains(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def line(arm: str, ours: Mapping[int, float], theirs: Mapping[int, float], collapsed: float) -> str:
    """Return one arm's line. ours, theirs: seed -> score."""
    values = list(ours.values())
    gains = paired_gains(ours, theirs)
    gain = better = "-"
    if arm != BASELINE and len(gains) > 1:
        low, high = bootstrap(gains)
        gain = f"{fmean(gains):+.4g} ({low:+.4g} to {high:+.4g})"
        better = f"{sum(g > 0 for g in gains)} of {len(gains)}"
    lost = sum(value < collapsed for value in values)
    return f"| {arm} | {len(values)} | {iqm(values):.4g} | {fmean(values):.4g} | {gain} | {better} | {lost} |"
