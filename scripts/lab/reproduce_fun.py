"""Does FuN's manager help on a sparse task seen as an image? FuN and A3C with an LSTM, equal frames.

    python scripts/lab/reproduce_fun.py           # 3 seeds of each arm, twenty minutes on one core
    python scripts/lab/reproduce_fun.py --once    # begin no third after ONCE_SECONDS; exit code 3 if none is left

The task is toy/treasure?size=5: a walk over 5 x 5 cells, reward 1 at the treasure, 20 steps at most. Each run is a
single policy in serial mode, with the network of --algo unreal at a quarter of its width and rollouts of 40 steps, as
FuN's goals need ten steps to be judged. The score is of fresh games of the saved weights. What is in the CSV is not run
again. Its rows of 150,000 frames are older (see docs/lab/agents.md): `a3c` had rollouts of 20 steps there.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

from reproduce_fresh import fresh_games
from reproduce_rl import T_95

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "lab" / "results" / "fun_treasure.csv"
WORK = Path(tempfile.gettempdir()) / "pbt-rl-reproduce-fun"
FIELDS = ("arm", "learning_rate", "seed", "frames", "fresh", "seconds")
PARTS = 3
ONCE_SECONDS = 150
ENVIRONMENT = ("--env", "toy/treasure?size=5", "--mode", "serial", "--num-policies", "1", "--pbt.no-enabled")
MACHINE = ("--devices", "cpu", "--actors", "1", "--envs-per-unit", "8", "--learner.threads", "1")
SAVING = ("--save-every-seconds", "0", "--no-figures")
NETWORK = ("--model.encoder", "a3c", "--model.hidden", "64", "--model.core-size", "64")
ROLLOUT = ("--learner.rollout", "40", "--hypers.unroll", "40")
ARMS: Mapping[str, tuple[str, ...]] = {
    "a3c": ("--algo", "a3c", "--model.core", "lstm", *ROLLOUT),
    "fun": ("--algo", "fun", *ROLLOUT),
    "fun without intrinsic reward": ("--algo", "fun", *ROLLOUT, "--hypers.intrinsic-coef", "0"),
}
RATES = (3e-3, 7e-3)
Key = tuple[str, float, int, int]


def train(key: Key, work: Path) -> bool:
    """Train a third of a run; return whether it is at its end."""
    arm, rate, seed, frames = key
    name = f"{arm.replace(' ', '-')}-{rate:g}-{seed}-{frames}"
    notes = work / f"{name}.seconds"
    taken = [float(word) for word in notes.read_text().split()] if notes.exists() else []
    part = (len(taken) + 1) * frames // PARTS
    command = [sys.executable, "-m", "pbt_rl", "train", *ENVIRONMENT, *MACHINE, *SAVING, *NETWORK]
    command += [*ARMS[arm], "--hypers.learning-rate", str(rate), "--seed", str(seed)]
    command += ["--out", str(work), "--name", name, "--train-for-frames", str(part)]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    taken.append(time.monotonic() - began)
    notes.write_text(" ".join(f"{seconds:.1f}" for seconds in taken))
    if len(taken) < PARTS:
        return False
    fresh = fresh_games(work / name).scores[0]
    values = (arm, rate, seed, frames, f"{fresh:.3f}", f"{sum(taken):.0f}")
    write([*read(), dict(zip(FIELDS, values, strict=True))])
    return True


def read() -> list[dict[str, object]]:
    """Return the rows of the CSV, none if there is no file."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def write(rows: list[dict[str, object]]) -> None:
    """Write all rows; a run that is killed meanwhile leaves the file as it was."""
    part = RESULTS.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(RESULTS)


def key_of(row: Mapping[str, object]) -> Key:
    """Identify a run."""
    return str(row["arm"]), float(str(row["learning_rate"])), int(str(row["seed"])), int(str(row["frames"]))


def table(frames: int) -> None:
    """Print the mean of each arm and rate, and the paired difference of the arms with its 95 % interval."""
    scores: dict[tuple[str, float], dict[int, float]] = {}
    for row in read():
        arm, rate, seed, length = key_of(row)
        if length == frames:
            scores.setdefault((arm, rate), {})[seed] = float(str(row["fresh"]))
    for (arm, rate), of_seeds in sorted(scores.items()):
        each = ", ".join(f"{score:.2f}" for _, score in sorted(of_seeds.items()))
        print(f"{arm} learning rate {rate:g}: fresh games {fmean(of_seeds.values()):.3f} ({each})")
    for rate in sorted({rate for _, rate in scores}):
        a3c = scores.get(("a3c", rate), {})
        for arm in (name for name in ARMS if name != "a3c"):
            other = scores.get((arm, rate), {})
            gains = [other[seed] - a3c[seed] for seed in sorted(other.keys() & a3c.keys())]
            if len(gains) > 1:
                half = T_95[len(gains)] * stdev(gains) / len(gains) ** 0.5
                said = f"{fmean(gains):+.3f} +- {half:.3f} ({len(gains)} seeds)"
                print(f"{arm} - a3c, learning rate {rate:g}: {said}")


def main() -> int:
    """Run what is missing in the CSV, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frames", type=int, default=250_000)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--once", action="store_true")
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    keys = [(a, r, s, chosen.frames) for s in chosen.seeds for r in chosen.rates for a in chosen.arms]
    began = time.monotonic()
    for key in keys:
        while key not in map(key_of, read()):
            if train(key, chosen.work):
                print(read()[-1], flush=True)
            if chosen.once and time.monotonic() - began > ONCE_SECONDS:
                return 0
    table(chosen.frames)
    return 3 if chosen.once else 0


if __name__ == "__main__":
    sys.exit(main())
