"""`--track csv`: two tables in `tracking/` of the run's folder, for spreadsheets and data frames.

members.csv has a row per member and view, population.csv a row per view; the columns are the tags of TensorBoard. A
column that comes later (learning statistics exist from the first update on) stands at the end, empty before.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbt_rl.display.scalars import member_scalars
from pbt_rl.display.view import RunView
from pbt_rl.record.append import AppendFile, Outage
from pbt_rl.trackers.base import TrackedRun, tracked_scalars

Row = Mapping[str, object]
TIME = "seconds"
"""The column by which rows of lost training are cut off."""


class Table:
    """A CSV file that grows by rows, and by columns."""

    def __init__(self, path: Path, until_seconds: float) -> None:
        """Continue the file if there is one, without its rows after `until_seconds`. Raises OSError."""
        self._path = path
        self._columns: list[str] = []
        self._file: AppendFile | None = None
        rows = [] if path.is_symlink() or not path.exists() else self._read()
        self._write_anew([row for row in rows if _time(row) <= until_seconds])

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows. Raises OSError; then none of them is in the file."""
        assert self._file is not None
        names = dict.fromkeys(name for row in rows for name in row)
        if not names.keys() <= set(self._columns):
            self._write_anew([*self._read(), *rows])
        else:
            self._file.append(self._text(rows))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[Row]:
        with self._path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _write_anew(self, rows: Sequence[Row]) -> None:
        """Write the file anew, with all columns that the rows have."""
        columns = list(dict.fromkeys([*self._columns, *(name for row in rows for name in row)]))
        draft = self._path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        file = AppendFile(draft)
        before, self._columns = self._columns, columns
        try:
            file.append(self._text(rows, header=bool(columns)))
            draft.replace(self._path)
        except OSError:
            self._columns = before
            file.close()
            draft.unlink(missing_ok=True)
            raise
        file.close()
        self.close()
        self._file = AppendFile(self._path)

    def _text(self, rows: Sequence[Row], *, header: bool = False) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()


class CsvTracker:
    """Writes the two tables. Views that cannot be written, as the disk is full, are left out."""

    def __init__(self, run: TrackedRun) -> None:
        run.folder.mkdir(exist_ok=True)
        self._members = Table(run.folder / "members.csv", run.seconds)
        self._population = Table(run.folder / "population.csv", run.seconds)
        self._outage = Outage("tables", print)

    def show(self, view: RunView) -> None:
        """Append a row per member, and one for the population."""
        if not self._outage.due():
            return
        time = {TIME: round(view.seconds, 3)}
        members: list[Row] = [
            {**time, "member": m.member, "frames": m.frames, "status": m.status, **member_scalars(m)}
            for m in view.members
        ]
        try:
            self._members.add(members)
            self._population.add([{**time, "frames": view.frames, **tracked_scalars(view)}])
        except OSError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    def close(self, ended: str) -> None:  # noqa: ARG002 - the protocol's signature
        """Close the files."""
        self._members.close()
        self._population.close()


def _time(row: Row) -> float:
    try:
        return float(str(row.get(TIME)))
    except ValueError:
        return float("inf")  # a torn row
