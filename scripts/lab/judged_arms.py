"""A protocol: tasks, arms, what is compared, and the commands that run, tabulate and draw it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from judged_populations import Population, Results, Runs, Scored, Task, mean_of_members, picked
from results_rows import seed_range
from statistics_of_seeds import iqm, paired

Arm = Callable[[Task, int], Population]
"""(task, seed) -> a trained and judged population"""
Measure = Callable[[Sequence[Scored]], float]
MEASURES: Mapping[str, Measure] = {
    "picked by validation (primary)": picked,
    "mean of members": mean_of_members,
}


@dataclass(frozen=True)
class Comparison:
    """One row of the table: an arm, and what it is compared with. members: of that one, the first ones; None: all."""

    panel: str
    label: str
    arm: str
    against: str = "random"
    members: int | None = None


def pairs(runs: Runs, one: Comparison, measure: Measure) -> tuple[list[float], list[float]]:
    """Return the scores of an arm and of what it is compared with, by seed; of the seeds that both have."""
    ours, theirs = runs.get(one.arm, {}), runs.get(one.against, {})
    seeds = sorted(ours.keys() & theirs.keys())
    return [measure(ours[seed]) for seed in seeds], [measure(theirs[seed][: one.members]) for seed in seeds]


@dataclass(frozen=True)
class Protocol:
    """All of it; every run is seeded, and those that the results hold are not made again."""

    results: Results
    tasks: Mapping[str, Task]
    arms: Mapping[str, Arm]
    comparisons: Sequence[Comparison]

    def run(self, task: Task, seeds: range, arms: Sequence[str], until: float) -> None:
        """Make the runs that are missing; begin none after `until`, a time of the monotonic clock."""
        for seed in seeds:
            for arm in arms:
                if seed in self.results.runs(task.name)[arm]:
                    continue
                if time.monotonic() > until:
                    print("stopped; the same command goes on")
                    return
                began = time.monotonic()
                population = self.arms[arm](task, seed)
                self.results.add(task, seed, arm, population)
                score, seconds = picked(population.members), time.monotonic() - began
                print(f"{task.name}, seed {seed}, {arm}: {score:.3f} ({seconds:.0f} s)", flush=True)

    def table(self) -> None:
        """Print every comparison of every task for which there are two seeds or more."""
        for task in self.tasks:
            runs = self.results.runs(task)
            for name, measure in MEASURES.items():
                print(
                    f"\n{task}, {name}: interquartile means; paired difference with its 95 % interval, wins:losses"
                )
                for one in self.comparisons:
                    ours, theirs = pairs(runs, one, measure)
                    if len(ours) > 1:
                        print(
                            f"  {one.panel:14} {one.label:31} {iqm(ours):.3f} against {iqm(theirs):.3f}   "
                            f"{paired(ours, theirs)}"
                        )

    def main(self, description: str | None, pictures: Mapping[str, Callable[[Path], None]]) -> int:
        """Run, tabulate or draw, as the command line says; return the exit code."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        commands = parser.add_subparsers(dest="command", required=True)
        running = commands.add_parser("run", help="make the runs that are missing")
        running.add_argument("task", choices=self.tasks)
        running.add_argument("--seeds", type=seed_range, required=True, help="FIRST:END")
        running.add_argument("--arms", nargs="+", choices=self.arms, default=list(self.arms))
        running.add_argument("--seconds", type=float, default=1e9, help="begin no run after this long")
        commands.add_parser("table", help="all comparisons")
        for name in pictures:
            commands.add_parser(name).add_argument("path", type=Path)
        chosen = parser.parse_args()
        if chosen.command == "table":
            self.table()
        elif chosen.command == "run":
            until = time.monotonic() + chosen.seconds
            self.run(self.tasks[chosen.task], chosen.seeds, chosen.arms, until)
        else:
            pictures[chosen.command](chosen.path)
        return 0
