"""What options allow, by the metadata of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import Option, names_object, table, walk
from pbt_rl.options.names import meant
from pbt_rl.options.values import local_path

_SHOWN = 200
"""Characters of a value in a message."""


def validate(options: Any) -> None:
    """Check every option against its metadata. Raises ConfigError with the option, its value and what is allowed."""
    for name, metadata, value in walk(options):
        if not allows(metadata, value):
            hint = _meant(name, metadata, value, table(options)) if "choices" in metadata else ""
            raise ConfigError(
                f"--{name} {_text(value)} cannot be used: {hint}give {allowed(metadata, value)}"
            )


def _meant(name: str, metadata: Mapping[str, Any], value: str, known: Mapping[str, Option]) -> str:
    """Return what is probably meant by a value that is none of the names to choose from; "" if nothing is."""
    elsewhere = [
        other
        for other, one in known.items()
        if "choices" in one.metadata and value in one.metadata["choices"]()
    ]
    if elsewhere:
        return f"write --{elsewhere[0]} {value}; here "
    return meant(name, value, metadata["choices"]())


def allows(metadata: Mapping[str, Any], value: Any) -> bool:
    """Whether the metadata of an option allows a value. None stands for no value and is always allowed."""
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
    # NaN compares as false, so it is within no bounds.
    return all(
        within(number, metadata[bound])
        for bound, within in _BOUNDS.items()
        if bound in metadata
        for number in numbers
    )


def allowed(metadata: Mapping[str, Any], value: Any = None) -> str:
    """Describe what the metadata of an option allows, such as "0 to 1" or "0 (planned) or more"; "" for anything.

    value: any value of the option; a tuple is described as several numbers.
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
    """Return the path that an option or a parameter of this name is given. Raises ConfigError."""
    try:
        return local_path(given)
    except ValueError as remedy:
        raise ConfigError(f"{name} {given or repr(given)} cannot be used: give {remedy}") from None


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))[:_SHOWN] or "(none)"
    return str(value)[:_SHOWN] or "''"
