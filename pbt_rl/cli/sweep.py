"""Command `pbt-rl sweep`: train with several seeds and option values, sequentially or in parallel."""

from __future__ import annotations

import os
import shlex
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.cli.runs import table
from pbt_rl.config import OF_NAMES, Config, names_run
from pbt_rl.config.command import parse_train
from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError, require
from pbt_rl.experiments.jobs import GIVEN_BY_THE_SWEEP, Ended, Point, Share, Sweep, last_line, points, shares
from pbt_rl.options.declare import option
from pbt_rl.options.declare import table as options_of
from pbt_rl.options.names import spelt
from pbt_rl.options.values import displayed
from pbt_rl.options.words import Line, parse_part
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.saved import read_config
from pbt_rl.report.listing import RunRow, list_runs
from pbt_rl.run.resuming import changes_of
from pbt_rl.run.views import UNCOMPARED

PROG = "pbt-rl sweep"
OF_SEEDS = "whole numbers, such as 0 1 2, or 0-4"


@dataclass(frozen=True)
class SeveralRuns:
    """Options of a command that trains several runs, each in a separate process."""

    name: str = option(test=names_run, remedy=OF_NAMES)
    """Name of the experiment and of its folder."""
    jobs: int | None = option(None, at_least=1, at_most=1000)
    """Number of parallel runs, which share devices and cores. Default: one run per GPU (without a GPU: one run) with
    --devices auto, otherwise one run."""
    out: Path = Path("runs")
    """Parent folder of the experiment's folder."""

    @property
    def folder(self) -> Path:
        """Folder of the runs."""
        return self.out / self.name


@dataclass(frozen=True)
class SweepCommand(SeveralRuns):
    """Train each combination of --grid values with each seed, as a separate run in runs/NAME/. All other options are
    options of `pbt-rl train`.

    Repeat the command to continue: it skips finished runs and resumes other runs. A failed run does not end the sweep.
    Ctrl-C saves the runs that are training, and ends the sweep.

    pbt-rl sweep --name rates --env gym/CartPole-v1 --grid hypers.learning-rate=1e-4,1e-3 --seeds 0 1 2 --jobs 2
    """

    seeds: tuple[str, ...] = option(("0",), test=bool, remedy=OF_SEEDS)
    """Seeds, such as 0 1 2, or 0-4."""
    grid: tuple[str, ...] = option((), repeated=True)
    """OPTION=A,B,C: values of an option of `pbt-rl train`. Repeat --grid to combine the values of several options."""


BUDGETS = {"hours", "train-for-frames", "train-for-seconds", "stop-at-objective"}
MOST_SEEDS = 10_000


def run(arguments: list[str]) -> int:
    """Run `pbt-rl sweep`: train all runs of the sweep. Return 0 if all runs complete."""
    command, common = _read(arguments)
    folder = command.folder
    require(not RunFolder(folder).is_run, "name", command.name, f"{folder} is a run: give another name")
    found = points(_grid(command.grid), _seeds(command.seeds))
    commands = {point.name: _command(point, folder, common.words) for point in found}
    configs = {name: parse_train(words[1:]) for name, words in commands.items()}
    dealt = shares_of(command.jobs, {config.devices for config in configs.values()}, len(found))
    if "show" in common.names:
        print(f"{len(found)} runs in {folder}, {len(dealt)} at a time (not started, because of --show):")
        for typed in commands.values():
            print(shlex.join(word for word in ["pbt-rl", *typed] if word != "--show"))
        return 0
    waiting = [point for point in found if not _is_done(folder / point.name, configs[point.name])]
    done = len(found) - len(waiting)
    print(f"{len(found)} runs in {folder}, {done} have ended already; {len(dealt)} at a time")

    def words(point: Point, chosen: str) -> list[str]:
        return [*commands[point.name], *(["--devices", chosen] if chosen else [])]

    sweep = Sweep(folder, words, dealt)
    try:
        ended = sweep.run(waiting)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror or error}") from error
    number = sweep.signal
    failed = _print_results(folder, found, ended, () if number is None else (128 + number, -number))
    if number is not None:
        print("interrupted; repeat the command to continue")
        return 128 + number
    return 1 if failed else 0


def _read(arguments: Sequence[str]) -> tuple[SweepCommand, Line]:
    command, common = parse_part(SweepCommand, PROG, arguments)
    for name in GIVEN_BY_THE_SWEEP:
        if name in common.names:
            why = "the sweep sets it for each run (use --seeds, --name)"
            raise ConfigError(f"--{name} cannot be used with {PROG}: {why}")
    return command, common


def _grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Convert entries OPTION=A,B,C of --grid to option -> texts of its values. Raises ConfigError for other entries."""
    grid: dict[str, list[str]] = {}
    for entry in entries:
        name, equals, text = entry.lstrip("-").partition("=")
        values = text.split(",")
        if not name or not equals or not all(values):
            why = "write OPTION=A,B,C, such as hypers.gamma=0.9,0.99"
        elif spelt(name) in map(spelt, grid):
            why = "give all values of an option in one --grid"
        elif spelt(name) in GIVEN_BY_THE_SWEEP:
            why = "the sweep sets this option for each run (use --seeds, --name)"
        else:
            why = ""
        try:
            list(map(shlex.split, values))
        except ValueError as error:
            why = why or str(error)
        require(not why, "grid", entry, why)
        grid[name] = values
    return grid


def _seeds(texts: Sequence[str]) -> list[int]:
    seeds: list[int] = []
    for text in texts:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(text) > 18:
            raise ConfigError(f"--seeds {text} cannot be used: give {OF_SEEDS}")
        low, high = int(first), int(last or first)
        if high < low or len(seeds) + high - low >= MOST_SEEDS:
            remedy = f"give a range such as 0-4, of at most {MOST_SEEDS:,} seeds"
            raise ConfigError(f"--seeds {text} cannot be used: {remedy}")
        seeds += range(low, high + 1)
    return seeds


def _command(point: Point, folder: Path, common: Sequence[str]) -> list[str]:
    """Build the `pbt-rl` arguments of one run, except --devices."""
    words = ["train", *common, "--seed", str(point.seed), "--name", point.name, "--out", str(folder)]
    for name, text in point.values.items():
        words += [f"--{name}", *shlex.split(text)]
    return words


def shares_of(jobs: int | None, devices: Collection[str], runs: int) -> list[Share]:
    """Divide the cores and devices of the machine among parallel jobs.

    If all runs have equal --devices, these devices are divided among the jobs. Otherwise, each run uses all of its
    --devices.

    jobs: number of parallel jobs. None: one job per GPU (without a GPU: one job) if --devices is auto in all runs,
    otherwise one job.
    devices: the different values of --devices in the runs. runs: number of runs.
    """
    from pbt_rl.plan.machine import Machine, available_cpus

    cpus = sorted(os.sched_getaffinity(0))
    chosen = next(iter(devices)) if len(devices) == 1 else ""
    if chosen == "auto":
        gpus = Machine.here().gpus
        named = [f"cuda:{i}" for i in range(gpus)] if gpus > 1 else []
    else:
        named = chosen.split(",") if chosen else []
    number = min(jobs or max(1, len(named) if chosen == "auto" else 1), runs)
    return shares(number, named if number > 1 else [], cpus, available_cpus())


def _is_done(path: Path, config: Config) -> bool:
    """Check whether a run has ended with the fixed options and the budget of `config`.

    Raises ConfigError if the run has ended with equal budgets, but other options that may affect its result.
    """
    from pbt_rl.report.compare import NO_DIFFERENCE  # imports matplotlib

    try:
        (row,) = list_runs(path)
        changed = changes_of(read_config(path), config, RunFolder(path))
    except (OSError, ValueError):  # the run is missing or has other options. Training reports the reason.
        return False
    if row.state != "ended" or BUDGETS & changed.keys():
        return False
    options = {name: one for name, one in options_of(config).items() if one.field not in NO_DIFFERENCE}
    other = [
        f"--{name}: before {displayed(options[name].metadata, old)}, now {displayed(options[name].metadata, new)}"
        for name, (old, new) in changed.items()
        if name in options
    ]
    if other:
        remedy = "Repeat the former options, or give another --name"
        raise ConfigError(f"{path} has ended with other options: {'; '.join(other)}. {remedy}")
    return True


def _print_results(
    folder: Path, found: Sequence[Point], ended: Sequence[Ended], interrupted: Sequence[int]
) -> int:
    """Print one line per run, one line per combination of values, and a command that compares the runs.

    Return the number of failed runs. found: all runs of the sweep. ended: jobs that this command has run.
    interrupted: exit codes of interrupted runs, which do not count as failed.
    """
    rows = {row.name: row for row in list_runs(folder) if row.name in {p.name for p in found}}
    codes = {e.point.name: e.code for e in ended}
    failed = [point for point in found if codes.get(point.name, 0) not in (0, *interrupted)]
    print()
    known = [rows[point.name] for point in found if point.name in rows]
    if known:
        print("\n".join(table(known, time.time(), None)))
    _print_groups(found, rows)
    said = [last_line(folder, point) for point in found if codes.get(point.name) == 0]
    uncompared = [line for line in said if line.startswith(UNCOMPARED)]
    if uncompared:
        print(f"in {counted(len(uncompared), 'run')} {uncompared[0]}")
    for point in failed:
        print(f"FAILED {point.name} (exit code {codes[point.name]}): {last_line(folder, point)}")
    begun = [point for point in found if point.name in rows]
    if begun:
        print(shlex.join(["pbt-rl", "report", *(str(folder / point.name) for point in begun)]))
    return len(failed)


def _print_groups(found: Sequence[Point], rows: Mapping[str, RunRow]) -> None:
    """Print mean and std over seeds of the best member's objective, for each combination of values.

    If all runs have a final evaluation, the objectives of the final evaluations are used.
    """
    judged = all(row.final is not None for row in rows.values() if row.best is not None)
    groups: dict[str, list[float]] = {}
    for point in found:
        row = rows.get(point.name)
        best = None if row is None else row.final if judged else row.best
        if best is not None:
            label = " ".join(f"{option}={text}" for option, text in point.values.items())
            groups.setdefault(label, []).append(best)
    if len(groups) < 2:
        return
    print("\nbest objective over seeds:")
    width = max(map(len, groups))
    for label, scores in sorted(groups.items(), key=lambda item: -statistics.fmean(item[1])):
        spread = f" +- {statistics.stdev(scores):.4g}" if len(scores) > 1 else ""
        print(f"  {label:<{width}}  {statistics.fmean(scores):.6g}{spread} ({len(scores)} runs)")
    print()
