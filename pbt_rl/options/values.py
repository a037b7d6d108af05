"""Values of options: conversion from texts and Python objects, and checks against the option's metadata.

1e6, 1M, 10_000_000, 2.5k   numbers
90s, 30m, 1h30m, 1:30:00    times, converted to the unit of the option
10GB                        gigabytes

Conversions of invalid values raise a `ValueError` with a description of allowed values. Callers add the option's name
and raise a `ConfigError`. `free_value` accepts every text.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import Option, names_object, table, values_of
from pbt_rl.options.names import meant

MOST = 10**18
"""Limit of whole numbers. It exceeds the frames of any run and is within int64."""


# -- from texts ---------------------------------------------------------------------------------------------

WHOLE = "a whole number, such as 5000000, 5e6 or 5M"
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def number(text: str) -> float:
    """Convert a text such as 1e6 or 2.5k (suffixes k, M, G, B) to a number.

    Raises ValueError with a description of allowed values.
    """
    digits = text.strip()
    unit = UNITS.get(digits[-1:].lower(), 1.0)
    try:
        value = float(digits[:-1] if unit != 1 else digits)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(value * unit):
        raise ValueError("a finite number")
    return value * unit


TIMES = {"seconds": 1, "hours": 3600}
"""Last word of a time option's name -> unit of the option in seconds."""
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(d|h|min|m|sec|s)\s*")


def duration(text: str, unit: float) -> float:
    """Convert a time (1800, 90s, 30m, 1h30m, 1:30:00) to the unit of an option.

    A number without a suffix already has the unit of the option. Raises ValueError with a description of allowed values
    for any other text, such as 3k or 2M.

    unit: unit of the option, in seconds.
    """
    digits, parts = text.strip(), _PART.findall(text)
    fields = digits.split(":")
    if parts and not _PART.sub("", digits):
        of_letter = {"d": 86400, "h": 3600, "m": 60, "s": 1}
        return sum((float(amount) * of_letter[letter[0]] for amount, letter in parts), 0.0) / unit
    if len(fields) in (2, 3) and all(field.replace(".", "", 1).isdecimal() for field in fields):
        return sum((float(field) * 60.0**place for place, field in enumerate(reversed(fields))), 0.0) / unit
    try:
        return number(str(float(digits)))
    except ValueError:
        raise ValueError("a time, such as 1800, 90s, 30m, 1.5h or 1:30:00") from None


def gigabytes(text: str) -> float:
    """Convert gigabytes (10, 10GB) to a number. Raises ValueError with a description of allowed values."""
    digits = re.sub(r"\s*gi?b?$", "", text.strip(), flags=re.IGNORECASE)
    if digits[-1:].isalpha():
        raise ValueError("gigabytes, such as 10")
    return number(digits)


def reader(name: str, hint: Any) -> Callable[[str], Any]:
    """Return the function that converts a text to the type of an option.

    The returned function raises ValueError for an invalid text.

    name: dotted name of the option. hint: type of one value.
    """
    unit = next((seconds for word, seconds in TIMES.items() if name.endswith(word)), None)
    if unit is not None and hint is float:
        return lambda text: duration(text, unit)
    if name.endswith("-gb"):
        return gigabytes
    readers: dict[Any, Callable[[str], Any]] = {int: whole, float: number, Path: local_path}
    return readers.get(hint, str)


def whole(text: str) -> int:
    """Convert a text to a whole number. Raises ValueError with a description of allowed values."""
    try:
        value = int(text)  # exact, unlike a float of 53 bits
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


_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("none", "null")),
}
_THOUSANDS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}


def free_value(text: str) -> Any:
    """Convert a text of unknown type: JSON, a Python literal, a number such as 5M, or a word such as yes, off or none.

    Any other text is returned unchanged. A text in quotes, such as "5M", is converted to a string.
    """
    bare = text.strip()
    if bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, KeyError):
        number = float(bare[:-1]) * _THOUSANDS[bare[-1:]]
        return int(number) if number.is_integer() else number
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        value = ast.literal_eval(bare)
        if isinstance(value, int | float | str | list | dict) or (
            isinstance(value, tuple) and bare[0] == "("
        ):
            return value
    return text


def local_path(given: str | os.PathLike[str]) -> Path:
    """Expand `~` and `$NAME` in a path. The shell does not do this for paths in files, quotes and Python code.

    Raises ValueError, with a description of allowed values, for an empty text, a URL, a Windows path, an unset $NAME or
    an unknown user after `~`.
    """
    text = os.path.expanduser(os.path.expandvars(given))  # noqa: PTH111 - a text, not yet a path
    if re.match(r"$|~|\\\\|[A-Za-z][\w+.-]*:[/\\]", text) or re.search(r"\0|\$[\w{(]|%\w+%", text):
        raise ValueError("a local path, not a URL, in which each $NAME is set")
    return Path(text)


# -- from values of Python ----------------------------------------------------------------------------------


def as_type(hint: Any, value: Any) -> Any:
    """Convert a Python object to the type of an option: a list to a tuple, a text to a path, an int to a float.

    If the type is a tuple of numbers, a single number becomes a tuple. If the type is int, a whole float becomes an
    int. NumPy scalars, 0-d arrays, fractions and decimals become Python numbers.

    Raises ValueError with a description of the expected type.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, Fraction | Decimal):
        value = float(value)
    value = value.value if isinstance(value, Enum) else value
    if origin is UnionType:  # X | None
        return None if value is None else as_type(arguments[0], value)
    if origin is Literal:
        return _checked(value, value in arguments, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        value = value.tolist() if hasattr(value, "tolist") else value  # numpy's
        if isinstance(value, set | frozenset):
            value = sorted(value, key=str)
        if arguments[0] in (int, float) and isinstance(value, int | float):
            value = (value,)
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            raise ValueError(
                'several texts, such as ["a", "b"]'
                if arguments[0] is str
                else "several numbers, such as [1.2, 0.8]"
            )
        return tuple(as_type(arguments[0], x) for x in value)
    if hint is Path:
        return local_path(_checked(value, isinstance(value, str | os.PathLike), "a path"))
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(value, number and abs(value) <= sys.float_info.max, "a finite number"))
    if hint is int:
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        whole = isinstance(value, int) and not isinstance(value, bool)
        return _checked(value, whole and abs(value) < MOST, "a whole number of at most 18 digits")
    if is_dataclass(hint):
        raise ValueError("the options of this group by name")
    if hint is bool:
        return _checked(value, isinstance(value, bool), "true or false")
    assert hint is str, hint
    value = str(value) if isinstance(value, Path) else value
    return _checked(value, isinstance(value, str) and all(map(_writable, value)), "a text that can be shown")


def _writable(character: str) -> bool:
    """True if a terminal and a UTF-8 file can contain a character.

    False for surrogates, and for control characters except newline and tab.
    """
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")


def _checked(value: Any, fits: bool, kind: str) -> Any:
    if not fits:
        raise ValueError(kind)
    return value


# -- allowed values -----------------------------------------------------------------------------------------

_SHOWN = 200
"""Maximum characters of a value in a message."""


def validate(options: Any) -> None:
    """Check the value of each option in an object of a dataclass of options.

    Raises ConfigError for the first invalid value, with the option, the value and the allowed values.
    """
    known = table(options)
    for name, value in values_of(options).items():
        metadata = known[name].metadata
        if not allows(metadata, value):
            hint = _meant(name, metadata, value, known) if "choices" in metadata else ""
            raise ConfigError(
                f"--{name} {_text(value)} cannot be used: {hint}give {allowed(metadata, value)}"
            )


def _meant(name: str, metadata: Mapping[str, Any], value: str, known: Mapping[str, Option]) -> str:
    """Format a hint for a value that is not among the choices of an option.

    The hint is another option with this choice, or a similar choice. Return "" if there is neither.
    """
    elsewhere = [
        other
        for other, one in known.items()
        if "choices" in one.metadata and value in one.metadata["choices"]()
    ]
    if elsewhere:
        return f"write --{elsewhere[0]} {value}; here "
    return meant(name, value, metadata["choices"]())


def allows(metadata: Mapping[str, Any], value: Any) -> bool:
    """True if the metadata of an option allows a value. None is always allowed."""
    if value is None:
        return True
    if "choices" in metadata:
        return value in metadata["choices"]() or ("custom" in metadata and names_object(value))
    if "test" in metadata:
        return bool(metadata["test"](value))
    if not _BOUNDS.keys() & metadata.keys():
        return True
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers:
        return "empty" in metadata
    if "distinct" in metadata and len(set(numbers)) < len(numbers):
        return False
    # NaN violates each bound, because comparisons with NaN are false.
    return all(
        within(number, metadata[bound])
        for bound, within in _BOUNDS.items()
        if bound in metadata
        for number in numbers
    )


def displayed(metadata: Mapping[str, Any], value: object) -> str:
    """Format a value of an option: 0 as its special meaning, integers with commas, tuples without brackets."""
    if value == 0 and "zero" in metadata:
        return str(metadata["zero"])
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def allowed(metadata: Mapping[str, Any], value: Any = None) -> str:
    """Describe the allowed values of an option, such as "0 to 1" or "0 (planned) or more".

    Return "" if the metadata allows every value.

    value: any value of the option. For a tuple, the description is about each number in the tuple.
    """
    if "choices" in metadata:
        names: list[str] = [*metadata["choices"](), *([metadata["custom"]] if "custom" in metadata else [])]
        return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if "remedy" in metadata:
        return str(metadata["remedy"])
    text = _range(metadata)
    if text and isinstance(value, tuple):
        return f"one or more{' different' if 'distinct' in metadata else ''} numbers, each {text}"
    return text


_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "at_least": lambda number, bound: number >= bound,
    "above": lambda number, bound: number > bound,
    "at_most": lambda number, bound: number <= bound,
    "below": lambda number, bound: number < bound,
}


def _range(metadata: Mapping[str, Any]) -> str:
    bounds = {name: f"{metadata[name]:g}" for name in _BOUNDS if name in metadata}
    match bounds:
        case {"at_least": low, "at_most": high}:
            return f"{low} to {high}{' (off)' if 'off' in metadata else ''}"
        case {"at_least": low, **others} if not others:
            return f"{low} ({metadata['zero']}) or more" if "zero" in metadata else f"{low} or more"
    words = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
    return ", ".join(f"{words[name]} {bound}" for name, bound in bounds.items())


def path_given(name: str, given: str | Path) -> Path:
    """Convert the text of an option to a path. Raises ConfigError if the text is not a local path (`local_path`).

    name: name of the option in the error.
    """
    try:
        return local_path(given)
    except (TypeError, ValueError) as error:
        remedy = error if isinstance(error, ValueError) else "a path"
        raise ConfigError(f"{name} {given or repr(given)} cannot be used: give {remedy}") from None


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))[:_SHOWN] or "(none)"
    return str(value)[:_SHOWN] or "''"
