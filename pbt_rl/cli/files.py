"""Options in files and mappings.

Files are TOML, YAML or JSON, also the config.json of another run, nested as the config: groups are tables.

Reading a file executes nothing of it. Modules that it names (an environment, an encoder, a rule of one's own) are
imported when it is trained with, as if they had been typed.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import Any, Literal, get_args

import yaml

from pbt_rl.cli.parse import reader, unknown, value_of
from pbt_rl.config import Config, hypers_of
from pbt_rl.envs.values import typed
from pbt_rl.errors import ConfigError
from pbt_rl.options import Option, as_type, changed, path_given, table
from pbt_rl.run.recipes import PAIRS

Format = Literal["json", "toml", "yaml"]


def text_of(path: Path) -> str:
    """Return a file's text, with or without a byte order mark. Raises OSError, or ValueError for another encoding."""
    content = path.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig")


def _unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a mapping. Raises ValueError for a key that is given twice: one of its values would be lost."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def json_of(text: str) -> Any:
    """Read JSON. Raises ValueError, also for a key that is given twice."""
    return json.loads(text, object_pairs_hook=_unique)


class _Yaml(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML in which a key stands once, 1e6 is a number and 1:30 a text, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        _unique((self.construct_object(key, deep=True), None) for key in keys)
        return found


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_CLOCK = re.compile(r"\d+(:\d+)+(\.\d*)?$")  # YAML 1.1 reads 1:30 as 90, whatever the unit is
_Yaml.yaml_implicit_resolvers = {
    first: [("tag:yaml.org,2002:str", _CLOCK), *others]
    for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))

READERS: Mapping[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": json_of,
    ".yaml": lambda text: yaml.load(text, _Yaml),  # noqa: S506 - a SafeLoader
    ".yml": lambda text: yaml.load(text, _Yaml),  # noqa: S506
}


def read_file(path: Path) -> dict[str, Any]:
    """Return what stands in a file of options. Raises ConfigError."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise _refusal(path, f"its name must end in {', '.join(READERS)}")
    try:
        content = reader(text_of(path))
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
        return checked(content, algo=algo)
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


def file_of_options(
    arguments: Sequence[str], recipe: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, dict[str, Any]]:
    """Return the algorithm of a run, and dotted name of an option -> value, of the file that `--config` names.

    The file lies over the recipe and below what is typed. Raises ConfigError.
    """
    given = value_of(arguments, "--config")
    path = None if given is None else path_given("--config", given)
    named = None if path is None else read_file(path).get("algo")
    algos = value_of(arguments, "--algo"), named, recipe.get("algo")
    algo = str(next(filter(None, algos), Config.algo))
    return algo, {} if path is None else read_config(path, algo)


# -- options by dotted name ---------------------------------------------------------------------------------


def dotted(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options of nested mappings and groups by dotted name, those of PAIRS as they are typed."""
    found: list[tuple[str, Any]] = []
    for name, given in options.items():
        value = _group(given)
        if str(name).replace("-", "_") in PAIRS and isinstance(value, Mapping):
            found.append((name, [f"{key}={_typed(word)}" for key, word in value.items()]))
        elif isinstance(value, Mapping):
            found += [(f"{name}.{inner}", v) for inner, v in value.items()]
        elif is_dataclass(value):  # all of a group of options, such as learner=LearnerConfig(...)
            found += [(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        else:
            found.append((name, value))
    return found


def _group(value: Any) -> Any:
    """Return a group of options of argparse, pydantic or ml_collections as a mapping, and anything else as it is."""
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    for method in ("model_dump", "to_dict"):
        if not isinstance(value, type | Mapping) and callable(getattr(value, method, None)):
            return getattr(value, method)()
    return value


def _typed(word: Any) -> str:
    """Return a keyword's value as `--env-option` is typed: a text stays one, though it looks like a number.

    Raises ConfigError for what JSON cannot hold.
    """
    try:
        return word if isinstance(word, str) and typed(word) == word else json.dumps(word, default=_plain)
    except (TypeError, ValueError):
        raise ConfigError(
            f"env_option cannot hold {word!r:.200}: give numbers, texts, truths, lists or dicts"
        ) from None


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy, paths, enums, and collections of other libraries as JSON has them."""
    match value:
        case Enum():
            return value.value
        case os.PathLike():
            return os.fspath(value)
        case Mapping():
            return dict(value)
        case AbstractSet():
            return sorted(value)
        case bytes() | bytearray() | memoryview():
            raise TypeError(value)
        case Sequence():
            return list(value)
    if not hasattr(value, "tolist"):
        raise TypeError(value)
    return value.tolist()


def checked(options: Mapping[str, Any], *, algo: str = "") -> dict[str, Any]:
    """Return dotted name -> value in the type of its option of Config. Names may have `-` for `_`.

    Numbers may be texts, as on the command line. algo: the algorithm whose hypers there are; "": the one that the
    options name. Raises ConfigError for a name that is no option, and for a value of another type.
    """
    chosen = algo or options.get("algo", Config.algo)
    hypers = hypers_of(chosen if isinstance(chosen, str) else Config.algo)
    known = {option.field: option for option in table(Config, hypers=hypers).values()}
    values = {}
    for given, value in dotted(options):
        name = str(given).replace("-", "_")
        if any(key.startswith(f"{name}.") for key in known):
            raise ConfigError(f"{name}={value!r} cannot be used: give its options by name")
        if name not in known:
            spelt = [option.name for option in known.values()]
            line = unknown(str(given), spelt, sign="").replace("-", "_")
            raise ConfigError(f"{line}; `pbt-rl train --help-all` lists them")
        if name in values:
            raise ConfigError(f"{name} is given twice")
        hint = known[name].bare
        try:
            values[name] = as_type(hint, _number(known[name], value))
        except ValueError as kind:
            raise ConfigError(f"{name}={value!r} cannot be used: give {kind}") from None
    return values


def _number(option: Option, value: Any) -> Any:
    """Read a text as a number where one is wanted. YAML reads 1M as a text, and off as false."""
    hint, metadata = option.bare, option.metadata
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    if "off" in metadata and (value is False or value == metadata["off"]):
        return metadata["at_most"]
    if hint not in (int, float) or not isinstance(value, str):
        return value
    return reader(option.name, hint)(value)


# -- tables of start values ---------------------------------------------------------------------------------

OPTION = "--pbt.start-values"
MEMBER = "member"
MOST_MEMBERS = 100_000
"""As of --num-policies."""


def with_start_values(config: Config) -> Config:
    """Return the config with the rows of the table that `--pbt.start-values` names. Raises ConfigError."""
    given = config.pbt.start_values
    if len(given) != 1 or "=" in given[0] or not given[0]:
        return config
    return changed(config, {"pbt.start_values": read_table(path_given(OPTION, given[0]))})


def read_table(path: Path) -> tuple[str, ...]:
    """Return one text per member, such as `learning_rate=1e-3,gamma=0.99`. Raises ConfigError.

    CSV, a header with names of values and a line per member, or JSON, a list with an object per member. Cells of a CSV
    may be separated by `;` or tabs, as spreadsheets write them, then also with decimal commas. A column (or key)
    `member` holds ids, if the rows are not those of members 0, 1, ... An empty cell leaves the value out.
    """
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
        if torn := next((cell for cell in cells.values() if "," in cell), ""):
            raise _no_table(path, f"its cell {torn!r:.100} has a comma: write numbers as 0.001")
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
        raise ValueError(f"column {twice.pop()!r} is in it twice")
    for name in ("", "Unnamed: 0"):  # the index of a table of pandas
        column = [row.get(name, "").strip() for row in rows]
        if any(column) and column != [str(number) for number in range(len(rows))]:
            raise ValueError(f"its column {names.index(name) + 1} has no name")
    named: list[Mapping[Any, Any]]
    named = [{n: cell for n, cell in row.items() if n not in ("", "Unnamed: 0")} for row in rows]
    if mark == ",":
        return named
    return [{n: _DECIMAL.sub(r"\1.\2", cell.strip()) for n, cell in row.items()} for row in named]


_DECIMAL = re.compile(r"^([-+]?\d*),(\d+([eE][-+]?\d+)?)$")
"""A number with a decimal comma, in a table whose cells are separated by another mark."""


def _member(path: Path, text: object) -> int:
    digits = str(text).strip()
    if not digits.isdecimal() or len(digits) > 9 or int(digits) >= MOST_MEMBERS:
        raise _no_table(path, f"{MEMBER} {text!r:.100} is no id; give 0, 1, ...")
    return int(digits)


def _no_table(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"{OPTION} {path} cannot be used: {remedy}")
