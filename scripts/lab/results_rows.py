"""Rows of whole runs in docs/lab/results, which scripts append to; and which seeds a command line means."""

from __future__ import annotations

import argparse
import contextlib
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV, none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write the rows of one run at once. Raises SystemExit if the file holds other columns: it is another script's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), path.open("x", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(columns)
    with path.open("r+", newline="") as file:
        found = next(csv.reader(file), [])
        if found != list(columns):
            raise SystemExit(
                f"{path} has the columns {', '.join(found)}, not {', '.join(columns)}: nothing is written"
            )
        file.seek(0, 2)
        csv.writer(file, lineterminator="\n").writerows(rows)


def seed_range(text: str) -> range:
    """Return the seeds of FIRST:END. Raises ArgumentTypeError for anything else, and for no seed at all."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:END, as in 0:3 for the seeds 0, 1, 2")
    return range(int(first), int(end))
