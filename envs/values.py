"""Reads values as people type them, and as environments of others return them: Python's, numpy's and the like."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np

WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "none": None,
    "null": None,
}
UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}


def typed(text: str) -> Any:
    """Return what a typed text means: JSON, Python's words, numbers and collections, 5M, or else the text itself.

    A text that looks like one of these is given in quotes.
    """
    bare = text.strip()
    if bare.lower() in WORDS:
        return WORDS[bare.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    number = _number_with_unit(bare)
    if number is not None:
        return number
    try:
        value = ast.literal_eval(bare)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    plain = isinstance(value, int | float | str | list | dict) or (
        isinstance(value, tuple) and bare[0] == "("
    )
    return value if plain else text


def _number_with_unit(text: str) -> int | float | None:
    unit = UNITS.get(text[-1:])
    if unit is None:
        return None
    try:
        number = float(text[:-1]) * unit
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def number_of(value: Any) -> float:
    """Return a number, of an array too if it holds one. Raises TypeError or ValueError for anything else."""
    try:
        return float(value)
    except TypeError:
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "fiub":
            raise
        return float(array.reshape(-1)[0])


def flag_of(value: Any) -> bool:
    """Return whether something is true, of an array or a list too if it holds one. None is false.

    Raises ValueError for a text and for several.
    """
    if type(value) is bool:
        return value
    if value is None:
        return False
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise ValueError("True or False")
    return bool(array.reshape(-1)[0])
