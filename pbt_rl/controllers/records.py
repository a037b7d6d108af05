"""JSON that anybody may have written, read into typed records: whatever does not fit is one clear error.

A record is a msgspec struct or a dataclass, and its types say what is allowed. JSON has no NaN and no infinities: the
texts "nan", "inf" and "-inf" are read where a number belongs.
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
"""Counts of frames, steps and generations stay below it."""
LARGEST_VALUE = 1e30
"""Of a hyper or shaping value. Whatever draws or fits values stays far from the limits of its arithmetic."""
DEEPEST = 8
"""Levels of nested options; a config has three."""

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""What decoding raises for a text that is no JSON."""

Whole = Annotated[int, Meta(ge=0, lt=MOST)]
Value = Annotated[float, Meta(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
"""A finite number."""


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return what decodes JSON texts of one kind. Use it within `reading`."""
    return msgspec.json.Decoder(kind, strict=False)


def converted(value: object, kind: Any, place: str, *, strict: bool = False) -> Any:
    """Return the record that JSON types hold. place: where they stand, for the ConfigError that is raised.

    strict: texts are no numbers.
    """
    with reading(place):
        return msgspec.convert(value, kind, strict=strict)


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Raise ConfigError, with the place, for JSON that does not fit the type that is read inside.

    For a text that is no JSON, one of `NOT_JSON`, which are ValueErrors, goes on.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place} cannot be used: {error}: is it damaged, or of another version?") from None
    except RecursionError:
        raise ConfigError(f"{place} cannot be used: it is nested too deeply") from None


def check_depth(config: object, depth: int = DEEPEST) -> None:
    """Raise ValueError for options that are nested more deeply than any are: they could not be shown."""
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if inner and depth == 0:
        raise ValueError(f"options are nested in more than {DEEPEST} levels")
    for value in inner:
        check_depth(value, depth - 1)


def finite(value: float | None) -> float | None:
    """Return the number; None if it is none, or so large that sums of it are no numbers any more."""
    return value if value is not None and math.isfinite(value) and abs(value) <= LARGEST_VALUE else None
