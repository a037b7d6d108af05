"""What is learned by the command as typed: rows of docs/lab/results/as_typed.csv and ten_minutes.csv.

    python scripts/lab/as_typed.py gym/Hopper-v5 --frames 1M --seeds 0 1 2   # on cores that other work may share
    python scripts/lab/as_typed.py gym/Hopper-v5 --frames 1M --seeds 0 --options "--mode serial"
    python scripts/lab/as_typed.py atari/breakout --minutes 10 --seeds 0     # on quiet cores; Sample Factory beside it
    python scripts/lab/tables.py

Scores are of 20 fresh games of the last weights. Sample Factory has the options of its own example, on the CPU.
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


def train_and_play(env: str, policies: int, budget: str, options: str, seed: int) -> dict[str, Any]:
    """Train in a folder that is removed, and play the best member. seconds: from the first frames on."""
    folder = tempfile.mkdtemp(prefix="as-typed-")
    try:
        run = Path(folder) / "run"
        words = f"train --env {env} --num-policies {policies} {budget} --seed {seed} {options} --name run"
        ours(*shlex.split(words), "--out", folder)
        summary = json.loads((run / "summary.json").read_text())
        played = ours("eval", str(run), "--episodes", str(GAMES))
    finally:
        shutil.rmtree(folder)
    found = re.search(r"mean (\S+), std (\S+), min (\S+), max (\S+)", played)
    assert found, played
    mean, sd, least, most = map(float, found.groups())
    frames = max(member["frames"] for member in summary["members"])
    return {"frames": frames, "seconds": summary["training_seconds"]} | {
        "mean": mean,
        "sd": sd,
        "min": least,
        "max": most,
    }


def ours(*words: str) -> str:
    """Return what a command of ours printed. Raises RuntimeError with its end if it failed."""
    command = [sys.executable, "-m", "pbt_rl", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout[-3000:]}")
    return done.stdout


def sample_factory(game: str, seconds: float) -> dict[str, Any]:
    """Return the same of Sample Factory, with its defaults."""
    options = [f"--game={game}", f"--seconds={seconds}", f"--games={GAMES}"]
    return run_job("sample_factory_as_typed.py", options, seconds + 60)


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file that has a line of heads."""
    row = {name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in row.items()}
    print(row, flush=True)
    heads = path.read_text().partition("\n")[0].split(",")
    with path.open("a", newline="") as file:
        csv.DictWriter(file, heads, lineterminator="\n").writerow(row)


def main() -> None:
    """Make the rows, one after another."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("env")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--frames", help="of each member")
    length.add_argument("--minutes", type=float, help="of an Atari game, beside Sample Factory")
    parser.add_argument("--policies", type=int, default=1)
    parser.add_argument("--options", default="", help="what else is typed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    chosen = parser.parse_args()
    if chosen.minutes and not chosen.env.startswith("atari/"):
        parser.error(f"--minutes compares on Atari games, such as atari/breakout, not on {chosen.env}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started is ended
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
        budget_s = f"--train-for-seconds {seconds:.0f}"
        made = train_and_play(chosen.env, 1, budget_s, chosen.options, seed)
        add(RESULTS / "ten_minutes.csv", head | {"program": "pbt_rl"} | made)
        made = sample_factory(chosen.env.partition("/")[2], seconds)
        add(RESULTS / "ten_minutes.csv", head | {"program": "sample_factory"} | made)


if __name__ == "__main__":
    main()
