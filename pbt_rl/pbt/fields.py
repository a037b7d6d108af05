"""Reads JSON objects that anybody may have written: field by field, each of one type, with one clear error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeGuard

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Values

MOST = 2**62
"""Counts of frames, steps and generations stay below it."""
LARGEST_VALUE = 1e30
"""Of a hyper or shaping value. Whatever draws or fits values stays far from the limits of its arithmetic."""
_NOT_FINITE = ("nan", "inf", "-inf")
_SHOWN = 60


class Fields:
    """One JSON object. place: what it is and where it stands, for messages.

    Every method raises ConfigError for a field that is missing or holds something else.
    """

    def __init__(self, record: object, place: str) -> None:
        if not isinstance(record, dict):
            raise ConfigError(f"{place} is {_shown(record)}: it should be an object")
        self._record: dict[str, Any] = record
        self._place = place

    def has(self, name: str) -> bool:
        """Whether there is such a field, and it is not null."""
        return self._record.get(name) is not None

    def raw(self, name: str) -> object:
        """Return whatever the field holds, for another reader."""
        return self._get(name)

    def whole(self, name: str, below: int = MOST) -> int:
        """Return a whole number, at least 0."""
        value = self._get(name)
        # `type`, as True is an int too
        return value if type(value) is int and 0 <= value < below else self._fail(name, "a whole number")

    def whole_or_none(self, name: str) -> int | None:
        """Return a whole number, None if the field is null or missing."""
        return self.whole(name) if self.has(name) else None

    def number(self, name: str) -> float:
        """Return a number. The texts that a journal writes for NaN and the infinities are read as those."""
        value = number(self._get(name))
        return self._fail(name, "a number") if value is None else value

    def number_or_none(self, name: str) -> float | None:
        """Return a number, None if the field is null or missing."""
        return self.number(name) if self.has(name) else None

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        found = []
        for item in self.items(name):
            value = number(item)
            found.append(self._fail(name, "a list of numbers") if value is None else value)
        return tuple(found)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers, each at least 0."""
        found = self.items(name)
        return tuple(
            item if type(item) is int and 0 <= item < MOST else self._fail(name, "a list of whole numbers")
            for item in found
        )

    def flag(self, name: str) -> bool:
        """Return true or false; a missing field is false."""
        value = self._record.get(name, False)
        return value if isinstance(value, bool) else self._fail(name, "true or false")

    def text(self, name: str) -> str:
        """Return a text that can be written to any file."""
        value = self._get(name)
        return value if is_text(value) else self._fail(name, "a text")

    def text_or_none(self, name: str) -> str | None:
        """Return a text, None if the field is null or missing."""
        return self.text(name) if self.has(name) else None

    def items(self, name: str) -> list[Any]:
        """Return a list of anything."""
        value = self._get(name)
        return value if isinstance(value, list) else self._fail(name, "a list")

    def inner(self, name: str) -> Fields:
        """Return the object inside."""
        return Fields(self._get(name), f"{name} of {self._place}")

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        return [Fields(item, f"one of {name} of {self._place}") for item in self.items(name)]

    def values(self, name: str) -> Values:
        """Return the values of a member: name -> finite number."""
        return {key: self._value(name, key, value) for key, value in self.inner(name).named()}

    def texts(self, name: str) -> dict[str, str]:
        """Return an object of texts; a missing one is empty."""
        found = self.inner(name).named() if self.has(name) else []
        return {key: value if is_text(value) else self._fail(name, "texts by name") for key, value in found}

    def plain(self, name: str, depth: int) -> dict[str, Any]:
        """Return an object of anything that is not nested deeper than this; a missing one is empty."""
        value = self._record.get(name, {})
        if not isinstance(value, dict) or not _shallow(value, depth):
            self._fail(name, f"an object of at most {depth} levels")
        return value

    def named(self) -> list[tuple[str, Any]]:
        """Return all fields."""
        return [
            (key if is_text(key) else self._fail(key, "a text"), value) for key, value in self._record.items()
        ]

    def members_values(self, name: str) -> tuple[Values, ...]:
        """Return a list of the values of members."""
        place = f"{name} of {self._place}"
        inner = Fields({f"{i}": item for i, item in enumerate(self.items(name))}, place)
        return tuple(inner.values(f"{i}") for i in range(len(self.items(name))))

    def _value(self, name: str, key: str, value: object) -> float:
        found = number(value)
        if found is None or not abs(found) <= LARGEST_VALUE:
            raise ConfigError(
                f"{name}.{key} of {self._place} is {_shown(value)}: it should be a finite number"
            )
        return found

    def _get(self, name: str) -> Any:
        if name not in self._record:
            raise ConfigError(f"{self._place} has no {name}: is it damaged, or of another version?")
        return self._record[name]

    def _fail(self, name: str, kind: str) -> NoReturn:
        raise ConfigError(f"{name} of {self._place} is {_shown(self._record.get(name))}: it should be {kind}")


def number(value: object) -> float | None:
    """Return a number of a journal; None for anything else."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if -MOST < value < MOST else None
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else None


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a text that UTF-8 can hold: JSON can name halves of a character alone, which no file takes."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def finite(value: float | None) -> float | None:
    """Return the number; None if it is none, or so large that sums of it are no numbers any more."""
    return value if value is not None and math.isfinite(value) and abs(value) <= LARGEST_VALUE else None


def _shallow(value: object, depth: int) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(_shallow(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_shallow(inner, depth - 1) for inner in value)
    return True


def _shown(value: object) -> str:
    """Return the start of a value, without walking through a large one."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if (
        type(value) is int and not -MOST < value < MOST
    ):  # Python refuses to write a number of thousands of digits
        return "a number of too many digits"
    return f"{value!r:.{_SHOWN}}"
