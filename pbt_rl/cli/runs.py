"""Command `pbt-rl runs`: print a table of the runs in a folder."""

from __future__ import annotations

import io
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pbt_rl.display.ranking import GAP, UNKNOWN, count, number
from pbt_rl.display.terminal import age
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import option
from pbt_rl.options.words import parse
from pbt_rl.record.run_lock import REPLACED
from pbt_rl.report.listing import RunRow, list_runs

HEADER = ("name", "env", "members", "frames", "best", "age", "state")
FINAL = "final"
"""Column after `best`. Shown if any run has a final evaluation."""
CUT = ("name", "env", "state")
"""Columns that are truncated in a narrow terminal. The longest column is truncated first."""
MOST_WIDTH = 100_000


@dataclass(frozen=True)
class RunsCommand:
    """List the runs in a folder, newest first.

    frames: frames of the least trained member. best: training objective of the best member. final: mean of the best
    member in the final evaluation. state: running (a process writes the run); ended (the budget is spent, the objective
    is reached, or all members are done); resumable (with checkpoints); interrupted or failed (without checkpoints); or
    broken, with the reason.
    """

    folder: Path = option(Path("runs"), positional=True)
    """Parent folder of the runs."""


def run(arguments: list[str]) -> int:
    """Run `pbt-rl runs`: print the table."""
    command = parse(RunsCommand, "pbt-rl runs", arguments)
    try:
        rows = list_runs(command.folder)
        # Old runs whose replacement has no results yet, because it is new or was killed.
        aside = sorted(path for path in command.folder.glob(f".*.{REPLACED}.*") if path.is_dir())
    except OSError as error:
        raise ConfigError(f"{command.folder} cannot be listed: {error.strerror or error}") from error
    if not rows:
        print(f"no runs in {command.folder}")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(table(rows, time.time(), width)))
    for path in aside:
        print(
            f"{path} contains a run that is being replaced. If its replacement was interrupted, rename or delete this "
            "folder"
        )
    return 0


def table(rows: list[RunRow], now: float, width: int | None) -> list[str]:
    """Format the header and one line per run. Lines are truncated to `width` characters, if `width` is not None.

    now: present time in seconds since the epoch.
    """
    drawn = Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, header_style="")
    judged = any(row.final is not None for row in rows)
    for name in (*HEADER[:5], *((FINAL,) if judged else ()), *HEADER[5:]):
        text = name in CUT
        drawn.add_column(name, justify="left" if text else "right", no_wrap=not text)
    for row in rows:
        drawn.add_row(
            *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in _cells(row, now, judged=judged))
        )
    console = Console(file=io.StringIO(), width=width or MOST_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(drawn)
    return [line.rstrip() for line in capture.get().splitlines()]


def _cells(row: RunRow, now: float, *, judged: bool) -> tuple[str, ...]:
    return (
        _printable(row.name),
        UNKNOWN if row.env is None else _printable(row.env),
        UNKNOWN if row.members is None else str(row.members),
        UNKNOWN if row.frames is None else count(row.frames),
        number(row.best),
        *((number(row.final),) if judged else ()),
        age(now - row.changed),
        _printable(row.state),
    )


def _printable(text: str) -> str:
    """Replace control characters by `?`, because control characters could move the cursor or change colours."""
    return "".join(c if c.isprintable() else "?" for c in text)
