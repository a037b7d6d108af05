"""What `reproduce.py` shows by real runs of `pbt-rl train`: proof of application, PBT and the searches at work.

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
from pathlib import Path
from random import Random
from statistics import mean, stdev

from reproduce_table import Row, Section, holds

from pbt_rl.pbt import Continue, HyperSpec, Stop, sample_prior
from pbt_rl.pbt.decisions import decision_from_dict
from pbt_rl.pbt.hypers import SHAPING, Hypers, hyper_table
from pbt_rl.pbt.search.hyperband import hyperband_completion, hyperband_members
from pbt_rl.pbt.search.hypertrick import expected_completion, matching_eviction_rate
from pbt_rl.record.journal import read_journal
from pbt_rl.report.read import Record, read_run

PATIENCE_SECONDS = 900
SEEDS = {"RL1": 10, "RL2": 5}
PAPER_COMPLETION = (0.97, 1.38)
"""Completion rates of Heinrich and Frosio's four games over equation 9's (table 1: least and largest)."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of values -> 97.5 % quantile of Student's t with one degree of freedom less."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    summary: Mapping[str, object]
    record: Record
    scores: tuple[float, ...]
    """Final objective of every member that has one."""


def train(folder: Path, name: str, *options: str) -> Trained:
    """Run `pbt-rl train`; RuntimeError with its words if it fails."""
    command = [sys.executable, "-m", "pbt_rl.cli", "train", "--out", str(folder), "--name", name, *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary = json.loads((folder / name / "summary.json").read_text())
    scores = tuple(m["objective"] for m in summary["members"] if m["objective"] is not None)
    return Trained(summary, read_run(folder / name), scores)


# -- T9 ---------------------------------------------------------------------------------------------------------

BREAKOUT = (
    *("--env", "atari/breakout", "--num-policies", "4", "--train-for-frames", "12000", "--actors", "1"),
    *("--pbt.period-frames", "3000", "--pbt.start-frames", "3000", "--pbt.min-episodes", "1"),
    *("--pbt.replace-gap", "0", "--pbt.mutation-rate", "1", "--envs-per-unit", "2", "--learner.batch", "128"),
    *("--learner.minibatches", "4", "--pbt.tune", "learning_rate", "clip_ratio", "gamma", "entropy_coef"),
    *("shaping.life_loss_penalty", "shaping.score_scale"),
)


def proof_of_application() -> list[Row]:
    """Compare what was decided with what optimiser, loss and environment say afterwards (`applied` events)."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        train(Path(folder), "t9", *BREAKOUT)
        events = read_journal(Path(folder) / "t9" / "journal.jsonl")
    generations: dict[int, int] = {}
    decided: dict[tuple[int, int], Mapping[str, float]] = {}
    applied = [e for e in events if e["event"] == "applied"]
    for event in events:
        for decision in map(decision_from_dict, event.get("decisions", ())):
            if isinstance(decision, Continue | Stop):
                continue
            generations[decision.member] = generations.get(decision.member, 0) + 1
            decided[decision.member, generations[decision.member]] = decision.values
    checked = dict.fromkeys(("in_optimizer", "in_loss", "in_environment"), 0)
    wrong = 0
    for event in applied:
        values = decided[event["member"], event["generation"]]
        for place in checked:
            for name, found in event[place].items():
                wanted = values[SHAPING + name if place == "in_environment" else name]
                checked[place] += 1
                wrong += not math.isclose(wanted, found, rel_tol=1e-6)  # float32 there, float64 here
    copies = [e for e in applied if e["donor"] is not None]
    changed = sum(not e["donor_unchanged"] for e in copies)
    counts = ", ".join(f"{count} {place.replace('_', ' the ', 1)}" for place, count in checked.items())
    return [
        holds(
            "decisions that changed a member, and proofs",
            "as many",
            f"{len(decided)} and {len(applied)}",
            passed=len(decided) == len(applied) > 0,
        ),
        holds(f"values that differ, of {counts}", "0", f"{wrong}", passed=wrong == 0 < min(checked.values())),
        holds(
            f"donors that changed, in {len(copies)} copies",
            "0",
            f"{changed}",
            passed=changed == 0 < len(copies),
        ),
    ]


# -- RL1: PBT against random search -----------------------------------------------------------------------------

TUNED = ("learning_rate", "entropy_coef", "clip_ratio")
TASK = (
    *("--env", "gym/CartPole-v1", "--mode", "serial", "--learner.batch", "512"),
    *("--learner.lr-schedule", "constant", "--pbt.objective-episodes", "20", "--pbt.tune", *TUNED),
)
FRAMES, MEMBERS, PERIOD = 20_000, 6, 3500
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


def drawn_defaults(seed: int) -> list[str]:
    """Options that draw the first member's values from the priors, too: PBT leaves them at the defaults."""
    table, rng = hyper_table(Hypers()), Random(f"defaults.{seed}")

    def option(spec: HyperSpec) -> list[str]:
        return [f"--hypers.{spec.name.replace('_', '-')}", f"{sample_prior(spec, rng):.6g}"]

    return [word for name in TUNED for word in option(table[name])]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % confidence interval by Student's t."""
    return mean(values), T_95[len(values)] * stdev(values) / math.sqrt(len(values))


def compared(what: str, ours: Sequence[float], theirs: Sequence[float], expected: str | None) -> Row:
    """Two paired samples, and whether the mean of the first is the larger one; for information where None is expected.

    It is the larger one only if 0 is outside the 95 % interval of the difference.
    """
    (a, a_error), (b, b_error) = interval(ours), interval(theirs)
    gain, error = interval([x - y for x, y in zip(ours, theirs, strict=True)])
    found = f"{a:.0f} +- {a_error:.0f} against {b:.0f} +- {b_error:.0f}; difference {gain:.0f} +- {error:.0f}"
    return holds(what, expected or "-", found, passed=expected is None or gain - error > 0)


def pbt_against_random() -> list[Row]:
    """CartPole at equal frames, members and priors."""
    runs: dict[str, list[Trained]] = {"pbt": [], "random": []}
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        for seed in range(SEEDS["RL1"]):
            common = (
                *TASK,
                "--seed",
                f"{seed}",
                "--num-policies",
                f"{MEMBERS}",
                "--train-for-frames",
                f"{FRAMES}",
            )
            defaults = drawn_defaults(seed)
            runs["pbt"].append(train(Path(folder), f"pbt-{seed}", *common, *PBT, *defaults))
            search = ("--controller", "random", *defaults)
            runs["random"].append(train(Path(folder), f"random-{seed}", *common, *search))
    pbt, random = runs["pbt"], runs["random"]
    frames = [mean(float(str(r.summary["frames"])) for r in those) for those in (pbt, random)]
    return [
        compared("mean of all members", whole(pbt), whole(random), "PBT above random"),
        compared("best member, mean of the last 20 episodes", best(pbt), best(random), None),
        holds(
            "frames of a population, mean (PBT, random)",
            "equal within 5 %",
            f"{frames[0]:,.0f}, {frames[1]:,.0f}",
            passed=abs(frames[0] / frames[1] - 1) < 0.05,
        ),
    ]


def best(runs: Sequence[Trained]) -> list[float]:
    """Score of the best member of each run."""
    return [max(run.scores) for run in runs]


def whole(runs: Sequence[Trained]) -> list[float]:
    """Mean score of the members of each run."""
    return [mean(run.scores) for run in runs]


# -- RL2: HyperTrick against Hyperband --------------------------------------------------------------------------

ETA, RESOURCE, NODES = 3, 9, 5
UNIT_FRAMES = 2000


def hypertrick_against_hyperband() -> list[Row]:
    """CartPole: the same configurations' number, places, longest training, and expected work."""
    members, alpha = hyperband_members(ETA, RESOURCE), hyperband_completion(ETA, RESOURCE)
    rate = matching_eviction_rate(alpha, RESOURCE)
    options = {
        "hypertrick": ("--search.phases", f"{RESOURCE}", "--search.eviction-rate", f"{rate:.6f}"),
        "hyperband": ("--search.eta", f"{ETA}", "--search.resource", f"{RESOURCE}"),
    }
    common = (
        *(*TASK, "--num-policies", f"{members}", "--slots", f"{NODES}"),
        *("--search.phase-frames", f"{UNIT_FRAMES}", "--train-for-frames", f"{UNIT_FRAMES * RESOURCE}"),
    )
    runs: dict[str, list[Trained]] = {name: [] for name in options}
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        for seed in range(SEEDS["RL2"]):
            for name, own in options.items():
                more = (*common, *own, "--controller", name, "--seed", f"{seed}")
                runs[name].append(train(Path(folder), f"{name}-{seed}", *more))
    rows = []
    for name, those in runs.items():
        score, error = interval(best(those))
        seconds, seconds_error = interval([run.record.seconds for run in those])
        occupancy = mean(run.record.occupancy or 0.0 for run in those)
        rows += [
            holds(f"{name}: best score", "-", f"{score:.0f} +- {error:.0f}", passed=True),
            holds(f"{name}: wall time, s", "-", f"{seconds:.0f} +- {seconds_error:.0f}", passed=True),
            holds(f"{name}: occupancy of {NODES} places", "-", f"{occupancy:.2f}", passed=True),
        ]
    law = expected_completion(rate, RESOURCE)
    low, high = (law * share for share in PAPER_COMPLETION)
    begun = interval([len(run.record.phases) / (members * RESOURCE) for run in runs["hypertrick"]])
    shares = {name: interval([run.record.completion or 0.0 for run in those]) for name, those in runs.items()}
    what = f"hypertrick: completion rate, in phases (eq. 9: {law:.3f})"
    return [
        *rows,
        holds(what, f"{low:.3f} to {high:.3f}", plus_minus(begun), passed=low <= begun[0] <= high),
        holds(
            "hypertrick: the same, in frames", "a little above", plus_minus(shares["hypertrick"]), passed=True
        ),
        holds(
            "hyperband: completion rate, in frames",
            f"{alpha:.3f}, or a little above",
            plus_minus(shares["hyperband"]),
            passed=0 <= shares["hyperband"][0] - alpha < 0.15,
        ),
    ]


def plus_minus(values: tuple[float, float]) -> str:
    """A mean and half of its interval."""
    return f"{values[0]:.3f} +- {values[1]:.3f}"


SECTIONS: dict[str, Section] = {
    "RL1": (
        f"CartPole, {SEEDS['RL1']} seeds: PBT against random search, {MEMBERS} members x {FRAMES:,} frames",
        pbt_against_random,
    ),
    "RL2": (f"CartPole, {SEEDS['RL2']} seeds: HyperTrick against Hyperband", hypertrick_against_hyperband),
}
