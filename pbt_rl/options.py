"""Options declare their bounds as metadata of their field; one loop checks them, `--help` shows them.

An option is a field of a frozen dataclass. Its metadata may hold

    at_least, above, at_most, below   bounds of a number, or of each number of a tuple
    distinct                          the numbers of a tuple differ
    empty                             a tuple may have no number
    off                               name of the upper bound if it stands for "no limit" ("off")
    zero                              meaning of 0 if it stands outside the usual meaning ("planned", "no limit")
    choices                           function that returns the allowed names
    custom                            form of a name of the user's own, allowed besides the choices ("module:factory")
    test, remedy                      predicate for anything else, and the text that describes what it accepts
    common                            shown by plain `--help`
    may_change                        may differ when a run is resumed; of a group: any of its options may
    choices_within                    of a group of options: name -> its choices, if a registry above the group has them

`option` writes that metadata; rooms that import nothing of ours write the dictionary themselves. Rules between
several options are functions of the class that holds them all.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pbt_rl.errors import ConfigError

MOST = 10**18
"""Whole numbers stay below it: counts of frames that no run reaches, which any arithmetic holds."""
_SHOWN = 200
"""Characters of a value in a message."""


def option(
    default: Any = MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    distinct: bool = False,
    empty: bool = False,
    zero: str = "",
    off: str = "",
    choices: Callable[[], tuple[str, ...]] | None = None,
    custom: str = "",
    test: Callable[[Any], bool] | None = None,
    remedy: str = "",
    common: bool = False,
    may_change: bool = False,
    **more: object,
) -> Any:
    """Declare a field that is an option. more: metadata that its owner reads."""
    assert (test is None) == (not remedy), "a predicate comes with the text that describes what it accepts"
    declared = {
        "at_least": at_least,
        "above": above,
        "at_most": at_most,
        "below": below,
        "distinct": distinct or None,
        "empty": empty or None,
        "zero": zero or None,
        "off": off or None,
        "choices": choices,
        "custom": custom or None,
        "test": test,
        "remedy": remedy or None,
        "common": common or None,
        "may_change": may_change or None,
        **more,
    }
    return field(
        default=default, metadata={key: value for key, value in declared.items() if value is not None}
    )


def walk(
    options: Any, prefix: str = "", group: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield the dotted name, metadata and value of every option of a dataclass and of those nested in it.

    group: metadata of the field that holds `options`.
    """
    for f in fields(options):
        value = getattr(options, f.name)
        name = prefix + f.name.replace("_", "-")
        if is_dataclass(value):
            yield from walk(value, f"{name}.", f.metadata)
        else:
            yield name, declared(f, group), value


def declared(f: Field[Any], group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an option, with what the group that it stands in adds to it."""
    added = {name: group[name] for name in ("may_change",) if name in group}
    choices = group.get("choices_within", {}).get(f.name)
    if choices is not None:
        added["choices"] = choices
    return {**f.metadata, **added} if added else f.metadata


def validate(options: Any, prefix: str = "") -> None:
    """Check every option against its metadata. Raises ConfigError with the option, its value and what is allowed."""
    for name, metadata, value in walk(options, prefix):
        if not allows(metadata, value):
            raise ConfigError(f"--{name} {_text(value)} cannot be used: give {allowed(metadata, value)}")


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
        return ", ".join(names[:-1]) + " or " + names[-1]
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


def names_object(text: str) -> bool:
    """Whether a text has the form module:object."""
    module, _, name = text.partition(":")
    return bool(module and name) and not module.startswith(".")


def as_type(hint: Any, value: Any) -> Any:
    """Return a value in the type of an option: a list becomes a tuple, a text a path, a whole number a float.

    Raises ValueError, whose text describes the type, for a value of another type.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return as_type(arguments[0], value)
    if origin is UnionType:  # X | None
        return None if value is None else as_type(arguments[0], value)
    if origin is Literal:
        return _checked(value, value in arguments, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(
                'several texts, such as ["a", "b"]' if arguments[0] is str else "several, such as [1.2, 0.8]"
            )
        return tuple(as_type(arguments[0], x) for x in value)
    if hint is Path:
        fits = isinstance(value, str | Path) and "\0" not in str(value)
        return Path(_checked(value, fits, "a path"))
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(value, number and abs(value) <= sys.float_info.max, "a finite number"))
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return _checked(value, whole and abs(value) < MOST, "a whole number of at most 18 digits")
    if is_dataclass(hint):
        raise ValueError("its options by name")
    if hint is bool:
        return _checked(value, isinstance(value, bool), "true or false")
    assert hint is str, hint
    return _checked(value, isinstance(value, str) and all(map(_writable, value)), "a text that can be shown")


def _writable(character: str) -> bool:
    """Whether a terminal and any file take it: no control character, and no half of one."""
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")


def _checked(value: Any, fits: bool, kind: str) -> Any:
    if not fits:
        raise ValueError(kind)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))[:_SHOWN] or "(none)"
    return str(value)[:_SHOWN] or "''"
