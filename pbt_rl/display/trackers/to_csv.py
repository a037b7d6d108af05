"""`--track csv`: two tables in `tracking/` of the run's folder, for spreadsheets and data frames.

members.csv has one row per member and view. population.csv has one row per view. Besides time, member, frames and
status, the columns are the TensorBoard tags.
A later view may have new columns, such as learning statistics after the first update. New columns are appended at the
right, and are empty in earlier rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbt_rl.display.scalars import evaluation_scalars, member_scalars, population_scalars
from pbt_rl.display.trackers.outlets import TrackedRun
from pbt_rl.display.view import RunView

Row = Mapping[str, object]
TIME = "seconds"
"""Name of the time column. A resumed run removes the rows whose time is after its checkpoint."""


class Table:
    """CSV file to which rows are appended. If rows have a new column, the complete file is rewritten."""

    def __init__(self, path: Path, until_seconds: float) -> None:
        """Continue an existing file, or create the file. Remove rows after `until_seconds`.

        Raises OSError if this fails.
        """
        self._path = path
        rows = [] if path.is_symlink() or not path.exists() else self._rows()
        self._write_anew([row for row in rows if float(str(row[TIME])) <= until_seconds])

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows. Raises OSError if writing fails."""
        if not {name for row in rows for name in row} <= {*self._columns}:
            self._write_anew([*self._rows(), *rows])
            return
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerows(rows)

    def _rows(self) -> list[Row]:
        with self._path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _write_anew(self, rows: Sequence[Row]) -> None:
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        draft = self._path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        draft.replace(self._path)


class CsvTracker:
    """Tracker that writes members.csv and population.csv."""

    def __init__(self, run: TrackedRun) -> None:
        self._members = Table(run.tracking / "members.csv", run.seconds)
        self._population = Table(run.tracking / "population.csv", run.seconds)

    def show(self, view: RunView) -> None:
        """Append one row per member and one row for the population. Raises OSError if writing fails."""
        time = {TIME: round(view.seconds, 3)}
        self._members.add(
            [
                {**time, "member": m.member, "frames": m.frames, "status": m.status, **member_scalars(m)}
                for m in view.members
            ]
        )
        scalars = population_scalars(view) | evaluation_scalars(view.evaluation)
        self._population.add([{**time, "frames": view.frames, **scalars}])

    def close(self, ended: str) -> None:
        """Do nothing, because all rows are already written."""
