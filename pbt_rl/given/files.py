"""Files that users write: options, and tables of start values.

Options are TOML, YAML or JSON, also the config.json of another run. Nested as the config: groups are tables.
Reading a file executes nothing of it. Modules that it names (an environment, an encoder, a rule of one's own) are
imported when it is trained with, as if they had been typed.

Start values (`--pbt.start-values`) are CSV, a header with names of values and a line per member, or JSON, a list with
an object per member. A column (or key) `member` holds ids, if the rows are not those of members 0, 1, ... An empty cell
leaves the value out.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.given.values import checked
from pbt_rl.options import changed

Format = Literal["json", "toml", "yaml"]
READERS: Mapping[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": json.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
}


def read_file(path: Path) -> dict[str, Any]:
    """Return what stands in a file of options. Raises ConfigError."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise _refusal(path, f"its name must end in {', '.join(READERS)}")
    try:
        content = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from error
    except (ValueError, yaml.YAMLError) as error:
        raise _refusal(path, f"it is no {path.suffix[1:].upper()}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise _refusal(path, "it holds no options; write NAME and VALUE pairs, groups as tables")
    return {str(name): value for name, value in content.items()}


def read_config(path: Path, algo: str = "") -> dict[str, Any]:
    """Return dotted name of an option -> value, of those in the file. algo: as for `checked`. Raises ConfigError."""
    content = read_file(path)
    try:
        return checked(content, texts=True, algo=algo)
    except ConfigError as error:
        raise _refusal(path, str(error)) from error


def written(config: Mapping[str, Any], form: Format) -> str:
    """Return a config (`record.folder.to_json`) as a file that `read_config` reads. None is left out."""
    content = _given(config)
    if form == "json":
        return json.dumps(content, indent=2) + "\n"
    if form == "yaml":
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        return text
    groups = {name: value for name, value in content.items() if isinstance(value, dict)}
    lines = _toml({name: value for name, value in content.items() if name not in groups})
    for name, group in groups.items():
        lines += ["", f"[{name}]", *_toml(group)]
    return "\n".join(lines) + "\n"


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain types without None."""
    plain = {
        name: _given(value)
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in config.items()
    }
    return {name: value for name, value in plain.items() if value is not None}


def _toml(options: Mapping[str, Any]) -> list[str]:
    """Write options that are numbers, truths, texts or lists of these: for them JSON is TOML."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), chr(92) + 'u007f')}"
        for name, value in options.items()
    ]


def _refusal(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"--config {path} cannot be used: {remedy}")


OPTION = "--pbt.start-values"
MEMBER = "member"
MOST_MEMBERS = 100_000
"""As of --num-policies."""


def with_start_values(config: Config) -> Config:
    """Return the config with the rows of the table that `--pbt.start-values` names. Raises ConfigError."""
    given: tuple[str, ...] = getattr(config.pbt, "start_values", ())
    if len(given) != 1 or "=" in given[0] or not given[0]:
        return config
    return changed(config, {"pbt.start_values": read_table(Path(given[0]))})


def read_table(path: Path) -> tuple[str, ...]:
    """Return one text per member, such as `learning_rate=1e-3,gamma=0.99`. Raises ConfigError."""
    try:
        rows = _rows(path)
    except OSError as error:
        raise _no_table(path, f"{error.strerror}; give FILE.csv, FILE.json or NAME=VALUE,...") from error
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise _no_table(path, f"it is no table: {error}") from error
    texts: dict[int, str] = {}
    for number, row in enumerate(rows):
        member = _member(path, row.get(MEMBER, number))
        if member in texts:
            raise _no_table(path, f"member {member} is in it twice")
        cells = {str(name).strip(): str(cell).strip() for name, cell in row.items() if name != MEMBER}
        texts[member] = ",".join(f"{name}={cell}" for name, cell in cells.items() if cell)
    if not texts:
        raise _no_table(path, "it has no rows")
    return tuple(texts.get(member, "") for member in range(max(texts) + 1))


def _rows(path: Path) -> list[Mapping[Any, Any]]:
    if path.suffix == ".json":
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("give a list with an object for each member")
        return [{name: "" if cell is None else cell for name, cell in row.items()} for row in rows]
    if path.suffix != ".csv":
        raise ValueError("give FILE.csv, FILE.json or NAME=VALUE,...")
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True))
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a line has more or fewer cells than the header")
    return rows


def _member(path: Path, text: object) -> int:
    digits = str(text).strip()
    if not digits.isdecimal() or len(digits) > 9 or int(digits) >= MOST_MEMBERS:
        raise _no_table(path, f"{MEMBER} {text!r:.100} is no id; give 0, 1, ...")
    return int(digits)


def _no_table(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"{OPTION} {path} cannot be used: {remedy}")
