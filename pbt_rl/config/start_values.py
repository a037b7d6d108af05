"""Table of the start values of members: `--pbt.start-values FILE.csv`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import changed
from pbt_rl.options.files import json_of, text_of
from pbt_rl.options.values import path_given

OPTION = "--pbt.start-values"
MEMBER = "member"
MOST_MEMBERS = 100_000
"""Limit of --num-policies."""


def with_start_values(config: Config) -> Config:
    """Replace a file name in `--pbt.start-values` with the rows of the file.

    Raises ConfigError if the file cannot be used.
    If the option contains values instead of one file name, the config is returned unchanged.
    """
    given = config.pbt.start_values
    if len(given) != 1 or "=" in given[0] or not given[0]:
        return config
    return changed(config, {"pbt.start_values": read_table(path_given(OPTION, given[0]))})


def read_table(path: Path) -> tuple[str, ...]:
    """Return one text per member: `learning_rate=1e-3,gamma=0.99`, or "" for a member without values in the table.

    Raises ConfigError if the file cannot be read or is not such a table.

    CSV: a header of names, and one line per member. The separator is `,`, `;` or a tab. With `;` or a tab, numbers may
    have a decimal comma, because spreadsheets write decimal commas. JSON: a list with one object per member.

    The column (or key) `member` contains the member's id. Without this column, rows are numbered from 0. An empty cell
    sets no value.
    """
    try:
        rows = _rows(path)
    except OSError as error:
        raise _no_table(path, f"{error.strerror}; give FILE.csv, FILE.json or NAME=VALUE,...") from error
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise _no_table(path, f"it is not a table: {error}") from error
    texts: dict[int, str] = {}
    for number, row in enumerate(rows):
        member = _member(path, row.get(MEMBER, number))
        if member in texts:
            raise _no_table(path, f"it lists member {member} twice")
        cells = {str(name).strip(): str(cell).strip() for name, cell in row.items() if name != MEMBER}
        if torn := next((cell for cell in cells.values() if "," in cell), ""):
            raise _no_table(path, f"its cell {torn!r:.100} contains a comma: write numbers as 0.001")
        texts[member] = ",".join(f"{name}={cell}" for name, cell in cells.items() if cell)
    if not texts:
        raise _no_table(path, "it has no rows")
    return tuple(texts.get(member, "") for member in range(max(texts) + 1))


def _rows(path: Path) -> list[Mapping[Any, Any]]:
    if path.suffix == ".json":
        rows = json_of(text_of(path))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("give a list with an object for each member")
        return [{name: "" if cell is None else cell for name, cell in row.items()} for row in rows]
    if path.suffix not in (".csv", ".tsv"):
        raise ValueError("give FILE.csv, FILE.json or NAME=VALUE,...")
    text = text_of(path)
    mark = next((mark for mark in "\t;" if mark in text.partition("\n")[0]), ",")
    table = csv.DictReader(io.StringIO(text), strict=True, delimiter=mark)
    names = [name.strip() for name in table.fieldnames or ()]
    table.fieldnames = names
    rows = list(table)
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a line has more or fewer cells than the header")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"it has column {twice.pop()!r} twice")
    for name in ("", "Unnamed: 0"):  # the index column that pandas writes
        column = [row.get(name, "").strip() for row in rows]
        if any(column) and column != [str(number) for number in range(len(rows))]:
            raise ValueError(f"its column {names.index(name) + 1} has no name")
    named: list[Mapping[Any, Any]]
    named = [{n: cell for n, cell in row.items() if n not in ("", "Unnamed: 0")} for row in rows]
    if mark == ",":
        return named
    return [{n: _DECIMAL.sub(r"\1.\2", cell.strip()) for n, cell in row.items()} for row in named]


_DECIMAL = re.compile(r"^([-+]?\d*),(\d+([eE][-+]?\d+)?)$")
"""Number with a decimal comma."""


def _member(path: Path, text: object) -> int:
    digits = str(text).strip()
    if not digits.isdecimal() or len(digits) > 9 or int(digits) >= MOST_MEMBERS:
        raise _no_table(path, f"{MEMBER} {text!r:.100} is not a member id; give 0, 1, ...")
    return int(digits)


def _no_table(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"{OPTION} {path} cannot be used: {remedy}")
