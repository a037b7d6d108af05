"""T9 of `reproduce.py`: do the decided values act? By the run's own proofs, and by a witness that is no part of it.

A run records what it reads back from optimiser, loss and shaping table after each decision: it agrees with them or not,
but is the run's own record. The witness (papers/witness.py) is an environment, a loss and an optimiser that write
down what they are called with. They must have seen all values that were ever in force, and no others.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from papers.witness import LOG
from reproduce_rl import train
from reproduce_table import Row, holds

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import Decision
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.controllers.records import converted
from pbt_rl.record.journal import read_journal

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
        decisions = [converted(record, Decision, "a decision") for record in event.get("decisions", ())]
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


WITNESSED = {
    "optimizer": ("learning_rate", "adam_beta1"),
    "loss": ("clip_ratio", "entropy_coef", "value_coef"),
    "environment": ("shaping.bait",),
}
"""Place -> values that it is called with."""
BATCH_FRAMES = 512
WITNESS = (
    *("--env", "papers.witness:make", "--algo", "papers.witness:WITNESS", "--mode", "serial"),
    *(
        "--num-policies",
        "6",
        "--train-for-frames",
        "20000",
        "--learner.batch",
        f"{BATCH_FRAMES}",
        "--no-figures",
    ),
    *("--learner.packing", "loop", "--learner.lr-schedule", "constant", "--model.encoder", "mlp"),
    *(
        "--model.hidden",
        "16",
        "--pbt.period-frames",
        "2000",
        "--pbt.start-frames",
        "2000",
        "--pbt.min-episodes",
        "1",
    ),
    *("--pbt.replace-gap", "0", "--pbt.tune", *(name for names in WITNESSED.values() for name in names)),
)


def witnessed() -> list[Row]:
    """Compare what a witness saw with the values in force, per place, as sets of float32."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        log = Path(folder) / "witness.jsonl"
        trained = train(Path(folder), "t9", *WITNESS, environment={LOG: str(log)})
        events = read_journal(Path(folder) / "t9" / "journal.jsonl")
        seen: dict[str, set[float]] = defaultdict(set)
        for line in log.read_text().splitlines():
            name, value = json.loads(line)
            seen[name].add(float(np.float32(value)))
    frames = float(str(trained.summary["frames"])) / 6
    certain, possible = in_force(events, last=frames - 3 * BATCH_FRAMES)
    rows = []
    for place, names in WITNESSED.items():
        missed = sum(len(certain[name] - seen[name]) for name in names)
        foreign = sum(len(seen[name] - possible[name]) for name in names)
        of = sum(len(possible[name]) for name in names)
        rows.append(
            holds(
                f"witness: values that the {place} never got, and that nobody decided, of {of}",
                "0 and 0",
                f"{missed} and {foreign}",
                passed=missed == foreign == 0 < of,
            )
        )
    return rows


Sets = Mapping[str, set[float]]


def in_force(events: Sequence[Mapping[str, Any]], last: float) -> tuple[Sets, Sets]:
    """Return the values that must have been seen, and those that may: of decisions until `last` frames, and of all."""
    certain: dict[str, set[float]] = defaultdict(set)
    possible: dict[str, set[float]] = defaultdict(set)
    for event in events:
        given = (
            event["values"]
            if event["event"] == "initial"
            else [d.get("values") for d in event.get("decisions", ())]
        )
        for values in filter(None, given):
            for name, value in values.items():
                possible[name].add(float(np.float32(value)))
                if event["frames"] <= last:
                    certain[name].add(float(np.float32(value)))
    return certain, possible


def t9() -> list[Row]:
    """Both."""
    return [*proof_of_application(), *witnessed()]
