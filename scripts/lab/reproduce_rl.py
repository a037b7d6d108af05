"""The sections of `reproduce.py` that train populations by reinforcement learning: RL1 and RL3.

All runs are processes of their own, in a temporary folder; figures come from their summary.json and journal.jsonl.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, stdev
from types import MappingProxyType

from reproduce_fresh import GAMES, fresh_games
from reproduce_judged import Judged, append_judged, best, picked, read_judged, whole
from reproduce_table import Row, Section, holds, measured

from pbt_rl.config import Hypers
from pbt_rl.controllers import HyperSpec, sample_prior
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.report.read import History, read_run

PATIENCE_SECONDS = 900
SEEDS = {"RL1": 10, "RL3": 7}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of values -> 97.5 % quantile of Student's t with one degree of freedom less."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    summary: Mapping[str, object]
    record: History
    scores: Mapping[int, float]
    """Member -> its final objective, of those that have one."""


def train(
    folder: Path, name: str, *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Trained:
    """Run `pbt-rl train` with these scripts on its path. Raises RuntimeError with its output if it fails."""
    command = [sys.executable, "-m", "pbt_rl", "train", "--out", str(folder), "--name", name, *options]
    path = filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), **environment},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary = json.loads((folder / name / "summary.json").read_text())
    scores = {m["id"]: m["objective"] for m in summary["members"] if m["objective"] is not None}
    return Trained(summary, read_run(folder / name), scores)


# -- RL1: PBT against random search -----------------------------------------------------------------------------

TUNED = ("learning_rate", "entropy_coef", "clip_ratio")
TASK = (
    *("--env", "gym/CartPole-v1", "--mode", "serial", "--learner.batch", "512"),
    *("--learner.lr-schedule", "constant", "--pbt.objective-episodes", "20", "--pbt.tune", *TUNED),
)
FRAMES, MEMBERS, PERIOD = 20_000, 6, 3500
MOST_REGRET = 15
PBT = (
    *(
        "--controller",
        "pbt",
        "--pbt.exploit",
        "truncation",
        "--pbt.replace-gap",
        "0",
        "--pbt.explore",
        "factors",
    ),
    *("--pbt.period-frames", f"{PERIOD}", "--pbt.start-frames", f"{PERIOD}"),
)


FINAL = ("--final-episodes", "20")
"""The best member is named by final games, as in the other modes without asking."""
EVALUATED = ("--pbt.evaluate-episodes", "16")
"""One episode of each environment."""


def drawn_defaults(seed: int, tuned: Sequence[str] = TUNED) -> list[str]:
    """Return options that draw the first member's values from the priors too: PBT leaves them at the defaults."""
    table, rng = hyper_table(Hypers()), Random(f"defaults.{seed}")

    def option(spec: HyperSpec) -> list[str]:
        return [f"--hypers.{spec.name.replace('_', '-')}", f"{sample_prior(spec, rng):.6g}"]

    return [word for name in tuned for word in option(table[name])]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % confidence interval by Student's t."""
    return mean(values), T_95[len(values)] * stdev(values) / math.sqrt(len(values))


def compared(what: str, ours: Sequence[float], theirs: Sequence[float], expected: str | None) -> Row:
    """Compare two paired samples: whether the mean of the first is larger; a measurement if None is expected.

    It is the larger one only if 0 is outside the 95 % interval of the difference.
    """
    (a, a_error), (b, b_error) = interval(ours), interval(theirs)
    gain, error = interval([x - y for x, y in zip(ours, theirs, strict=True)])
    found = f"{a:.0f} +- {a_error:.0f} against {b:.0f} +- {b_error:.0f}; difference {gain:.0f} +- {error:.0f}"
    return Row(what, expected or "-", found, None if expected is None else gain - error > 0)


def pbt_against_random(keep: Path | None) -> list[Row]:
    """Compare both on CartPole at equal frames, members and priors, by fresh games of the saved members."""
    arms = {"pbt": (*PBT, *FINAL), "random": ("--controller", "random", *FINAL)}
    runs = populations("rl1", arms, SEEDS["RL1"], keep)
    pbt, random = runs["pbt"], runs["random"]
    regret = {name: interval([run.fresh.regret for run in those]) for name, those in runs.items()}
    without = {name: sum(MEMBERS - len(run.with_objective) for run in those) for name, those in runs.items()}
    frames = [mean(run.frames for run in those) for those in (pbt, random)]
    return [
        compared("mean of all members", whole(pbt), whole(random), "PBT above random"),
        compared("member that is saved as the best", picked(pbt), picked(random), None),
        compared("best member", best(pbt), best(random), None),
        holds(
            "regret: the best member less the saved one, PBT",
            f"below {MOST_REGRET}",
            "{:.0f} +- {:.0f}".format(*regret["pbt"]),
            passed=regret["pbt"][0] < MOST_REGRET,
        ),
        measured("the same, random", "{:.0f} +- {:.0f}".format(*regret["random"])),
        measured(
            f"members of {len(pbt) * MEMBERS} without a score at the end (PBT, random)",
            f"{without['pbt']}, {without['random']}",
        ),
        holds(
            "frames of a population, mean (PBT, random)",
            "equal within 5 %",
            f"{frames[0]:,.0f}, {frames[1]:,.0f}",
            passed=abs(frames[0] / frames[1] - 1) < 0.05,
        ),
    ]


def populations(
    section: str, arms: Mapping[str, Sequence[str]], seeds: int, keep: Path | None
) -> dict[str, list[Judged]]:
    """Return the judged runs of each arm, in order of seeds. keep: folder of a CSV whose runs are not made again."""
    runs: dict[str, list[Judged]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        path = (keep or Path(folder)) / f"{section}.csv"
        for seed in range(seeds):
            for arm, own in arms.items():
                if (arm, seed) not in read_judged(path):
                    append_judged(path, arm, seed, judged(Path(folder), f"{arm}-{seed}", seed, *own))
                runs[arm].append(read_judged(path)[arm, seed])
    return runs


def judged(folder: Path, name: str, seed: int, *own: str) -> Judged:
    """Train a population on CartPole, its first member drawn as well, and play fresh games of all saved members."""
    size = ("--num-policies", f"{MEMBERS}", "--train-for-frames", f"{FRAMES}", "--no-figures")
    trained = train(folder, name, *TASK, "--seed", f"{seed}", *size, *own, *drawn_defaults(seed))
    return Judged(fresh_games(folder / name), frozenset(trained.scores), int(str(trained.summary["frames"])))


def evaluated_members(keep: Path | None) -> list[Row]:
    """Compare members by episodes that they play for it: how well the best is known then, and what that costs."""
    runs = populations(
        "rl3", {"evaluated": (*PBT, *EVALUATED), "training": (*PBT, *FINAL)}, SEEDS["RL3"], keep
    )
    regret = interval([run.fresh.regret for run in runs["evaluated"]])
    return [
        holds(
            "regret: the best member less the saved one",
            f"below {MOST_REGRET}",
            "{:.1f} +- {:.1f}".format(*regret),
            passed=regret[0] < MOST_REGRET,
        ),
        compared(
            "saved member, against PBT by training windows",
            picked(runs["evaluated"]),
            picked(runs["training"]),
            None,
        ),
        compared(
            "mean of all members, against the same", whole(runs["evaluated"]), whole(runs["training"]), None
        ),
    ]


def sections(keep: Path | None) -> dict[str, Section]:
    """Return all sections. keep: folder where the rows of whole runs are kept, or None."""
    return {
        "RL1": (
            f"CartPole, {SEEDS['RL1']} seeds: PBT, random; {MEMBERS} x {FRAMES:,} frames; {GAMES} fresh games each",
            partial(pbt_against_random, keep),
        ),
        "RL3": (
            f"CartPole, {SEEDS['RL3']} seeds: members evaluated on purpose before they are compared",
            partial(evaluated_members, keep),
        ),
    }
