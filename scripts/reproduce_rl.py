"""The sections of `reproduce.py` that need real runs of `pbt-rl train`: proof of application, PBT, the searches.

All runs are processes of their own, in a temporary folder; figures come from their summary.json and journal.jsonl.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean, stdev

from reproduce_fresh import GAMES, Fresh, fresh_games
from reproduce_table import Row, Section, holds, measured

from pbt_rl.pbt import HyperSpec, sample_prior
from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.decisions import decision_from_dict
from pbt_rl.pbt.hypers import SHAPING, Hypers, hyper_table
from pbt_rl.pbt.search.hyperband import hyperband_completion, hyperband_members, hyperband_table
from pbt_rl.pbt.search.hypertrick import expected_completion, matching_eviction_rate
from pbt_rl.record.journal import read_journal
from pbt_rl.report.read import History, read_run

PATIENCE_SECONDS = 900
SEEDS = {"RL1": 10, "RL2": 5, "RL3": 7}
PAPER_COMPLETION = (0.97, 1.38)
"""Completion rates of Heinrich and Frosio's four games over equation 9's (table 1: least and largest)."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of values -> 97.5 % quantile of Student's t with one degree of freedom less."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    summary: Mapping[str, object]
    record: History
    scores: tuple[float, ...]
    """The final objective of every member that has one."""
    fresh: Fresh | None = None
    """Fresh games of its members, if they were played."""


def train(folder: Path, name: str, *options: str) -> Trained:
    """Run `pbt-rl train`. Raises RuntimeError with its output if it fails."""
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
    """Compare decisions with the values read back from optimiser, loss and environment (`applied` events)."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        train(Path(folder), "t9", *BREAKOUT)
        events = read_journal(Path(folder) / "t9" / "journal.jsonl")
    generations = Counter[int]()
    decided: dict[tuple[int, int], Mapping[str, float]] = {}
    applied = [e for e in events if e["event"] == "applied"]
    for event in events:
        decisions = [decision_from_dict(record) for record in event.get("decisions", ())]
        for change in changes(decisions, generations):
            if change.values is not None:
                generations[change.member] = change.generation
                decided[change.member, change.generation] = change.values
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


def pbt_against_random() -> list[Row]:
    """Compare both on CartPole at equal frames, members and priors, by fresh games of the saved members."""
    runs: dict[str, list[Trained]] = {"pbt": [], "random": []}
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        for seed in range(SEEDS["RL1"]):
            for name, own in (("pbt", PBT), ("random", ("--controller", "random"))):
                runs[name].append(judged(Path(folder), f"{name}-{seed}", seed, *own, *FINAL))
    pbt, random = runs["pbt"], runs["random"]
    regret = {name: interval([fresh_of(run).regret for run in those]) for name, those in runs.items()}
    without = {name: sum(MEMBERS - len(run.scores) for run in those) for name, those in runs.items()}
    frames = [mean(float(str(r.summary["frames"])) for r in those) for those in (pbt, random)]
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


def judged(folder: Path, name: str, seed: int, *own: str) -> Trained:
    """Train a population on CartPole, its first member drawn as well, and play fresh games of all saved members."""
    size = ("--num-policies", f"{MEMBERS}", "--train-for-frames", f"{FRAMES}", "--no-figures")
    trained = train(folder, name, *TASK, "--seed", f"{seed}", *size, *own, *drawn_defaults(seed))
    return replace(trained, fresh=fresh_games(folder / name))


def evaluated_members() -> list[Row]:
    """Compare members by episodes that they play for it: how well the best is known then, and what that costs."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        runs = {
            name: [judged(Path(folder), f"{name}-{seed}", seed, *PBT, *own) for seed in range(SEEDS["RL3"])]
            for name, own in (("evaluated", EVALUATED), ("training", FINAL))
        }
    regret = interval([fresh_of(run).regret for run in runs["evaluated"]])
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


def fresh_of(run: Trained) -> Fresh:
    """Return the fresh games of a run, which were played."""
    assert run.fresh is not None
    return run.fresh


def best(runs: Sequence[Trained]) -> list[float]:
    """Return the fresh score of the best member of each run."""
    return [max(fresh_of(run).scores.values()) for run in runs]


def picked(runs: Sequence[Trained]) -> list[float]:
    """Return the fresh score of the member that each run calls its best."""
    return [fresh_of(run).scores[fresh_of(run).picked] for run in runs]


def whole(runs: Sequence[Trained]) -> list[float]:
    """Return the mean fresh score of the members of each run."""
    return [mean(fresh_of(run).scores.values()) for run in runs]


# -- RL2: HyperTrick against Hyperband --------------------------------------------------------------------------

ETA, RESOURCE, NODES = 3, 9, 5
UNIT_FRAMES, BATCH_FRAMES = 2000, 512
HEADLINE = {"hypertrick": "the shorter one in the paper", "hyperband": "-"}


def hypertrick_against_hyperband() -> list[Row]:
    """Compare both on CartPole at the same number of configurations, slots, longest training, and expected work."""
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
        score, error = interval([max(run.scores) for run in those])
        seconds, seconds_error = interval([run.record.seconds for run in those])
        occupancy = mean(run.record.occupancy or 0.0 for run in those)
        rows += [
            measured(f"{name}: best score", f"{score:.0f} +- {error:.0f}"),
            measured(f"{name}: wall time, s", f"{seconds:.0f} +- {seconds_error:.0f}", HEADLINE[name]),
            measured(f"{name}: occupancy of {NODES} slots", f"{occupancy:.2f}"),
        ]
    law = expected_completion(rate, RESOURCE)
    trainings = sum(members for bracket in hyperband_table(ETA, RESOURCE) for members, _ in bracket)
    overrun = trainings * BATCH_FRAMES / (members * RESOURCE * UNIT_FRAMES)  # each ends with a whole batch
    low, high = (law * share for share in PAPER_COMPLETION)
    begun = interval([len(run.record.phases) / (members * RESOURCE) for run in runs["hypertrick"]])
    shares = {name: interval([run.record.completion or 0.0 for run in those]) for name, those in runs.items()}
    what = f"hypertrick: completion rate, in phases (eq. 9: {law:.3f})"
    return [
        *rows,
        holds(what, f"{low:.3f} to {high:.3f}", plus_minus(begun), passed=low <= begun[0] <= high),
        measured("hypertrick: the same, in frames", plus_minus(shares["hypertrick"])),
        holds(
            "hyperband: completion rate, in frames",
            f"{alpha:.3f} to {alpha + overrun:.3f} (whole batches)",
            plus_minus(shares["hyperband"]),
            passed=0 <= shares["hyperband"][0] - alpha <= overrun,
        ),
    ]


def plus_minus(values: tuple[float, float]) -> str:
    """Format a mean and half of its interval."""
    return f"{values[0]:.3f} +- {values[1]:.3f}"


SECTIONS: dict[str, Section] = {
    "RL1": (
        f"CartPole, {SEEDS['RL1']} seeds: PBT, random; {MEMBERS} members x {FRAMES:,} frames; {GAMES} fresh games each",
        pbt_against_random,
    ),
    "RL2": (f"CartPole, {SEEDS['RL2']} seeds: HyperTrick against Hyperband", hypertrick_against_hyperband),
    "RL3": (
        f"CartPole, {SEEDS['RL3']} seeds: members evaluated on purpose before they are compared",
        evaluated_members,
    ),
}
