"""A small transformer under PBT: learning rate and three dropouts, restartable (Jaderberg et al. 2017, section 4.2).

    python scripts/lab/reproduce_characters.py run text --seeds 0:10 --arms random pbt
    python scripts/lab/reproduce_characters.py run text --seeds 0:10    # the other arms: they need all of random search
    python scripts/lab/reproduce_characters.py table
    python scripts/lab/reproduce_characters.py picture docs/lab/characters.png

The protocol is in docs/lab/evidence.md, the network in scripts/lab/papers/characters.py. Scores are negative bits per
character, so that more is better.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from judged_arms import Arm, Comparison, Protocol, pairs
from judged_populations import FRESH, ROOT, Population, Results, Task, picked, train
from papers import characters

from pbt_rl.controllers import StaticController, Values

RESULTS = Results(ROOT / "docs" / "lab" / "results" / "characters.csv")
SEEDS = range(10)
MEMBERS = characters.MEMBERS
TASK = Task(
    "text",
    characters.Reader,
    characters.TABLE,
    validation=lambda member: -member.bits(characters.parts()[1]),
    test=lambda member: -member.bits(characters.parts()[2]),
    steps=characters.STEPS,
    period=characters.PERIOD,
    evaluate_every=characters.PERIOD,
    factors=(1.2, 0.8),
)


class Falling(characters.Reader):
    """A member whose learning rate falls linearly, from the given one at its first step to almost 0 at its last."""

    def __init__(self, seed: int, index: int) -> None:
        super().__init__(seed, index)
        self.taken = 0

    def step(self, hypers: Mapping[str, float]) -> None:
        """Learn with the part of the rate that is left."""
        left = 1 - self.taken / characters.STEPS
        super().step({**hypers, "learning_rate": left * hypers["learning_rate"]})
        self.taken += 1


def random(task: Task, seed: int) -> Population:
    """Keep what was drawn."""
    return train(task, seed, StaticController(task.table), task.draws(seed, MEMBERS))


def pbt(task: Task, seed: int) -> Population:
    """Copy and perturb."""
    return train(task, seed, task.pbt(seed), task.draws(seed, MEMBERS))


def falling(task: Task, seed: int) -> Population:
    """Keep what was drawn, under the usual schedule of the rate."""
    return random(replace(task, make=Falling), seed)


def constant(task: Task, seed: int) -> Population:
    """Train new networks with the best values of the random search of all seeds. Raises SystemExit if runs lack."""
    values = best_constant(task)
    return train(task, seed, StaticController(task.table), [values] * MEMBERS, FRESH)


def best_constant(task: Task) -> Values:
    """Return the values of the member with the best validation score of all draws of all seeds."""
    runs = RESULTS.runs(task.name)["random"]
    if missing := [seed for seed in SEEDS if seed not in runs]:
        raise SystemExit(
            f"the best constant needs random search, which lacks seeds {missing}: run --arms random"
        )
    return max(
        (member for seed in SEEDS for member in runs[seed]), key=lambda member: member.validation
    ).values


ARMS: Mapping[str, Arm] = {"random": random, "pbt": pbt, "falling": falling, "constant": constant}
COMPARISONS = (
    Comparison("PBT -", "random search", "pbt"),
    Comparison("PBT -", "random search, the rate falls", "pbt", "falling"),
    Comparison("PBT -", "best constant of 80 draws", "pbt", "constant"),
    Comparison("random -", "the same, the rate falls", "random", "falling"),
)
PROTOCOL = Protocol(RESULTS, {"text": TASK}, ARMS, COMPARISONS)


def picture(path: Path) -> None:
    """Draw the schedules of the members that PBT picked, the first seed's as a thick line, and the scores."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `report`

    figure = Figure(figsize=(12, 3), layout="constrained")
    *places, scores = figure.subplots(1, len(TASK.table) + 1)
    lines = RESULTS.lines("text", "pbt")
    for place, name in zip(places, TASK.table, strict=True):
        for seed, line in lines.items():
            steps, values = [step for step, _ in line], [values[name] for _, values in line]
            style = {"color": "C3", "linewidth": 2.5} if seed == min(lines) else {"color": "C0", "alpha": 0.5}
            place.step([*steps, TASK.steps], [*values, values[-1]], where="post", **style)
        place.set(title=name, xlabel=f"step of {characters.UPDATES} updates", yscale="log")
    runs = RESULTS.runs("text")
    for one in COMPARISONS[:3]:
        ours, theirs = pairs(runs, one, picked)
        scores.plot([-x for x in theirs], [-x for x in ours], "o", label=one.label, alpha=0.7)
    ends = [-picked(members) for by_seed in runs.values() for members in by_seed.values()]
    scores.plot([min(ends), max(ends)], [min(ends), max(ends)], "k", linewidth=0.8)
    scores.set(title="test bits per character", xlabel="the other", ylabel="PBT")
    figure.legend(loc="outside lower right", ncols=3, fontsize=7)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(PROTOCOL.main(__doc__, {"picture": picture}))
