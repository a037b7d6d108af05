"""Options as people give them.

Names: those of other trainers, shortened ones, misspelt ones. Values: numbers such as 1e6, 1M, 10_000_000 or 2.5k;
mappings, by dotted name, checked against the types of their options.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args

from pbt_rl.config import Config, hypers_of
from pbt_rl.errors import ConfigError
from pbt_rl.extras import offered
from pbt_rl.options import MOST, as_type, table
from pbt_rl.recipes import PAIRS

ELSEWHERE: dict[str, tuple[str, str]] = {
    name: (option, remark)
    for lines in offered("pbt_rl", "OTHER_NAMES")
    for option, remark, names in lines
    for name in names.split()
}
"""Name elsewhere -> (option of `pbt-rl train`, remark)."""
NO_OPTION = {name: text for lines in offered("pbt_rl", "NO_OPTION") for name, text in lines.items()}
"""Name elsewhere -> what is done here instead of an option."""


def spelt(name: str) -> str:
    """Return a name as options are spelt: small letters, `-` between words, no dashes before it."""
    return name.lstrip("-").replace("_", "-").lower()


def unknown(name: str, known: Collection[str], *, sign: str = "--") -> str:
    """Return one line about a name that is none of the known options (dotted, with `-`), with the right one if it
    is recognised.
    """
    typed = spelt(name)
    if typed in NO_OPTION:
        return f"{name} is no option: {NO_OPTION[typed]}"
    last = typed.rpartition(".")[2]
    option, remark = ELSEWHERE.get(typed) or ELSEWHERE.get(last, ("", ""))
    if option in known:
        return f"{name} is no option: write {sign}{option}{f'; {remark}' if remark else ''}"
    same = [k for k in known if k.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(typed, known, n=3, cutoff=0.75)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(last, leaves, n=3, cutoff=0.75)]
    if close:
        return f"{name} is no option: did you mean {' or '.join(sign + k for k in sorted(close))}?"
    return f"{name} is no option"


def dotted(options: Mapping[str, Any], *, texts: bool = False) -> list[tuple[str, Any]]:
    """Return the options of nested mappings and groups by dotted name, those of PAIRS as they are typed."""
    found: list[tuple[str, Any]] = []
    for name, value in options.items():
        if str(name).replace("-", "_") in PAIRS and isinstance(value, Mapping):
            found.append((name, [f"{key}={_typed(word, texts=texts)}" for key, word in value.items()]))
        elif isinstance(value, Mapping):
            found += [(f"{name}.{inner}", v) for inner, v in value.items()]
        elif is_dataclass(value):  # all of a group of options, such as learner=LearnerConfig(...)
            found += [(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        else:
            found.append((name, value))
    return found


def _typed(word: Any, *, texts: bool) -> str:
    """Return a keyword's value as `--env-option` is typed. Raises ConfigError for what JSON cannot hold."""
    try:
        return word if isinstance(word, str) and (texts or not _is_json(word)) else json.dumps(word)
    except (TypeError, ValueError):
        raise ConfigError(
            f"env_option cannot hold {word!r:.200}: give numbers, texts, truths, lists or dicts"
        ) from None


def _is_json(word: str) -> bool:
    """Whether `--env-option` would read a text as something else."""
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def checked(options: Mapping[str, Any], *, texts: bool = False, algo: str = "") -> dict[str, Any]:
    """Return dotted name -> value in the type of its option of Config. Names may have `-` for `_`.

    texts: numbers may be texts, as on the command line. algo: the algorithm whose hypers there are; "": the one that
    the options name. Raises ConfigError for a name that is no option, and for a value of another type.
    """
    chosen = algo or options.get("algo", Config.algo)
    hypers = hypers_of(chosen if isinstance(chosen, str) else Config.algo)
    known = {option.field: option for option in table(Config, hypers=hypers).values()}
    values = {}
    for given, value in dotted(options, texts=texts):
        name = str(given).replace("-", "_")
        if any(key.startswith(f"{name}.") for key in known):
            raise ConfigError(f"{name}={value!r} cannot be used: give its options by name")
        if name not in known:
            spelt = [option.name for option in known.values()]
            line = unknown(str(given), spelt, sign="").replace("-", "_")
            raise ConfigError(f"{line}; `pbt-rl train --help-all` lists them")
        hint = known[name].bare
        try:
            values[name] = as_type(hint, _number(hint, known[name].metadata, value) if texts else value)
        except ValueError as kind:
            raise ConfigError(f"{name}={value!r} cannot be used: give {kind}") from None
    return values


def _number(hint: Any, metadata: Mapping[str, Any], value: Any) -> Any:
    """Read a text as a number where one is wanted. YAML reads 1e6 as a text, and off as false."""
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    if "off" in metadata and (value is False or value == metadata["off"]):
        return metadata["at_most"]
    if hint not in (int, float) or not isinstance(value, str):
        return value
    return whole(value) if hint is int else number(value)


WHOLE = "a whole number, such as 5000000, 5e6 or 5M"
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def number(text: str) -> float:
    """Return the number. Raises ValueError whose text is the remedy."""
    digits = text.strip()
    unit = UNITS.get(digits[-1:].lower(), 1.0)
    try:
        value = float(digits[:-1] if unit != 1 else digits)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(value * unit):
        raise ValueError("a finite number")
    return value * unit


def whole(text: str) -> int:
    """Return the whole number. Raises ValueError whose text is the remedy."""
    try:
        value = int(text)  # exact, also beyond the 53 bits of a float
    except ValueError:
        try:
            inexact = number(text)
        except ValueError:
            raise ValueError(WHOLE) from None
        if not inexact.is_integer():
            raise ValueError(WHOLE) from None
        value = int(inexact)
    if abs(value) >= MOST:
        raise ValueError("a whole number of at most 18 digits")
    return value
