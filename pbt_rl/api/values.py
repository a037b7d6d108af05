"""Options as mappings, by dotted name, checked against the types of their options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args

from pbt_rl.cli.parse import reader, unknown
from pbt_rl.config import Config, hypers_of
from pbt_rl.envs.values import typed
from pbt_rl.errors import ConfigError
from pbt_rl.options import Option, as_type, table
from pbt_rl.run.recipes import PAIRS


def dotted(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options of nested mappings and groups by dotted name, those of PAIRS as they are typed."""
    found: list[tuple[str, Any]] = []
    for name, value in options.items():
        if str(name).replace("-", "_") in PAIRS and isinstance(value, Mapping):
            found.append((name, [f"{key}={_typed(word)}" for key, word in value.items()]))
        elif isinstance(value, Mapping):
            found += [(f"{name}.{inner}", v) for inner, v in value.items()]
        elif is_dataclass(value):  # all of a group of options, such as learner=LearnerConfig(...)
            found += [(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        else:
            found.append((name, value))
    return found


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
    """Return a number or an array of numpy as JSON has it."""
    if not hasattr(value, "tolist"):
        raise TypeError(value)
    return value.tolist()


def checked(options: Mapping[str, Any], *, texts: bool = False, algo: str = "") -> dict[str, Any]:
    """Return dotted name -> value in the type of its option of Config. Names may have `-` for `_`.

    texts: numbers may be texts, as on the command line. algo: the algorithm whose hypers there are; "": the one that
    the options name. Raises ConfigError for a name that is no option, and for a value of another type.
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
            values[name] = as_type(hint, _number(known[name], value) if texts else value)
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
