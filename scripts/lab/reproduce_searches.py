"""HyperTrick against Hyperband at the same expected work, asynchronous, on CartPole, Breakout and Pong; restartable.

    python scripts/lab/reproduce_searches.py run cartpole               # what searches_cartpole.csv lacks
    python scripts/lab/reproduce_searches.py run pong --seconds 1500    # a part: hours in all; the same command goes on
    python scripts/lab/reproduce_searches.py table cartpole

Phases of HyperTrick are of episodes, as in the paper (Heinrich and Frosio 2019), so that members end them at different
times; units of Hyperband are of frames, each rung from fresh weights. The eviction rate is the one that equation 9
gives for Hyperband's share of the work. Times need a quiet machine. `reproduce.py --only RL2` shows CartPole's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from reproduce_runs import trained
from reproduce_table import Row, Section, holds, measured
from results_rows import append_rows, read_rows
from statistics_of_seeds import bootstrap

from pbt_rl.controllers.search.hyperband import hyperband_completion, hyperband_members, hyperband_table
from pbt_rl.controllers.search.hypertrick import expected_completion, matching_eviction_rate
from pbt_rl.experiments.prove.games import TEST, VALIDATION, fresh_games
from pbt_rl.report.read import read_run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "lab" / "results"
METHODS = ("hypertrick", "hyperband")
NUMBERS = ("configurations", "seconds", "occupancy", "completion", "phases", "frames", "score")
COLUMNS = ("seed", "method", *NUMBERS)
PAPER_COMPLETION = (0.97, 1.38)
"""Completion rates of Heinrich and Frosio's four games over equation 9's (table 1: least and largest)."""

Runs = dict[str, dict[int, dict[str, float]]]
"""Method -> seed -> number of each of NUMBERS."""


@dataclass(frozen=True)
class Search:
    """One task, and the searches on it."""

    title: str
    seeds: int
    options: tuple[str, ...]
    slots: int
    eta: int
    resource: int
    unit_frames: int
    configurations: int
    """Of HyperTrick; Hyperband has those of its brackets."""
    phases: int
    phase_episodes: int
    batch: int
    """Frames of one; each rung ends with a whole one."""
    games: int

    @property
    def rate(self) -> float:
        """HyperTrick's eviction rate: Hyperband's frames, by equation 9."""
        work = hyperband_completion(self.eta, self.resource) * hyperband_members(self.eta, self.resource)
        return matching_eviction_rate(work / self.configurations, self.phases)

    @property
    def law(self) -> float:
        """Share of HyperTrick's phases that equation 9 expects."""
        return expected_completion(self.rate, self.phases)

    @property
    def overrun(self) -> float:
        """Most that whole batches add to Hyperband's share of the frames."""
        rungs = sum(members for bracket in hyperband_table(self.eta, self.resource) for members, _ in bracket)
        members = hyperband_members(self.eta, self.resource)
        return rungs * self.batch / (members * self.resource * self.unit_frames)

    def members(self, method: str) -> int:
        """Return the configurations of one method."""
        return hyperband_members(self.eta, self.resource) if method == "hyperband" else self.configurations

    def command(self, method: str, seed: int, run: Path) -> list[str]:
        """Return the command of one run, which also goes on with it. run: its folder."""
        words = [sys.executable, "-m", "pbt_rl", "train", *self.options, "--learner.threads", "1"]
        words += ["--seed", f"{seed}", "--out", f"{run.parent}", "--name", run.name, "--controller", method]
        words += ["--num-policies", f"{self.members(method)}", "--slots", f"{self.slots}"]
        words += ["--train-for-frames", f"{self.unit_frames * self.resource}"]
        if method == "hyperband":
            return [*words, "--search.eta", f"{self.eta}", "--search.resource", f"{self.resource}"]
        words += ["--search.phases", f"{self.phases}", "--search.eviction-rate", f"{self.rate:.6f}"]
        return [*words, "--search.phase-episodes", f"{self.phase_episodes}"]


SEARCHES: Mapping[str, Search] = {
    "cartpole": Search(
        "CartPole-v1: 15 configurations, 5 slots, at most 18,000 frames each",
        seeds=5,
        options=(
            *("--env", "gym/CartPole-v1", "--no-figures", "--learner.batch", "512"),
            *("--learner.lr-schedule", "constant", "--pbt.objective-episodes", "20"),
            *("--pbt.tune", "learning_rate", "entropy_coef", "clip_ratio"),
        ),
        slots=5,
        eta=3,
        resource=9,
        unit_frames=2_000,
        configurations=15,
        phases=9,
        phase_episodes=40,
        batch=512,
        games=100,
    ),
    # As Pong, on a game that appo's defaults begin to learn within so few frames.
    "breakout": Search(
        "Breakout: 24 configurations (Hyperband: 23), 8 slots, at most 200,000 frames each",
        seeds=3,
        options=(
            *("--env", "atari/breakout", "--no-figures", "--pbt.objective-episodes", "30"),
            *("--learner.rollout", "64", "--learner.lr-schedule", "constant"),
            *("--pbt.tune", "learning_rate=1e-5:1e-2", "unroll=2:64:log", "gamma"),
            *("--pbt.prior", "gamma=0.9,0.95,0.99,0.995,0.999"),
        ),
        slots=8,
        eta=4,
        resource=16,
        unit_frames=12_500,
        configurations=24,
        phases=5,
        phase_episodes=40,
        batch=4_096,
        games=20,
    ),
    # The paper tunes these three with GA3C, the unroll (t_max) as 2 to 100 and gamma as a choice.
    "pong": Search(
        "Pong: 24 configurations (Hyperband: 23), 8 slots, at most 4,000,000 frames each",
        seeds=1,
        options=(
            *("--env", "atari/pong", "--algo", "a3c", "--no-figures", "--pbt.objective-episodes", "30"),
            *("--learner.rollout", "100", "--learner.lr-schedule", "constant"),
            *("--pbt.tune", "learning_rate=1e-5:1e-2", "unroll=2:100:log", "gamma"),
            *("--pbt.prior", "gamma=0.9,0.95,0.99,0.995,0.999"),
        ),
        slots=8,
        eta=4,
        resource=16,
        unit_frames=250_000,
        configurations=24,
        phases=5,
        phase_episodes=150,
        batch=3_200,
        games=10,
    ),
}


def read_runs(path: Path) -> Runs:
    """Return the rows of a CSV, none if there is no file."""
    runs: Runs = {method: {} for method in METHODS}
    for row in read_rows(path):
        runs[row["method"]][int(row["seed"])] = {name: float(row[name]) for name in NUMBERS}
    return runs


def append(path: Path, seed: int, method: str, numbers: Mapping[str, float]) -> None:
    """Write the row of one run."""
    append_rows(path, COLUMNS, [(seed, method, *(f"{numbers[name]:.6g}" for name in NUMBERS))])


def result(search: Search, method: str, run: Path) -> dict[str, float]:
    """Return the numbers of a whole run. score: of test games of the member that is best in validation games."""
    record, summary = read_run(run), json.loads((run / "summary.json").read_text())
    validation = fresh_games(run, search.games, VALIDATION)
    test = fresh_games(run, search.games, TEST)
    members = search.members(method)
    return {
        "configurations": members,
        "seconds": summary["seconds"],
        "occupancy": record.occupancy or 0.0,
        "completion": record.completion or 0.0,
        "phases": len(record.phases) / (members * search.phases) if method == "hypertrick" else 0.0,
        "frames": summary["frames"],
        "score": test[max(validation, key=validation.__getitem__)],
    }


def run_missing(name: str, results: Path, out: Path, seeds: int, seconds: float) -> Runs:
    """Run what a CSV lacks, until the time is over, and return all that it holds then."""
    search, until = SEARCHES[name], time.monotonic() + seconds
    for seed in range(seeds):
        for method in METHODS:
            if seed in read_runs(results)[method]:
                continue
            run = out / name / f"{method}-{seed}"
            words = search.command(method, seed, run)
            if time.monotonic() > until or not trained(words, run, until):
                print(f"{method}, seed {seed}: stopped; the same command goes on")
                return read_runs(results)
            append(results, seed, method, result(search, method, run))
            shown = ", ".join(f"{key} {value:.4g}" for key, value in read_runs(results)[method][seed].items())
            print(f"{method}, seed {seed}: {shown}", flush=True)
    return read_runs(results)


def table(search: Search, runs: Runs) -> None:
    """Print the means of both methods, and their paired differences, as Markdown."""
    both = sorted(runs["hypertrick"].keys() & runs["hyperband"].keys())
    print(f"{search.title}; {len(both)} seeds with both; eviction rate {search.rate:.4f}")
    print(f"\n| mean | {' | '.join(METHODS)} | difference, paired, 95 % |\n| --- | --- | --- | --- |")
    for name in NUMBERS if both else ():
        ours, theirs = ([runs[method][seed][name] for seed in both] for method in METHODS)
        gains, gain = [a - b for a, b in zip(ours, theirs, strict=True)], "-"
        if len(gains) > 1 and name != "phases":
            gain = "{:+.3g} ({:+.3g} to {:+.3g})".format(fmean(gains), *bootstrap(gains))
        print(f"| {name} | {fmean(ours):.4g} | {fmean(theirs):.4g} | {gain} |")


def section(keep: Path | None) -> Section:
    """Return RL2 of `reproduce.py`. keep: folder where the rows of whole runs are kept, or None."""
    search = SEARCHES["cartpole"]
    return f"{search.title}; {search.seeds} seeds: HyperTrick against Hyperband", partial(figures, keep)


def figures(keep: Path | None) -> list[Row]:
    """Run what is missing on CartPole; return the figures beside what equation 9 and Hyperband's table expect."""
    search = SEARCHES["cartpole"]
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        results = (keep or Path(folder)) / "searches_cartpole.csv"
        runs = run_missing("cartpole", results, Path(folder), search.seeds, 1e9)
    means = {
        method: {name: fmean(run[name] for run in those.values()) for name in NUMBERS}
        for method, those in runs.items()
    }
    trick, band = means["hypertrick"], means["hyperband"]
    begun, share = trick["phases"], hyperband_completion(search.eta, search.resource)
    low, high = (search.law * limit for limit in PAPER_COMPLETION)
    shorter = "the shorter one in the paper"
    rows = [
        measured(
            f"{method}: {what}",
            f"{means[method][name]:.3g}",
            shorter if name == "seconds" and method == METHODS[0] else "-",
        )
        for method in METHODS
        for name, what in (
            ("score", "score of the picked member, 100 games"),
            ("seconds", "wall time, s"),
            ("occupancy", f"occupancy of {search.slots} slots"),
            ("frames", "frames"),
        )
    ]
    return [
        *rows,
        holds(
            f"hypertrick: completion rate, in phases (eq. 9: {search.law:.3f})",
            f"{low:.3f} to {high:.3f}",
            f"{begun:.3f}",
            passed=low <= begun <= high,
        ),
        holds(
            "hyperband: completion rate, in frames",
            f"{share:.3f} to {share + search.overrun:.3f} (whole batches)",
            f"{band['completion']:.3f}",
            passed=0 <= band["completion"] - share <= search.overrun,
        ),
    ]


def main() -> None:
    """Run or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop the training after this long")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "searches", help="folder of the runs")
    chosen = parser.parse_args()
    search, results = SEARCHES[chosen.search], RESULTS / f"searches_{chosen.search}.csv"
    if chosen.what == "run":
        run_missing(chosen.search, results, chosen.out, search.seeds, chosen.seconds)
    table(search, read_runs(results))


if __name__ == "__main__":
    main()
