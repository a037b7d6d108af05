"""Populations of `tune.run` for protocols: every arm begins at the same draws, and fresh draws judge every member.

    draws (seed) --> arm's controller --> tune.run --> members --> row: validation (picks a member), test (its score)
                                             lineage --> the picked member's schedule, as another file's rows

Rows are appended when a run is whole, whatever they say; a run whose rows are there is not made again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from results_rows import append_rows, read_rows

from pbt_rl.controllers import (
    Controller,
    Decision,
    Exploit,
    Gap,
    HyperSpec,
    PbtController,
    PerturbFactors,
    PopulationReport,
    Synchronous,
    Truncation,
    Values,
    sample_prior,
)
from pbt_rl.controllers.decisions import CopyWhat, StateKey
from pbt_rl.tune import run

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("task", "seed", "arm", "member", "steps", "validation", "test", "values")
LINE_COLUMNS = ("task", "seed", "arm", "step", "values")
FRESH = 100
"""First index of members that share no weights with those whose values they are given."""

Schedule = list[tuple[int, Values]]
"""(from this step of the weights on, values)"""


@dataclass(frozen=True)
class Task:
    """What is trained and how PBT does it. make: (seed, index) -> member. validation, test: its score by fresh draws.

    The objective of the comparisons is the mean of the period's evaluations, one every `evaluate_every` steps.
    """

    name: str
    make: Callable[[int, int], Any]
    table: Mapping[str, HyperSpec]
    validation: Callable[[Any], float]
    test: Callable[[Any], float]
    steps: int
    period: int
    factors: tuple[float, ...]
    evaluate_every: int = 1
    fraction: float = 0.2

    def draws(self, seed: int, members: int) -> list[Values]:
        """Return the values that the members of every arm begin with; a smaller population has the first ones."""
        rng = Random(f"{self.name}.{seed}")
        return [{name: sample_prior(spec, rng) for name, spec in self.table.items()} for _ in range(members)]

    def pbt(self, seed: int, *, exploit: Exploit | None = None, copy: CopyWhat = "both") -> PbtController:
        """Return PBT as the paper has it: truncation (if nothing else is given), then perturbation by factors."""
        return PbtController(
            self.table,
            seed,
            ready=Synchronous(self.period, self.period, 1),
            exploit=exploit or Truncation(self.fraction, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(self.table, self.factors),
            copy=copy,
        )


@dataclass(eq=False)
class Begun:
    """A controller whose members begin at given values. It decides nothing at the end, where nobody would train on."""

    inner: Controller
    values: Sequence[Values]
    end: int

    def initial(self, num_members: int) -> list[Values]:
        """Return the given values; the inner controller may count its members."""
        self.inner.initial(num_members)
        return [dict(values) for values in self.values[:num_members]]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Decide as the inner controller does."""
        return [] if report.frames >= self.end else self.inner.observe(report)

    def remembers(self) -> frozenset[StateKey]:
        """Return what the inner controller remembers."""
        return self.inner.remembers()


@dataclass(frozen=True)
class Scored:
    """One member at the end of a run."""

    validation: float
    test: float
    values: Values


@dataclass(frozen=True)
class Population:
    """A whole run. line: schedule of the member that validation picks."""

    members: list[Scored]
    line: Schedule


def train(
    task: Task, seed: int, controller: Controller, values: Sequence[Values], first: int = 0
) -> Population:
    """Train one population with a member per element of `values`, and judge it. first: index of the first member."""
    members = [task.make(seed, first + i) for i in range(len(values))]
    begun = Begun(controller, values, task.steps)
    result = run(
        members,
        begun,
        steps=task.steps,
        evaluate_every=task.evaluate_every,
        window=task.period // task.evaluate_every,
        progress=False,
    )
    scored = [
        Scored(task.validation(member), task.test(member), outcome.values)
        for member, outcome in zip(members, result.members, strict=True)
    ]
    line = {node.trained: node.values for node in result.lineage.ancestry(best_of(scored))}
    return Population(scored, sorted(line.items()))


def best_of(members: Sequence[Scored]) -> int:
    """Return the member with the best validation score; the first of equals."""
    return max(range(len(members)), key=lambda i: (members[i].validation, -i))


def picked(members: Sequence[Scored]) -> float:
    """Return the test score of the member with the best validation score."""
    return members[best_of(members)].test


def mean_of_members(members: Sequence[Scored]) -> float:
    """Return the mean test score."""
    return fmean(member.test for member in members)


# -- files --------------------------------------------------------------------------------------------------

Runs = dict[str, dict[int, list[Scored]]]
"""Arm -> seed -> members."""


@dataclass(frozen=True)
class Results:
    """The two files of a protocol: a row per member, and a row per change of the picked members' values."""

    path: Path

    @property
    def lines_path(self) -> Path:
        """Where the schedules of picked members stand."""
        return self.path.with_name(f"{self.path.stem}_lines.csv")

    def runs(self, task: str) -> Runs:
        """Return all runs of a task. Two processes may have made the same run: its members count once."""
        found: dict[str, dict[int, dict[int, Scored]]] = defaultdict(lambda: defaultdict(dict))
        for row in read_rows(self.path):
            if row["task"] == task:
                scored = Scored(float(row["validation"]), float(row["test"]), json.loads(row["values"]))
                found[row["arm"]][int(row["seed"])][int(row["member"])] = scored
        runs: Runs = defaultdict(dict)
        for arm, by_seed in found.items():
            runs[arm] = {seed: [members[i] for i in sorted(members)] for seed, members in by_seed.items()}
        return runs

    def lines(self, task: str, arm: str) -> dict[int, Schedule]:
        """Return seed -> schedule of an arm's picked member."""
        found: dict[int, dict[int, Values]] = defaultdict(dict)
        for row in read_rows(self.lines_path):
            if row["task"] == task and row["arm"] == arm:
                found[int(row["seed"])][int(row["step"])] = json.loads(row["values"])
        return {seed: sorted(line.items()) for seed, line in found.items()}

    def add(self, task: Task, seed: int, arm: str, population: Population) -> None:
        """Write a whole run, its schedule first: rows of members say that the run is whole."""
        append_rows(
            self.lines_path,
            LINE_COLUMNS,
            [(task.name, seed, arm, step, _written(values)) for step, values in population.line],
        )
        append_rows(
            self.path,
            COLUMNS,
            [
                (
                    task.name,
                    seed,
                    arm,
                    i,
                    task.steps,
                    f"{m.validation:.4f}",
                    f"{m.test:.4f}",
                    _written(m.values),
                )
                for i, m in enumerate(population.members)
            ],
        )


def _written(values: Values) -> str:
    return json.dumps({name: float(f"{value:.6g}") for name, value in values.items()})
