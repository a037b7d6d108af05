"""Run the protocols of docs/lab/evidence.md (does PBT help?) by `pbt-rl prove`.

    python scripts/lab/evidence.py minatar_breakout --seeds 3   # seeds 0 to 2; can be interrupted and resumed
    python scripts/lab/evidence.py minatar_breakout --jobs 2    # all seeds of the protocol
    python scripts/lab/tables.py                                # PBT against random search in docs/lab/results.md

Runs, curves and verdicts are written to runs/evidence/PROTOCOL. docs/lab/results/PROTOCOL.csv has one row per saved
member of a completed run. New rows replace older rows with equal arm and seed.
"""

from __future__ import annotations

import csv
import os
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "lab" / "results"
COLUMNS = ("seed", "arm", "member", "frames", "validation", "test")


@dataclass(frozen=True)
class Protocol:
    """Experiment. options: options of `pbt-rl prove`, without name and seeds."""

    seeds: int
    options: str


WORST_QUARTER = (
    "--pbt.exploit truncation --pbt.replace-fraction 0.25 --pbt.replace-gap 0 --pbt.replace-errors 0 "
    "--pbt.explore resample"
)
AS_TYPED = (
    "--arm as-typed:'--pbt.exploit top-middle-bottom --pbt.replace-fraction 0.3 --pbt.replace-gap 0.1 "
    "--pbt.replace-errors 2.5 --pbt.explore perturb --pbt.objective-episodes 100'"
)
"""Arm with the default rules of PBT. All arms have equal initial values, periods and budgets."""
THREE = "--pbt.tune learning_rate entropy_coef clip_ratio"
SEARCH = "--slots 8 --search.phases 4 --search.eviction-rate"
MINATAR = (
    "--mode serial --no-figures --learner.threads 1 --learner.lr-schedule constant --pbt.objective-episodes 64 "
    f"{WORST_QUARTER} --games 64 --num-policies 8 --train-for-frames 1M"
)
WIDE = "--pbt.tune learning_rate entropy_coef"
NARROW = "--pbt.tune learning_rate=0.001:0.01:log entropy_coef=0.003:0.03:log"
COURIER = (
    "--env courier:make_env --env-option limit=100 --mode serial --no-figures --learner.threads 1 --rows 32 "
    "--model.encoder mlp --model.hidden 64 --learner.rollout 64 --hypers.unroll 64 --learner.batch 2048 "
    "--learner.minibatches 2 --learner.epochs 4 --learner.lr-schedule constant --hypers.learning-rate 1e-3 "
    "--hypers.entropy-coef 0.003 --hypers.clip-ratio 0.2 --pbt.objective-episodes 64 "
    f"{WORST_QUARTER} --games 64 --num-policies 8 --train-for-frames 200k"
)

PROTOCOLS: Mapping[str, Protocol] = {
    "pendulum": Protocol(
        24,
        "--env gym/Pendulum-v1 --mode serial --no-figures --learner.threads 1 --num-policies 12 --train-for-frames 80k "
        "--learner.lr-schedule constant --pbt.objective-episodes 20 --pbt.period-frames 8k --pbt.start-frames 8k "
        f"--pbt.tune learning_rate entropy_coef clip_ratio gamma gae_lambda max_grad_norm {WORST_QUARTER} {AS_TYPED}",
    ),
    "cartpole": Protocol(
        20,
        "--env gym/CartPole-v1 --mode serial --no-figures --learner.threads 1 --num-policies 8 --train-for-frames 10k "
        "--learner.batch 512 --learner.lr-schedule constant --pbt.objective-episodes 20 --pbt.period-frames 1250 "
        f"--pbt.start-frames 1250 {THREE} {WORST_QUARTER} {AS_TYPED} "
        f"--arm halving:'--controller successive-halving --num-policies 17 {SEARCH} 0.5' "
        f"--arm hypertrick:'--controller hypertrick --num-policies 12 {SEARCH} 0.25' "
        "--arm mf-pbt:'--controller mf-pbt --pbt.frequencies 1 4' --arm pb2:'--pbt.explore pb2' "
        "--arm weights-only:'--pbt.copy weights' --arm values-only:'--pbt.copy hypers'",
    ),
    "unroll": Protocol(
        10,
        "--env 'toy/memory?delay=15&size=2' --mode serial --no-figures --learner.threads 1 --num-policies 6 "
        "--train-for-frames 30k --vector-envs-per-actor 1 --envs-per-vector-env 32 --learner.rollout 36 "
        "--hypers.unroll 36 --learner.batch 1152 --learner.epochs 4 --learner.minibatches 4 --model.core gru "
        "--hypers.gamma 0.9 --learner.lr-schedule constant --pbt.objective-episodes 100 --pbt.period-frames 3k "
        f"--pbt.start-frames 3k --pbt.tune learning_rate entropy_coef unroll=2:36 {WORST_QUARTER} --games 100",
    ),
    "atari": Protocol(
        5,
        "--env atari/breakout --mode serial --no-figures --learner.threads 1 --num-policies 8 --train-for-frames 100k "
        "--envs-per-vector-env 4 --learner.rollout 128 --hypers.unroll 128 --learner.lr-schedule constant "
        "--save-every-seconds 60 --pbt.objective-episodes 10 --pbt.period-frames 12500 --pbt.start-frames 12500 "
        f"{THREE} {WORST_QUARTER}",
    ),
    "courier_weights": Protocol(
        8,
        f"{COURIER} {AS_TYPED} "
        "--pbt.tune shaping.near=0.001:1:log shaping.slow=0.001:1:log shaping.effort=0.001:1:log --without defaults "
        "--arm t-test:'--pbt.exploit t-test' --arm gap:'--pbt.replace-gap-absolute 0.3'",
    ),
    "courier": Protocol(
        8,
        f"{COURIER} {AS_TYPED} --arm pb2:'--pbt.explore pb2' --arm mf-pbt "
        "--pbt.tune learning_rate entropy_coef shaping.near=0.001:1:log shaping.slow=0.001:1:log "
        "shaping.effort=0.001:1:log",
    ),
    "minatar_breakout": Protocol(4, f"--env gymnax/Breakout-MinAtar {MINATAR} {WIDE} {AS_TYPED}"),
    "minatar_breakout_narrow": Protocol(
        4, f"--env gymnax/Breakout-MinAtar {MINATAR} {NARROW} --without defaults"
    ),
    "tensors_pendulum": Protocol(
        8,
        "--env tensors/pendulum --mode serial --no-figures --learner.threads 1 --rows 16 --num-policies 8 "
        "--learner.lr-schedule constant --pbt.objective-episodes 32 --pbt.period-frames 8k --pbt.start-frames 8k "
        f"{WORST_QUARTER} {AS_TYPED} --games 64 --train-for-frames 100k "
        "--pbt.tune learning_rate entropy_coef gamma shaping.angle=0.01:10:log shaping.speed=0.001:10:log "
        "shaping.effort=0.0001:1:log --without defaults --arm pb2:'--pbt.explore pb2' --arm mf-pbt",
    ),
}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file. Empty without a file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def command(name: str, seeds: int, jobs: int) -> list[str]:
    """Return the command line of an experiment."""
    words = f"--name {name} --seeds {seeds} --jobs {jobs} {PROTOCOLS[name].options}"
    out = ["--out", str(ROOT / "runs" / "evidence")]
    return [sys.executable, "-m", "pbt_rl", "prove", *out, *shlex.split(words)]


def keep(made: Path, kept: Path) -> None:
    """Write the rows of `made` (a scores.csv) into `kept`. These rows replace rows with equal arm and seed."""
    new = read_rows(made)
    runs = {(row["arm"], row["seed"]) for row in new}
    rows = [row for row in read_rows(kept) if (row["arm"], row["seed"]) not in runs] + new
    rows.sort(key=lambda row: int(row["seed"]))
    draft = kept.with_suffix(".partial")
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draft.replace(kept)


def main() -> int:
    """Start or resume an experiment."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("--seeds", type=int, help="number of seeds, from 0 on (default: all of the protocol)")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends child processes
    name = chosen.protocol
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    here = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    words = command(name, chosen.seeds or PROTOCOLS[name].seeds, chosen.jobs)
    done = subprocess.run(words, check=False, env=here)
    if not done.returncode:
        keep(ROOT / "runs" / "evidence" / name / "scores.csv", RESULTS / f"{name}.csv")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
