"""Fresh games of whole populations as rows of a CSV: a section of `reproduce.py` goes on after an interruption."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduce_fresh import Fresh

COLUMNS = ("seed", "arm", "member", "fresh_score", "saved_as_best", "has_objective", "frames_of_population")


@dataclass(frozen=True)
class Judged:
    """One run: fresh games of its saved members, and what it knew of them at its end."""

    fresh: Fresh
    with_objective: frozenset[int]
    frames: int
    """Of the population."""


def read_judged(path: Path) -> dict[tuple[str, int], Judged]:
    """Return (arm, seed) -> run of a CSV, none if there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    runs: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in rows:
        runs.setdefault((row["arm"], int(row["seed"])), []).append(row)
    return {key: _judged(those) for key, those in runs.items()}


def _judged(rows: Sequence[dict[str, str]]) -> Judged:
    scores = {int(row["member"]): float(row["fresh_score"]) for row in rows}
    (picked,) = (int(row["member"]) for row in rows if row["saved_as_best"] == "1")
    known = frozenset(int(row["member"]) for row in rows if row["has_objective"] == "1")
    return Judged(Fresh(scores, picked), known, int(rows[0]["frames_of_population"]))


def append_judged(path: Path, arm: str, seed: int, run: Judged) -> None:
    """Write the rows of one run at once."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows(
            (
                seed,
                arm,
                m,
                f"{score:.2f}",
                int(m == run.fresh.picked),
                int(m in run.with_objective),
                run.frames,
            )
            for m, score in sorted(run.fresh.scores.items())
        )


def best(runs: Sequence[Judged]) -> list[float]:
    """Return the fresh score of the best member of each run."""
    return [max(run.fresh.scores.values()) for run in runs]


def picked(runs: Sequence[Judged]) -> list[float]:
    """Return the fresh score of the member that each run calls its best."""
    return [run.fresh.scores[run.fresh.picked] for run in runs]


def whole(runs: Sequence[Judged]) -> list[float]:
    """Return the mean fresh score of the members of each run."""
    return [sum(run.fresh.scores.values()) / len(run.fresh.scores) for run in runs]
