"""Command `pbt-rl prove`: train several arms with the same seeds, evaluate the arms, and test if an arm is better.

protocol.json (in the folder) --> missing runs --> missing evaluations --> verdicts, CSV, JSON, page
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from pbt_rl.cli.report import check_packages
from pbt_rl.cli.sweep import SeveralRuns, shares_of
from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError, require
from pbt_rl.experiments.jobs import Ended, Point, Share, Sweep, last_line
from pbt_rl.experiments.prove.arms import BASELINE, Arm, Task, check_names, lucky, read_arms, too_short
from pbt_rl.experiments.prove.judged import judge, read_judged
from pbt_rl.experiments.prove.outcome import Scores, outcome
from pbt_rl.options.declare import option
from pbt_rl.options.words import parse_part
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.saved import read_config
from pbt_rl.report.listing import list_runs
from pbt_rl.run.resuming import changes_of

PROG = "pbt-rl prove"


@dataclass(frozen=True)
class ProveCommand(SeveralRuns):
    """Test if population based training helps on a task: train several arms (compared methods) with equal seeds and
    frames. Options of `pbt-rl train` apply to all arms. --train-for-frames is required.

    Arm pbt: a population with the given options. Arm random: a population without PBT, with the initial values of arm
    pbt, which are sampled from their priors with the seed. Arm defaults: one policy with the given values, trained for
    as many frames as a whole population.

    Validation episodes select a member of each run, and test episodes score this member. For each seed, each arm is
    compared with arm random. The result is the mean difference, its 95 % interval (Student's t), and a verdict.
    runs/NAME contains all runs, a CSV, a JSON and a page. Repeat the command to continue. You may add seeds and arms.

    By default, members are compared about 25 times (--pbt.period-frames). The first comparison is due after one period
    or at --pbt.start-frames, whichever is later.

    pbt-rl prove --name helps --env gym/CartPole-v1 --mode serial --train-for-frames 20k --seeds 4 --jobs 2
    """

    seeds: int = option(5, test=lambda seeds: 2 <= seeds <= 1000, remedy="2 to 1,000: one seed has no spread")
    """Number of seeds. The seeds are 0, 1, ..."""
    arm: tuple[str, ...] = option((), repeated=True)
    """Additional arm: a controller such as mf-pbt, or NAME:OPTIONS for arm pbt with other options, such as
    t-test:'--pbt.exploit t-test'."""
    without: tuple[str, ...] = option((), repeated=True)
    """Arm to leave out: pbt or defaults. (On a GPU, arm defaults takes longest, because it trains one policy for as
    many frames as a whole population.)"""
    games: int = option(20, at_least=1, at_most=100_000)
    """Number of validation episodes, and of test episodes, per member (and task)."""
    show: bool = False
    """Do not train, but print the commands of the runs."""


PROTOCOL = "protocol.json"
JUDGE = "--judge"
"""Internal option: `pbt-rl prove --judge RUN GAMES` evaluates RUN with GAMES episodes."""


@dataclass(frozen=True)
class Words:
    """Parsed command line. common: options of `pbt-rl train` for the runs of all arms, as typed."""

    command: ProveCommand
    arms: list[Arm]
    common: list[str]

    @property
    def folder(self) -> Path:
        """Folder of the experiment."""
        return self.command.folder


def run(arguments: list[str]) -> int:
    """Run `pbt-rl prove`: start or continue the experiment. Return 0 if all runs and evaluations have succeeded."""
    if len(arguments) == 3 and arguments[0] == JUDGE:
        judge(Path(arguments[1]), int(arguments[2]))
        return 0
    words = read_words(arguments)
    task = Task.read(words.common)
    pairs = [(arm, seed) for seed in range(words.command.seeds) for arm in words.arms]
    points = [Point(f"{arm.name}.seed{seed}", {"arm": arm.name}, seed) for arm, seed in pairs]
    commands = {point.name: task.command(*pair) for point, pair in zip(points, pairs, strict=True)}
    dealt = shares_of(words.command.jobs, {task.config.devices}, len(commands))
    for arm in words.arms:
        task.check(arm)
    if words.command.show:
        for name, command in commands.items():
            print(f"{name}: pbt-rl {shlex.join(command)}")
        return 0
    check_packages("prove", {"matplotlib": "matplotlib"})
    write_protocol(words)
    code = _train_and_judge(words, points, commands, dealt)
    if code > 128:  # interrupted
        return code
    scores = read_scores(words, points)
    if code and any(len(seeds) < 2 for seeds in scores.values()):
        return code
    _print_outcome(words, scores)
    return code


def read_words(arguments: Sequence[str]) -> Words:
    """Parse the command line. Raises ConfigError for invalid options."""
    command, common = parse_part(ProveCommand, PROG, arguments)
    check_names(common.names, f"with {PROG}")
    return Words(command, read_arms(command.arm, command.without), common.words)


class _Protocol(Struct):
    """Content of protocol.json. common: options for all arms. games: number of episodes. arms: arm -> its options."""

    common: list[str]
    games: int
    arms: dict[str, list[str]]


def read_protocol(folder: Path) -> _Protocol | None:
    """Read protocol.json in a folder. Return None if the file is missing. Raises ConfigError if it cannot be read."""
    path = folder / PROTOCOL
    try:
        return convert(json.loads(path.read_text()), _Protocol)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}; restore it, or use another --name") from error


def write_protocol(words: Words) -> None:
    """Write protocol.json, or add new arms to it.

    Raises ConfigError if the folder contains other files or an experiment with other options, or cannot be written.
    """
    folder, before = words.folder, read_protocol(words.folder)
    now = _Protocol(words.common, words.command.games, {arm.name: list(arm.options) for arm in words.arms})
    if before is not None:
        for what, old, new in (
            ("the options", before.common, now.common),
            ("--games", [str(before.games)], [str(now.games)]),
            *((f"--arm {n}", before.arms[n], now.arms[n]) for n in now.arms.keys() & before.arms.keys()),
        ):
            if old != new:
                raise ConfigError(
                    f"--name {folder.name} cannot be used: {what} were {shlex.join(old)}, and now are "
                    f"{shlex.join(new)}. Use another name, or repeat the old command to continue"
                )
        now.arms = before.arms | now.arms
    elif folder.is_dir() and any(folder.iterdir()):
        why = f"{folder} is not empty, and is not an experiment of {PROG}; use another name"
        raise ConfigError(f"--name {folder.name} cannot be used: {why}")
    draft = folder / f"{PROTOCOL}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(to_builtins(now), indent=2) + "\n")
        draft.replace(folder / PROTOCOL)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error


def _train_and_judge(
    words: Words, points: Sequence[Point], commands: Mapping[str, Sequence[str]], dealt: Sequence[Share]
) -> int:
    """Train the missing runs, then run the missing evaluations. Return an exit code, above 128 after a signal.

    points: all runs. commands: name of a run -> its arguments of `pbt-rl`. dealt: cores and devices of each parallel
    job.
    """
    folder = words.folder

    def train(point: Point, devices: str) -> list[str]:
        run = ["--name", point.name, "--out", str(folder), *(["--devices", devices] if devices else [])]
        return [*commands[point.name], *run]

    def evaluation(point: Point, _devices: str) -> list[str]:
        return ["prove", JUDGE, str(folder / point.name), str(words.command.games)]

    done = {row.name for row in list_runs(folder) if row.state == "ended"}
    for name in sorted(done & commands.keys()):  # a --config file may have changed since the run
        run = ["--name", name, "--out", str(folder)]
        before, now = read_config(folder / name), parse_train([*commands[name][1:], *run])
        changes_of(before, now, RunFolder(folder / name))
        frames, there = now.train_for_frames, before.train_for_frames
        remedy = "but all arms need equal frames: delete this folder to train the run again"
        gone_on = f"{folder / name} was trained for {there:,} frames, {remedy}"
        require(there == frames, "train-for-frames", frames, gone_on)
    untrained = [p for p in points if p.name not in done]
    print(f"{len(points)} runs in {folder}: {len(untrained)} to train; {len(dealt)} at a time", flush=True)
    told: set[str] = set()

    def note(point: Point) -> None:
        arm = point.values["arm"]
        line = "" if arm in told else too_short(folder / point.name)
        if line:
            told.add(arm)
            print(f"note: {arm}: {line}", flush=True)

    code = _jobs(folder, train, dealt, untrained, note)
    if code > 128:
        return code
    ended = {row.name for row in list_runs(folder) if row.state == "ended"}
    trained = [p for p in points if not code or p.name in ended]
    unplayed = [p for p in trained if read_judged(folder / p.name, words.command.games) is None]
    if unplayed:
        print(f"evaluation episodes of {len(unplayed)} runs", flush=True)
    return max(code, _jobs(folder, evaluation, dealt, unplayed))


def _jobs(
    folder: Path,
    command: Callable[[Point, str], list[str]],
    dealt: Sequence[Share],
    waiting: Sequence[Point],
    after: Callable[[Point], None] = lambda _: None,
) -> int:
    """Run jobs. Return an exit code: 0 if all jobs succeed, 128 + N after signal N, otherwise 1.

    command: returns the arguments of `pbt-rl` for a point and a value of --devices. dealt: cores and devices of each
    parallel job. waiting: points to run. after: called with the point of each successful job.
    """
    if not waiting:
        return 0
    sweep = Sweep(folder, command, dealt, after)
    ended: list[Ended] = sweep.run(waiting)
    if sweep.signal is not None:
        print("interrupted; repeat the command to continue")
        return 128 + sweep.signal
    failed = [one for one in ended if one.code]
    for one in failed:
        print(f"FAILED {one.point.name} (exit code {one.code}): {last_line(folder, one.point)}")
    return 1 if failed else 0


def read_scores(words: Words, points: Sequence[Point]) -> Scores:
    """Return arm -> seed -> scores of the run. Runs that have not been evaluated are left out."""
    scores: Scores = {arm.name: {} for arm in words.arms}
    for point in points:
        judged = read_judged(words.folder / point.name, words.command.games)
        if judged is not None:
            scores[point.values["arm"]][point.seed] = judged
    return scores


def _print_outcome(words: Words, scores: Scores) -> None:
    """Write the tables and the page. Print one line per arm."""
    from pbt_rl.experiments.prove.outcome_page import write_outcome

    found = outcome(scores, BASELINE)
    protocol = read_protocol(words.folder)
    others = ", ".join(name for name in protocol.arms if name not in scores) if protocol else ""
    too = f"the folder also contains runs of {others}: add --arm to include them"
    notes = [too] if others else []
    for arm, seeds in scores.items():
        runs = [words.folder / f"{arm}.seed{seed}" for seed in sorted(seeds)]
        lines = [*map(too_short, runs[:1]), lucky(runs)]
        notes += [f"{arm}: {line}" for line in lines if line]
    paths = write_outcome(words.folder, found, shlex.join(words.common), notes)
    print()
    print("\n".join([*found.lines(), *(f"note: {note}" for note in notes)]))
    print()
    print("\n".join(map(str, paths)))
