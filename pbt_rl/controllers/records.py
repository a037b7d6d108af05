"""Parser of untrusted JSON into typed records.

A record is a msgspec struct or a dataclass. The types of its fields define the valid input. Except with `strict`,
numbers may be strings, such as "nan", "inf" and "-inf", because JSON has no syntax for NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pbt_rl.errors import ConfigError

MOST = 2**62
"""Upper limit of counts of frames, steps and generations."""
LARGEST_VALUE = 1e30
"""Maximum absolute value of a hyperparameter or a shaping weight. Draws and fits of larger values could overflow."""
DEEPEST = 8
"""Maximum nesting of options. A config has three levels."""

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""Exceptions that a decoder raises for text that is not JSON."""

Whole = Annotated[int, Meta(ge=0, lt=MOST)]
Value = Annotated[float, Meta(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
"""Number with an absolute value of at most `LARGEST_VALUE`."""


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a JSON decoder for one type. Call the decoder within `reading`, which converts the decoder's errors."""
    return msgspec.json.Decoder(kind, strict=False)


def converted(value: object, kind: Any, place: str, *, strict: bool = False) -> Any:
    """Convert JSON types to the record type `kind`. Raises ConfigError if the value does not fit.

    place: origin of the value, for the error. strict: True rejects numbers in strings.
    """
    with reading(place):
        return msgspec.convert(value, kind, strict=strict)


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Convert errors of JSON with wrong names, types or values, or too deep nesting, to ConfigErrors.

    The errors are converted in the `with` block. Text that is not JSON raises one of `NOT_JSON`, which is not
    converted.
    place: origin of the JSON text, for the errors.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place} cannot be used: {error}: is it damaged, or of another version?") from None
    except RecursionError:
        raise ConfigError(f"{place} cannot be used: it is nested too deeply") from None


def check_depth(config: object, depth: int = DEEPEST) -> None:
    """Raise ValueError for options that are nested more than `depth` levels deep, because they cannot be displayed."""
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if inner and depth == 0:
        raise ValueError(f"options are nested more than {DEEPEST} levels deep")
    for value in inner:
        check_depth(value, depth - 1)


def finite(value: float | None) -> float | None:
    """Return the value, or None if the value is missing, not finite, or too large to sum."""
    return value if value is not None and math.isfinite(value) and abs(value) <= LARGEST_VALUE else None
