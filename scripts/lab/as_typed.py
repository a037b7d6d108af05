"""Scores with default options: add rows to docs/lab/results/as_typed.csv and ten_minutes.csv.

    python scripts/lab/as_typed.py gym/Hopper-v5 --frames 1M --seeds 0 1 2   # cores may be shared with other work
    python scripts/lab/as_typed.py gym/Hopper-v5 --frames 1M --seeds 0 --options "--mode serial"
    python scripts/lab/as_typed.py atari/breakout --minutes 10 --seeds 0     # on idle cores, and with Sample Factory
    python scripts/lab/tables.py

Scores are means over 20 evaluation episodes of the last weights with sampled actions. The column `greedy` has the mean
with greedy actions. Sample Factory runs on the CPU, with the options of its Atari example. `--programs cleanrl` runs
CleanRL's PPO over EnvPool with its defaults.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peer_bench import run_job

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "lab" / "results"
GAMES = 20
PROGRAMS = ("pbt_rl", "sample_factory", "cleanrl")


def train_and_play(env: str, policies: int, budget: str, options: str, seed: int) -> dict[str, Any]:
    """Train in a temporary folder, and evaluate the best member. `seconds` in the result does not include the start."""
    folder = tempfile.mkdtemp(prefix="as-typed-")
    try:
        run = Path(folder) / "run"
        words = f"train --env {env} --num-policies {policies} {budget} --seed {seed} {options} --name run"
        ours(*shlex.split(words), "--out", folder)
        summary = json.loads((run / "summary.json").read_text())
        mean, sd, least, most = evaluated(run)
        greedy = evaluated(run, "--greedy")[0]
    finally:
        shutil.rmtree(folder)
    frames = max(member["frames"] for member in summary["members"])
    return {"frames": frames, "seconds": summary["training_seconds"]} | {
        "mean": mean,
        "sd": sd,
        "min": least,
        "max": most,
        "greedy": greedy,
    }


def evaluated(run: Path, *options: str) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, minimum and maximum of evaluation episodes of the best member."""
    played = ours("eval", str(run), "--episodes", str(GAMES), *options)
    found = re.search(r"mean (\S+), std (\S+), min (\S+), max (\S+)", played)
    assert found, played
    mean, sd, least, most = map(float, found.groups())
    return mean, sd, least, most


def ours(*words: str) -> str:
    """Run a pbt-rl command. Return its output. Raises RuntimeError if the command fails."""
    command = [sys.executable, "-m", "pbt_rl", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout[-3000:]}")
    return done.stdout


def peer(
    program: str, game: str, seed: int, seconds: float, *options: str, python: Path | None = None
) -> dict[str, Any]:
    """Train and evaluate another program with its defaults. Return the figures of `train_and_play` except `greedy`."""
    common = [f"--game={game}", f"--seed={seed}", f"--seconds={seconds}", f"--games={GAMES}"]
    return run_job(f"{program}_as_typed.py", [*common, *options], seconds + 60, python)


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Print a row and append it to a CSV file with a header."""
    row = {name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in row.items()}
    print(row, flush=True)
    heads = path.read_text().partition("\n")[0].split(",")
    with path.open("a", newline="") as file:
        csv.DictWriter(file, heads, extrasaction="ignore", lineterminator="\n").writerow(row)


def main() -> None:
    """Make the runs, and add their rows."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("env")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--frames", help="frames of each member")
    length.add_argument("--minutes", type=float, help="training time on Atari, also of the other programs")
    parser.add_argument("--policies", type=int, default=1)
    parser.add_argument("--options", default="", help="additional options of pbt-rl train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS[:2], help="with --minutes"
    )
    parser.add_argument(
        "--cleanrl",
        type=Path,
        nargs=2,
        metavar=("PYTHON", "FILE"),
        help="interpreter with torch, envpool 0.8.4, gym 0.23.1 and tensorboard, and CleanRL's ppo_atari_envpool.py",
    )
    chosen = parser.parse_args()
    if chosen.minutes and not chosen.env.startswith("atari/"):
        parser.error(f"--minutes compares on Atari games, such as atari/breakout, not on {chosen.env}")
    if "cleanrl" in chosen.programs and not chosen.cleanrl:
        parser.error("--programs cleanrl needs --cleanrl PYTHON FILE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends child processes
    budget = f"--train-for-frames {chosen.frames}" if chosen.frames else ""
    for seed in chosen.seeds:
        if budget:
            made = train_and_play(chosen.env, chosen.policies, budget, chosen.options, seed)
            head = {"env": chosen.env, "policies": chosen.policies, "seed": seed, "recipe": "now"}
            typed = {"options": chosen.options or "as typed", "load": os.getloadavg()[0]}
            add(RESULTS / "as_typed.csv", head | typed | made | {"frames": chosen.frames})
            continue
        seconds = 60 * chosen.minutes
        head = {"env": chosen.env, "seed": seed, "date": str(datetime.now(UTC).date())}
        game = chosen.env.partition("/")[2]
        for program in chosen.programs:
            if program == "pbt_rl":
                time_limit = f"--train-for-seconds {seconds:.0f}"
                made = train_and_play(chosen.env, 1, time_limit, chosen.options, seed)
            elif program == "cleanrl":
                python, script = chosen.cleanrl
                made = peer(
                    program, game, seed, seconds, f"--script={script.resolve()}", python=python.absolute()
                )
            else:
                made = peer(program, game, seed, seconds)
            add(RESULTS / "ten_minutes.csv", head | {"program": program} | made)


if __name__ == "__main__":
    main()
